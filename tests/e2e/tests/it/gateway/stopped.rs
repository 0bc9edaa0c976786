//! Termination of a pod while clients are active.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::guardian::signal_group;
use pinniped_test_support::wait;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpStream;

use super::backend::{Backend, SLOW};
use super::environment::{self, APP, Place, ask};
use crate::installed::SOON;

#[tokio::test]
async fn a_terminating_pod_finishes_open_requests_and_another_one_becomes_the_leader() {
    let Some(place) = environment::alone("stopped").await else { return };
    let (through, ended) = (place.host("through"), place.host("ended"));
    let own = Backend::tls("own", &place.serving("own", &through), &place.ca).await;
    let web = Backend::plain("web").await;
    let mut objects = [place.service("own", own.address), place.service("web", web.address)].concat();
    objects.push(place.secret("cert", &place.serving("cert", &ended)));
    objects.push(place.proxy(
        "through",
        json!({"virtualhost": {"fqdn": through, "tls": {"passthrough": true}},
            "tcpproxy": {"services": [{"name": "own", "port": 80}]}}),
    ));
    // Longer than the test may take.
    objects.push(place.proxy(
        "ended",
        json!({"virtualhost": {"fqdn": ended, "tls": {"secretName": "cert"}},
            "routes": [{"services": [{"name": "web", "port": 80}], "timeoutPolicy": {"response": "infinity"}}]}),
    ));
    place.apply(&objects).await;
    place.await_served(&through, "own", "own to visitor about /").await;
    place.await_served(&ended, "cert", "web to nobody about /").await;
    let leader = place.check(wait::until_ok(SOON, "a leader", async || place.leader().await).await);
    let before = place.check(transitions(&place).await);
    let running = place.running();
    let (name, pod) = running.iter().find(|(name, _)| *name == leader).expect("the leader runs");
    let (door, pid) = (pod.ip.unwrap(), pod.pid.unwrap());

    let mut passed = place.connect(door, &through).await.unwrap();
    assert_eq!(ask(&mut passed, &through, "/before").await.unwrap().status, 200);
    let mut open = place.connect(door, &ended).await.unwrap();
    let requests = place.metric(door, "pinniped_gateway_requests_total").await;
    let slow = ask(&mut open, &ended, SLOW);
    let outcome = async {
        wait::until(SOON, "the slow request to have begun", async || {
            (place.metric(door, "pinniped_gateway_requests_total").await > requests).then_some(())
        })
        .await?;
        signal_group(pid, Signal::TERM);
        wait::until(Duration::from_secs(2), "readiness to turn red", async || {
            (place.admin(door, "/readyz").await.ok()?.status == 500).then_some(())
        })
        .await?;
        ensure!(place.admin(door, "/healthz").await?.status == 200, "it is not alive");
        // A client that has not yet noticed the termination.
        let mut late = place.connect(door, &ended).await.context("the delay")?;
        ensure!(ask(&mut late, &ended, "/late").await?.status == 200, "it is not served");
        wait::until(SOON, "the port to close", async || {
            TcpStream::connect((door, 8443)).await.is_err().then_some(())
        })
        .await?;
        // Both continue within the grace period.
        ensure!(ask(&mut passed, &through, "/grace").await?.body == "own to visitor about /grace");
        web.answers.add_permits(1);
        drop(passed);
        anyhow::Ok(())
    };
    let (answer, outcome) = tokio::join!(slow, outcome);
    place.check(outcome);
    assert_eq!(place.check(answer).body, "web to nobody about /slow");
    drop(open);

    let waited = wait::until_ok(SOON, format!("{name} to end well"), async || {
        let log = std::fs::read_to_string(&pod.log)?;
        ensure!(log.contains("container ended: exit status: 0"), "{log}");
        Ok(())
    });
    place.check(waited.await);
    // The pod released the Lease, so another pod does not wait for its expiry. The terminated pod
    // is replaced, and its replacement may be the faster one.
    let waited = wait::until_ok(SOON, "a new leader", async || {
        ensure!(transitions(&place).await? > before, "nobody has taken over");
        Ok(())
    });
    place.check(waited.await);
    place.check(environment::rolled_out(place.world).await);
    place.await_served(&ended, "cert", "web to nobody about /").await;
    place.apply(&[place.proxy(
        "after",
        json!({"virtualhost": {"fqdn": place.host("after")}, "routes": [{"services": [{"name": "web", "port": 80}]}]}),
    )]).await;
    place.await_status("after", "valid", "Valid HTTPProxy").await;
}

/// Returns the number of leader transitions of the Lease.
async fn transitions<G>(place: &Place<G>) -> anyhow::Result<u32> {
    let get = ["get", "lease", APP, "-n", APP, "-o", "jsonpath={.spec.leaseTransitions}"];
    Ok(place.world.kubectl().output(&get).await?.parse()?)
}
