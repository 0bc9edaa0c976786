//! `/debug/state` of the Concierge's pods, and the lines that programs log at every log level.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use pinniped_e2e::walkthrough::{CONCIERGE, EXTERNAL_NAME, LOCAL_USER_AUTHENTICATOR};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::pods::RunningPod;
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::apis::token_credential_request;
use crate::installed::{self, Installed, NEW_LEADER_LIMIT, TIME_LIMIT};
use crate::shutdown;

/// The ports of the aggregated API and of the impersonation proxy.
const API_PORT: u16 = 10250;
const PROXY_PORT: u16 = 8444;
const READER: &str = "debug-state-reader";
const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
const LOGINS: &str = "tokencredentialrequests.login.concierge.pinniped.dev";
/// Longer than the duration from which a request is slow.
const SLOW: Duration = Duration::from_millis(200);

async fn page(address: Ipv4Addr, reader: &Pair) -> anyhow::Result<Value> {
    let response = shutdown::send_request(address, API_PORT, "/debug/state", "", Some(reader)).await?;
    ensure!(response.status == 200, "{}", response.head);
    Ok(serde_json::from_str(&response.body().await?)?)
}

/// Sends a login whose body arrives after this delay.
async fn slow_login(address: Ipv4Addr, audit_id: &str, delay: Duration) -> anyhow::Result<()> {
    let body = token_credential_request("nobody:nothing", LOCAL_USER_AUTHENTICATOR).to_string();
    let tcp = TcpStream::connect((address, API_PORT)).await?;
    let mut stream = wire::connect_unverified(tcp, EXTERNAL_NAME, &[b"http/1.1"], None).await?;
    let head = format!(
        "POST {LOGIN} HTTP/1.1\r\nHost: {EXTERNAL_NAME}\r\nAudit-ID: {audit_id}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let early = tokio::time::timeout(delay, stream.read_u8()).await;
    ensure!(early.is_err(), "a response before the body: {early:?}");
    let response = wire::raw_request(stream, body.as_bytes()).await?;
    ensure!(response.status == 201, "{}", response.head);
    Ok(())
}

/// Returns a delay that is longer than each login in this state, because the page has only the
/// slowest one.
fn longer_than_all(state: &Value) -> anyhow::Result<Duration> {
    let slowest = state["slowestRequests"].as_array().context("no requests")?;
    let logins = slowest.iter().filter(|request| request["resource"] == LOGINS);
    let longest = logins.filter_map(|request| request["milliseconds"].as_u64()).max();
    Ok(SLOW + Duration::from_millis(longest.unwrap_or(0)))
}

/// Returns the element of a list whose member has this value.
fn element<'a>(list: &'a Value, member: &str, value: &str) -> anyhow::Result<&'a Value> {
    let mut elements = list.as_array().context("no list")?.iter();
    elements.find(|element| element[member] == value).with_context(|| format!("no {value:?} in {list:#}"))
}

/// Checks the state of one pod, which has an open connection to its proxy, and has served a slow
/// login.
fn check(state: &Value, pod: &str, audit_id: &str) -> anyhow::Result<()> {
    ensure!(state["program"]["pod"] == pod && state["program"]["namespace"] == CONCIERGE, "{state:#}");

    let proxy = element(&state["listeners"], "name", "impersonation_proxy")?;
    let by_worker = proxy["openByWorker"].as_array().context("no workers")?;
    let open: u64 = by_worker.iter().filter_map(Value::as_u64).sum();
    ensure!(
        open >= 1 && proxy["open"].as_u64() >= Some(1) && proxy["accepted"].as_u64() >= Some(1),
        "{proxy}"
    );
    let api = element(&state["listeners"], "name", "aggregated_api")?;
    ensure!(api["openByWorker"] == json!([]) && api["accepted"].as_u64() >= Some(1), "{api}");

    let webhook = element(&state["authenticators"], "name", LOCAL_USER_AUTHENTICATOR)?;
    let expected = json!({"apiGroup": "authentication.concierge.pinniped.dev",
        "kind": "WebhookAuthenticator", "name": LOCAL_USER_AUTHENTICATOR, "signingKeys": null});
    ensure!(*webhook == expected, "{webhook}");

    let strategy = element(&state["strategies"], "type", "ImpersonationProxy")?;
    ensure!(strategy["status"] == "Success" && strategy["reason"] == "Listening", "{strategy}");
    ensure!(strategy["message"].is_string() && strategy["lastUpdateTime"].is_string(), "{strategy}");
    let running = json!({"isReady": true, "observed": true, "wanted": true, "running": true,
        "hasCertificate": true});
    ensure!(state["impersonationProxy"] == running, "{}", state["impersonationProxy"]);

    let token = element(&state["tokens"], "use", "impersonation proxy")?;
    let not_after: Timestamp = token["notAfter"].as_str().context("no time")?.parse()?;
    ensure!(not_after > Timestamp::now() && token["problem"].is_null(), "{token}");
    // The watches of the controllers use the pool.
    let upstream = &state["upstream"];
    ensure!(upstream["http2Connections"].as_u64() >= Some(1), "{upstream}");
    ensure!(upstream["http2Streams"].is_u64() && upstream["http1Connections"].is_u64(), "{upstream}");

    let login = element(&state["slowestRequests"], "auditID", audit_id)?;
    ensure!(login["server"] == "aggregated_api" && login["verb"] == "create", "{login}");
    ensure!(login["resource"] == LOGINS, "{login}");
    ensure!(u128::from(login["milliseconds"].as_u64().unwrap_or(0)) >= SLOW.as_millis(), "{login}");
    ensure!(login["secondsAgo"].is_u64(), "{login}");

    let metrics = &state["metrics"];
    // The request for the page needs a review.
    ensure!(metrics["pinniped_access_review_cache_entries"].as_u64() >= Some(1), "{metrics:#}");
    let entries = &metrics["pinniped_token_review_cache_entries"];
    let limits = ["token", "access"]
        .map(|kind| metrics[format!("pinniped_{kind}_review_cache_entries_limit")].as_u64());
    ensure!(entries.is_u64() && limits.iter().all(|limit| *limit > Some(0)), "{metrics:#}");
    ensure!(!state.to_string().contains(READER), "the page contains a user");
    Ok(())
}

#[tokio::test]
async fn the_state_of_a_pod_shows_its_connections_caches_and_slow_requests() {
    let Some(installed) = installed::shared("debug-state").await else { return };
    installed.allow(READER, json!([{"nonResourceURLs": ["/debug/state"], "verbs": ["get"]}])).await;
    let reader = installed.certificate(READER, None);
    let pods = installed.running();
    assert!(!pods.is_empty());
    for (name, pod) in &pods {
        let address = pod.ip.unwrap();
        let tcp = TcpStream::connect((address, PROXY_PORT)).await.unwrap();
        let open = wire::connect_unverified(tcp, EXTERNAL_NAME, &[b"http/1.1"], Some(&reader)).await.unwrap();
        let audit_id = format!("slow-{name}");
        wait::until_ok(TIME_LIMIT, format!("the state of {name}"), async || {
            // Slower requests of other tests may replace it, so that it is sent again.
            let delay = longer_than_all(&page(address, &reader).await?)?;
            slow_login(address, &audit_id, delay).await?;
            check(&page(address, &reader).await?, name, &audit_id)
        })
        .await
        .unwrap();
        drop(open);
    }
    wait::until_ok(NEW_LEADER_LIMIT, "all pods to know the leader", async || {
        let mut leaders = Vec::new();
        for (name, pod) in &pods {
            let election = page(pod.ip.context("no address")?, &reader).await?["leaderElection"].take();
            ensure!(election["holder"].is_string() && election["lastRenewal"].is_string(), "{election}");
            if election["isLeader"] == true {
                ensure!(election["holder"] == name.as_str(), "{election}");
                leaders.push(name);
            }
        }
        ensure!(leaders.len() == 1, "{leaders:?}");
        Ok(())
    })
    .await
    .unwrap();
}

const STARTED: &str = "the Concierge has started";

/// Returns the log lines with a message of the pods that have never had a log level: another test
/// sets one for a while.
fn lines(installed: &Installed, namespace: &str, message: &str) -> Vec<Value> {
    let has = |line: &Value, message: &str| line["message"] == message;
    let lines_of = |pod: &RunningPod| {
        let text = std::fs::read_to_string(&pod.log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.collect::<Vec<Value>>()
    };
    let logs = installed.pods().list(namespace).into_iter().map(|(_, pod)| lines_of(&pod));
    let has_level =
        |line: &Value| (has(line, STARTED) && line["logLevel"] != "") || has(line, "configuration changed");
    let logs = logs.filter(|lines| !lines.iter().any(has_level));
    logs.flatten().filter(|line| has(line, message)).collect()
}

#[tokio::test]
async fn start_leadership_strategies_and_authenticators_are_logged_without_a_log_level() {
    let Some(installed) = installed::shared("log-lines").await else { return };
    // A pod logs the line when it has read the objects of the cluster.
    let started = wait::until(TIME_LIMIT, "the line of a pod", async || {
        let started = lines(&installed, CONCIERGE, STARTED);
        (!started.is_empty()).then_some(started)
    })
    .await
    .unwrap();
    for line in &started {
        assert_eq!(line["level"], "info", "{line}");
        assert_eq!(
            (&line["aggregatedAPIPort"], &line["impersonationProxyPort"]),
            (&json!(10250), &json!(8444))
        );
    }
    let find = async |message: &str, members: Value| {
        wait::until_ok(NEW_LEADER_LIMIT, format!("the line {message:?}"), async || {
            let all = lines(&installed, CONCIERGE, message);
            let members = members.as_object().context("no object")?;
            let fits = |line: &&Value| members.iter().all(|(key, value)| line[key] == *value);
            let line = all.iter().find(fits).with_context(|| format!("{members:?}: {all:#?}"))?;
            ensure!(line["level"] == "info", "{line}");
            Ok(())
        })
        .await
        .unwrap();
    };
    find("leadership changed", json!({"leader": true})).await;
    let strategy = json!({"object": "CredentialIssuer/pinniped-concierge-config",
        "strategy": "ImpersonationProxy", "status": "Success", "reason": "Listening"});
    find("strategy of the CredentialIssuer", strategy).await;
    let authenticator = json!({"controller": "webhookcachefiller-controller",
        "object": format!("WebhookAuthenticator/{LOCAL_USER_AUTHENTICATOR}")});
    find("added an authenticator", authenticator).await;
    // Lines of this level that are not about such changes are missing.
    assert_eq!(lines(&installed, CONCIERGE, "starting impersonation proxy"), <[Value; 0]>::default());

    let ready = lines(&installed, LOCAL_USER_AUTHENTICATOR, "webhook is ready");
    assert!(!ready.is_empty());
    for line in &ready {
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        for key in ["address", "concurrentPasswordChecks", "connectionsLimit", "leaderElection", "version"] {
            assert!(keys.contains(&key), "{key}: {line}");
        }
        assert_eq!(line["level"], "debug");
    }
}
