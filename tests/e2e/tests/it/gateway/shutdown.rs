//! Termination of a pod while clients are active.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::guardian::signal_group;
use pinniped_test_support::wait;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpStream;

use super::backend::{Backend, SLOW};
use super::environment::{self, APP, Environment, send_request};
use crate::installed::TIME_LIMIT;

#[tokio::test]
async fn a_terminating_pod_finishes_open_requests_and_another_one_becomes_the_leader() {
    let Some(environment) = environment::alone("stopped").await else { return };
    let (through, ended) = (environment.host("through"), environment.host("ended"));
    let own = Backend::tls("own", &environment.serving("own", &through), &environment.ca).await;
    let web = Backend::plain("web").await;
    let mut objects =
        [environment.service("own", own.address), environment.service("web", web.address)].concat();
    objects.push(environment.secret("cert", &environment.serving("cert", &ended)));
    objects.push(environment.proxy(
        "through",
        json!({"virtualhost": {"fqdn": through, "tls": {"passthrough": true}},
            "tcpproxy": {"services": [{"name": "own", "port": 80}]}}),
    ));
    // Longer than the test may take.
    objects.push(environment.proxy(
        "ended",
        json!({"virtualhost": {"fqdn": ended, "tls": {"secretName": "cert"}},
            "routes": [{"services": [{"name": "web", "port": 80}], "timeoutPolicy": {"response": "infinity"}}]}),
    ));
    environment.apply(&objects).await;
    environment.await_served(&through, "own", "own to visitor about /").await;
    environment.await_served(&ended, "cert", "web to nobody about /").await;
    let leader =
        environment.check(wait::until_ok(TIME_LIMIT, "a leader", async || environment.leader().await).await);
    let before = environment.check(transitions(&environment).await);
    let running = environment.running();
    let (name, pod) = running.iter().find(|(name, _)| *name == leader).expect("the leader runs");
    let (door, pid) = (pod.ip.unwrap(), pod.pid.unwrap());

    let mut passed = environment.connect(door, &through).await.unwrap();
    assert_eq!(send_request(&mut passed, &through, "/before").await.unwrap().status, 200);
    let mut open = environment.connect(door, &ended).await.unwrap();
    let in_flight = async |count| {
        let read = environment.metric(door, "pinniped_gateway_requests_in_flight").await;
        (read == count).then_some(())
    };
    environment.check(wait::until(TIME_LIMIT, "no request in flight", async || in_flight(0).await).await);
    let slow = send_request(&mut open, &ended, SLOW);
    let result = async {
        wait::until(TIME_LIMIT, "the slow request to be in flight", async || in_flight(1).await).await?;
        signal_group(pid, Signal::TERM);
        wait::until(Duration::from_secs(2), "readiness to turn red", async || {
            (environment.admin(door, "/readyz").await.ok()?.status == 500).then_some(())
        })
        .await?;
        ensure!(environment.admin(door, "/healthz").await?.status == 200, "it is not alive");
        // A client that has not yet noticed the termination.
        let mut late = environment.connect(door, &ended).await.context("the delay")?;
        ensure!(send_request(&mut late, &ended, "/late").await?.status == 200, "it is not served");
        wait::until(TIME_LIMIT, "the port to close", async || {
            TcpStream::connect((door, 8443)).await.is_err().then_some(())
        })
        .await?;
        // Both continue within the grace period.
        ensure!(send_request(&mut passed, &through, "/grace").await?.body == "own to visitor about /grace");
        web.responses.add_permits(1);
        drop(passed);
        anyhow::Ok(())
    };
    let (response, result) = tokio::join!(slow, result);
    environment.check(result);
    assert_eq!(environment.check(response).body, "web to nobody about /slow");
    drop(open);

    let waited = wait::until_ok(TIME_LIMIT, format!("{name} to end well"), async || {
        let log = std::fs::read_to_string(&pod.log)?;
        ensure!(log.contains("container ended: exit status: 0"), "{log}");
        Ok(())
    });
    environment.check(waited.await);
    // The pod released the Lease, so another pod does not wait for its expiry. The terminated pod
    // is replaced, and its replacement may be the faster one.
    let waited = wait::until_ok(TIME_LIMIT, "a new leader", async || {
        ensure!(transitions(&environment).await? > before, "no replica has taken over");
        Ok(())
    });
    environment.check(waited.await);
    environment.check(environment::rolled_out(environment.world).await);
    environment.await_served(&ended, "cert", "web to nobody about /").await;
    environment.apply(&[environment.proxy(
        "after",
        json!({"virtualhost": {"fqdn": environment.host("after")}, "routes": [{"services": [{"name": "web", "port": 80}]}]}),
    )]).await;
    environment.await_status("after", "valid", "Valid HTTPProxy").await;
}

/// Returns the number of leader transitions of the Lease.
async fn transitions<G>(environment: &Environment<G>) -> anyhow::Result<u32> {
    let get = ["get", "lease", APP, "-n", APP, "-o", "jsonpath={.spec.leaseTransitions}"];
    Ok(environment.world.kubectl().output(&get).await?.parse()?)
}
