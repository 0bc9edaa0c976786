//! Termination of the Concierge: one signal, two signals, a rolling update, and a scale to zero,
//! with active clients.
//!
//! This is one test, because each part restarts pods that all other tests use. It covers upstream's
//! `pod_shutdown_test.go`.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, WatchParams};
use pinniped_e2e::walkthrough::{CONCIERGE, EXTERNAL_NAME};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::guardian::signal_group;
use pinniped_test_support::kubectl::Kubectl;
use pinniped_test_support::pods::RunningPod;
use pinniped_test_support::{rounds, wait, wire};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::installed::{self, Installed, TIME_LIMIT};

const USER: &str = "stopped-user";
/// The name of the Deployment and of the Lease.
const NAME: &str = "pinniped-concierge";
const DEPLOYMENT: &str = "deployment/pinniped-concierge";
const CONFIG: &str = "pinniped-concierge-config";
/// Time limit of a rollout.
const ROLLOUT: &str = "--timeout=120s";

/// The lines that a pod's log must contain, in this order; upstream's test searches for the same
/// bytes.
const SHUTDOWN_LINES: [&str; 3] = [
    r#""[graceful-termination] shutdown event","name":"ShutdownInitiated""#,
    "fetch-impersonation-proxy-tokens start hook's background goroutine has finished",
    "[graceful-termination] apiserver is exiting",
];

#[tokio::test]
async fn the_concierge_terminates_as_kubernetes_and_its_clients_expect() {
    let Some(installed) = installed::alone("the Concierge is stopped").await else { return };
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    installed.allow(USER, rules).await;
    let pair = installed.certificate(USER, None);
    let configured = configuration(&installed).await;
    configure(&installed, &format!("{configured}\nlog: {{level: debug}}\n")).await;

    let output = async {
        kubectl_keeps_working_through_a_rolling_update(&installed, &pair).await?;
        one_signal_terminates_a_pod_gracefully(&installed, &pair).await?;
        a_second_signal_terminates_a_pod_at_once(&installed).await?;
        scaled_to_zero_all_pods_terminate_before_they_are_killed(&installed, &pair).await
    }
    .await;

    // Restored before any assertion can fail, because other tests follow.
    configure(&installed, &configured).await;
    let kubectl = installed.world().kubectl();
    kubectl.output(&["scale", DEPLOYMENT, "-n", CONCIERGE, "--replicas=2"]).await.unwrap();
    restart(&kubectl).await.unwrap();
    serves(&installed, &pair).await.unwrap();
    output.unwrap();
}

async fn kubectl_keeps_working_through_a_rolling_update(
    installed: &Installed,
    pair: &Pair,
) -> anyhow::Result<()> {
    let kubectl = installed.kubectl(USER, &pair.clone().into());
    let over = AtomicBool::new(false);
    let working = rounds::until(&over, 10, async |_| {
        kubectl.output(&["get", "configmaps", "-n", "default", "-o", "name"]).await.map(drop)
    });
    let updating = async {
        let old = installed.running();
        let updated = restart(&installed.world().kubectl()).await;
        let gone = wait::until(TIME_LIMIT, "the old pods to end", async || {
            let running = installed.running();
            old.iter().all(|(name, _)| running.iter().all(|(other, _)| other != name)).then_some(())
        })
        .await;
        over.store(true, Ordering::Relaxed);
        updated.and(gone)
    };
    let (worked, updated) = tokio::join!(working, updating);
    updated?;
    worked
}

async fn one_signal_terminates_a_pod_gracefully(installed: &Installed, pair: &Pair) -> anyhow::Result<()> {
    // A busy machine may need longer for the requests than the pod continues to serve. Then another
    // pod shows it.
    for attempt in 1.. {
        let (name, pod) =
            wait::until(TIME_LIMIT, "two pods", async || ready_pods(installed)).await?.remove(0);
        let (pid, ip) = (pod.pid.context("no process")?, pod.ip.context("no address")?);
        let before = std::fs::read_to_string(&pod.log)?.len();
        ensure!(get(ip, 10250, "/readyz", None).await? == 200, "not ready at first");
        signal_group(pid, Signal::TERM);
        wait::until(TIME_LIMIT, "the signal to be seen", async || {
            std::fs::read_to_string(&pod.log).ok()?[before..].contains(SHUTDOWN_LINES[0]).then_some(())
        })
        .await?;
        let served = async {
            ensure!(get(ip, 10250, "/readyz", None).await? == 500, "readiness is not red");
            // A client that has not yet noticed the termination.
            let path = "/api/v1/namespaces/default/configmaps";
            ensure!(get(ip, 8444, path, Some(pair)).await? == 200, "not served");
            ensure!(get(ip, 10250, "/livez", None).await? == 200, "not alive");
            Ok(())
        };
        let served = served.await;
        let late = std::fs::read_to_string(&pod.log)?[before..].contains(SHUTDOWN_LINES[2]);
        let log = log_with(installed, &name, &pod.log, "container ended: exit status: 0").await?;
        in_order(&log)?;
        if served.is_ok() || !late || attempt == 3 {
            return served;
        }
    }
    unreachable!("the last attempt returns")
}

/// Returns the Concierge's pods, once both are ready.
fn ready_pods(installed: &Installed) -> Option<Vec<(String, RunningPod)>> {
    let running = installed.running();
    (running.len() == 2 && running.iter().all(|(_, pod)| pod.ready)).then_some(running)
}

async fn a_second_signal_terminates_a_pod_at_once(installed: &Installed) -> anyhow::Result<()> {
    let (name, pod) = wait::until(TIME_LIMIT, "two pods", async || ready_pods(installed)).await?.remove(1);
    let pid = pod.pid.context("no process")?;
    let before = std::fs::read_to_string(&pod.log)?.len();
    signal_group(pid, Signal::TERM);
    wait::until(TIME_LIMIT, "the first signal to be seen", async || {
        let log = std::fs::read_to_string(&pod.log).ok()?;
        log[before..].contains(SHUTDOWN_LINES[0]).then_some(())
    })
    .await?;
    signal_group(pid, Signal::INT);
    let log = log_with(installed, &name, &pod.log, "container ended: exit status: 1").await?;
    ensure!(!log[before..].contains(SHUTDOWN_LINES[2]), "it ended in an orderly way:\n{log}");
    Ok(())
}

async fn scaled_to_zero_all_pods_terminate_before_they_are_killed(
    installed: &Installed,
    pair: &Pair,
) -> anyhow::Result<()> {
    restart(&installed.world().kubectl()).await?;
    serves(installed, pair).await?;
    let pods = wait::until(TIME_LIMIT, "two pods", async || {
        let running = installed.running();
        (running.len() == 2).then_some(running)
    })
    .await?;
    wait::until(Duration::from_secs(60), "a leader", async || {
        holder(installed).await.filter(|h| !h.is_empty())
    })
    .await?;

    // A watch and an upgraded connection to each of the pods, which no client closes.
    let mut streams = Vec::new();
    for (_, pod) in &pods {
        let ip = pod.ip.context("no address")?;
        for upgrade in [
            "",
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: https://x\r\n",
        ] {
            let path = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0";
            let response = send_request(ip, 8444, path, upgrade, Some(pair)).await?;
            ensure!(response.status == if upgrade.is_empty() { 200 } else { 101 }, "{}", response.head);
            streams.push(response.stream);
        }
    }
    let client = installed.client(&pair.clone().into()).await;
    let maps = Api::<ConfigMap>::namespaced(client, "default");
    let mut watch = maps.watch(&WatchParams::default(), "0").await?.boxed();
    watch.next().await.context("the watch has nothing")??;

    let kubectl = installed.world().kubectl();
    kubectl.output(&["scale", DEPLOYMENT, "-n", CONCIERGE, "--replicas=0"]).await?;
    wait::until(2 * TIME_LIMIT, "all pods to be gone", async || {
        let listed = kubectl.output(&[
            "get",
            "pods",
            "-n",
            CONCIERGE,
            "-l",
            "deployment.pinniped.dev=concierge",
            "-o",
            "name",
        ]);
        (installed.running().is_empty() && listed.await.ok()?.trim().is_empty()).then_some(())
    })
    .await?;
    for (name, pod) in &pods {
        let log = std::fs::read_to_string(&pod.log)?;
        in_order(&log)?;
        ensure!(log.trim_end().ends_with("container ended: exit status: 0"), "{name}:\n{log}");
    }
    let leases = Api::<Lease>::namespaced(installed.admin().await, CONCIERGE);
    let lease = leases.get(NAME).await?.spec.unwrap_or_default();
    ensure!(
        lease.holder_identity.as_deref() == Some("") && lease.lease_duration_seconds == Some(1),
        "{lease:?}"
    );
    for stream in &mut streams {
        let mut rest = Vec::new();
        // The kind of the end does not matter.
        let _reset_or_closed = tokio::time::timeout(TIME_LIMIT, stream.read_to_end(&mut rest)).await?;
    }
    tokio::time::timeout(TIME_LIMIT, async { while let Some(Ok(_)) = watch.next().await {} }).await?;

    kubectl.output(&["scale", DEPLOYMENT, "-n", CONCIERGE, "--replicas=2"]).await?;
    kubectl.output(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, ROLLOUT]).await?;
    wait::until(Duration::from_secs(60), "one of the new pods to lead", async || {
        let holder = holder(installed).await?;
        installed.running().iter().any(|(name, _)| *name == holder).then_some(())
    })
    .await
}

async fn holder(installed: &Installed) -> Option<String> {
    let leases = Api::<Lease>::namespaced(installed.admin().await, CONCIERGE);
    leases.get(NAME).await.ok()?.spec?.holder_identity
}

/// Waits until a container's log contains `wanted`, and returns it.
async fn log_with(
    installed: &Installed,
    name: &str,
    log: &std::path::Path,
    wanted: &str,
) -> anyhow::Result<String> {
    let found = wait::until_ok(TIME_LIMIT, format!("{wanted:?} of {name}"), async || {
        let log = std::fs::read_to_string(log)?;
        ensure!(log.contains(wanted), "not there");
        Ok(log)
    });
    found.await.with_context(|| installed.pods().log_tails(CONCIERGE, 30))
}

fn in_order(log: &str) -> anyhow::Result<()> {
    let positions: Vec<_> = SHUTDOWN_LINES.iter().map(|line| log.find(line)).collect();
    ensure!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{positions:?}\n{log}");
    Ok(())
}

async fn configuration(installed: &Installed) -> String {
    let maps = Api::<ConfigMap>::namespaced(installed.admin().await, CONCIERGE);
    let map = maps.get(CONFIG).await.unwrap();
    map.data.unwrap()["pinniped.yaml"].clone()
}

/// Changes the configuration, which takes effect when pods start.
async fn configure(installed: &Installed, text: &str) {
    let maps = Api::<ConfigMap>::namespaced(installed.admin().await, CONCIERGE);
    let change: Value = json!({"data": {"pinniped.yaml": text}});
    maps.patch(CONFIG, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
}

async fn restart(kubectl: &Kubectl) -> anyhow::Result<()> {
    kubectl.output(&["rollout", "restart", DEPLOYMENT, "-n", CONCIERGE]).await?;
    kubectl.output(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, ROLLOUT]).await?;
    Ok(())
}

/// Waits until each pod's proxy responds.
async fn serves(installed: &Installed, pair: &Pair) -> anyhow::Result<()> {
    wait::until_ok(TIME_LIMIT, "every proxy to serve", async || {
        for (name, pod) in installed.running() {
            let path = "/api/v1/namespaces/default/configmaps";
            let status = get(pod.ip.context("no address")?, 8444, path, Some(pair)).await?;
            ensure!(status == 200, "{name} responds with {status}");
        }
        Ok(())
    })
    .await
}

/// Sends a request over a separate connection and returns the status code of the response.
pub(crate) async fn get(ip: Ipv4Addr, port: u16, path: &str, pair: Option<&Pair>) -> anyhow::Result<u16> {
    Ok(send_request(ip, port, path, "", pair).await?.status)
}

pub(crate) async fn send_request(
    ip: Ipv4Addr,
    port: u16,
    path: &str,
    more_headers: &str,
    pair: Option<&Pair>,
) -> anyhow::Result<wire::RawResponse<TlsStream<TcpStream>>> {
    let exchange = async {
        let tcp = TcpStream::connect((ip, port)).await?;
        let stream = wire::connect_unverified(tcp, EXTERNAL_NAME, &[b"http/1.1"], pair).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {EXTERNAL_NAME}\r\n{more_headers}\r\n");
        wire::raw_request(stream, request.as_bytes()).await
    };
    tokio::time::timeout(TIME_LIMIT, exchange).await?
}
