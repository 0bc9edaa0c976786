//! Unauthenticated clients cannot make the kernel kill a Concierge within the memory limit of the
//! install, and a user is served meanwhile. The limit is the limit of a real cgroup.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use pinniped_e2e::lists_under_attack::under_attack;
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::attacks::Attack;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::cgroup::Cgroup;
use pinniped_test_support::pods::RunningPod;
use pinniped_test_support::{tools, wait};
use serde_json::json;
use tokio::net::TcpStream;

use crate::installed::{self, TIME_LIMIT};

const USER: &str = "memory-user";
const DEPLOYMENT: &str = "deployment/pinniped-concierge";

/// Returns the memory limit of the manifest.
fn shipped_limit() -> u64 {
    let manifest = tools::repository().join("deploy/install-pinniped-concierge-resources.yaml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let limits = manifest.split_once("limits:").unwrap().1;
    let mebibytes = limits.split_once("memory: ").unwrap().1.split_once("Mi").unwrap().0;
    mebibytes.parse::<u64>().unwrap() << 20
}

#[tokio::test]
async fn no_unauthenticated_client_terminates_a_concierge_within_the_shipped_memory_limit() {
    let test = "attacks on a Concierge with a memory limit";
    let Some(installed) = installed::alone(test).await else { return };
    // The suffix marks a cgroup that a program other than a node owns: tests of nodes, which may
    // run at the same time, ignore it when they look for cgroups that a node left behind.
    let name = format!("pinniped-e2e-{}.scope", std::process::id());
    let Some(cgroup) = Cgroup::with_memory_limit(&name, shipped_limit()) else {
        return tools::skip(test, "there is no cgroup hierarchy for memory that this process may use");
    };
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    installed.allow(USER, rules).await;
    let pair = installed.certificate(USER, None);
    let path = "jsonpath={.spec.replicas}";
    let replicas =
        installed.world().kubectl().output(&["get", DEPLOYMENT, "-n", CONCIERGE, "-o", path]).await;
    let replicas = replicas.unwrap();
    roll_out(&installed, json!(cgroup.folder().to_str()), "1").await;

    let (name, pod) = installed.running().into_iter().next().unwrap();
    let survived = attacked(&cgroup, &pod, &pair).await;
    let usage = cgroup.usage();
    let kills = cgroup.kills();
    let now = installed.running().into_iter().find(|(other, _)| *other == name);
    roll_out(&installed, json!(null), &replicas).await;
    wait::until_ok(TIME_LIMIT, "the cgroup to be empty", async || {
        ensure!(cgroup.is_empty()?, "there is still a process");
        Ok(())
    })
    .await
    .unwrap();

    survived.unwrap();
    assert_eq!(kills.unwrap(), 0, "{usage}");
    assert_eq!(now.expect("the pod is gone").1.restarts, pod.restarts);
    eprintln!("{usage}");
}

/// Moves the Concierge into this cgroup, or out of it.
async fn roll_out(installed: &installed::Installed, cgroup: serde_json::Value, replicas: &str) {
    let replicas: u32 = replicas.trim().parse().unwrap();
    // The pods start one after the other: the limit has no room for two at once.
    let strategy = if cgroup.is_null() { "RollingUpdate" } else { "Recreate" };
    let patch = json!({"spec": {
        "replicas": replicas,
        "strategy": {"type": strategy, "rollingUpdate": null},
        "template": {"metadata": {"annotations": {"stand-in-kubelet/cgroup": cgroup}}},
    }});
    let admin = installed.world().kubectl();
    admin.output(&["patch", DEPLOYMENT, "-n", CONCIERGE, "-p", &patch.to_string()]).await.unwrap();
    admin.output(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, "--timeout=120s"]).await.unwrap();
    wait::until_ok(2 * TIME_LIMIT, "the proxy to listen", async || {
        let running = installed.running();
        ensure!(running.len() == replicas as usize, "{} run", running.len());
        for (_, pod) in running {
            TcpStream::connect((pod.ip.context("no address")?, 8444)).await?;
        }
        Ok(())
    })
    .await
    .unwrap();
}

async fn attacked(cgroup: &Cgroup, pod: &RunningPod, pair: &Pair) -> anyhow::Result<()> {
    let server = SocketAddr::from((pod.ip.context("no address")?, 8444));
    for attack in Attack::ALL {
        let lists = under_attack(attack, server, pair).await?;
        ensure!(cgroup.kills()? == 0, "{attack:?}: killed for its memory");
        eprintln!("{attack:?}: {lists}; memory {}", cgroup.usage());
        lists.are_quick()?;
    }
    Ok(())
}
