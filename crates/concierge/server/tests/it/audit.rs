//! The audit log of the impersonation proxy beside that of a real API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_concierge::config::parse;
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use pinniped_kube_audit::auditor::Auditor;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::concierge::{Concierge, Options, READER, client_pair, concierge_with, control_plane, token};

const PATIENCE: Duration = Duration::from_secs(30);
const READ: &str = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt?pretty=0";
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1";
/// A user without permissions.
const STRANGER: &str = "stranger";

/// Sends a GET request over a connection of its own, and returns the status and the body.
async fn get(
    concierge: &Concierge,
    pair: Option<&Pair>,
    path: &str,
    headers: &[(&str, &str)],
    driver: &mut JoinSet<()>,
) -> anyhow::Result<(u16, Incoming)> {
    let tcp = TcpStream::connect(concierge.proxy.local_addr()).await?;
    let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], pair).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
    driver.spawn(async move { drop(connection.await) });
    let mut request = Request::get(format!("https://localhost{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Empty::<bytes::Bytes>::new())?).await?;
    let (head, body) = response.into_parts();
    // The connection stays open as long as the body.
    driver.spawn(async move {
        let _open = sender;
        std::future::pending::<()>().await;
    });
    Ok((head.status.as_u16(), body))
}

/// Waits for the last event of a request.
async fn event(log: &Path, audit_id: &str, stage: &str) -> anyhow::Result<Value> {
    wait::until(PATIENCE, format!("the event {stage} of {audit_id}"), async || {
        let text = std::fs::read_to_string(log).ok()?;
        let mut events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.find(|event| event["auditID"] == audit_id && event["stage"] == stage)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_in_the_log_and_forwarded_ones_as_in_the_log_of_the_api_server() -> anyhow::Result<()>
{
    let folder = tempfile::tempdir()?;
    let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    std::fs::write(&policy, "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}")?;
    let keys = format!(
        "audit: {{proxiedRequests: {{policyFile: '{}', log: {{path: '{}', batchMaxSize: 1}}}}}}\n",
        policy.display(),
        log.display()
    );
    let config = parse(&format!("{}{keys}", include_str!("../../testdata/names.yaml")))?;
    let audit = config.proxied_requests_audit.as_ref().context("audit is configured")?;
    let (auditor, workers) = Auditor::open(audit)?;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    workers.into_iter().for_each(|worker| drop(running.spawn(worker.run(stop.clone()))));

    let plane = control_plane().await?;
    let token = token(&plane.client().await?).await?;
    let in_flight = InFlightLimits { long_running: 1, ..InFlightLimits::PROXY };
    let options = Options { in_flight, audit: Some(Arc::new(auditor)), ..Options::default() };
    let concierge = concierge_with(&plane, token, options).await?;
    let (reader, stranger) = (Some(&concierge.reader), client_pair(&concierge.ca, STRANGER)?);
    let mut driver = JoinSet::new();

    let (status, mut watch) = get(&concierge, reader, WATCH, &[("audit-id", "watch")], &mut driver).await?;
    ensure!(status == 200, "{status}");
    watch.frame().await.context("the first event of the watch")??;
    let as_other = [("audit-id", "as"), ("impersonate-user", READER), ("impersonate-group", "team")];
    for ((pair, user), path, headers, expected) in [
        ((reader, Some(READER)), READ, &[("audit-id", "allowed")][..], 200),
        ((reader, Some(READER)), READ, &as_other[..], 200),
        ((reader, Some(READER)), WATCH, &[("audit-id", "overloaded")], 429),
        ((Some(&stranger), Some(STRANGER)), READ, &[("audit-id", "forbidden")], 403),
        ((None, None), READ, &[("audit-id", "unknown"), ("authorization", "Bearer SECRET")], 401),
    ] {
        let (status, body) = get(&concierge, pair, path, headers, &mut driver).await?;
        ensure!(status == expected, "{status} for {headers:?}");
        body.collect().await?;
        let stage = if expected == 401 { "ResponseStarted" } else { "ResponseComplete" };
        let found = event(&log, headers[0].1, stage).await?;
        ensure!(found["responseStatus"]["code"] == expected, "{found}");
        ensure!(found["user"]["username"].as_str() == user, "{found}");
    }
    ensure!(event(&log, "as", "ResponseComplete").await?["impersonatedUser"]["username"] == READER);

    // The API server sees the forwarded requests with the same identifier and object.
    for id in ["allowed", "as"] {
        let fits = |event: &Value| event["auditID"] == id && event["stage"] == "ResponseComplete";
        let theirs = plane.await_audit_event("the request at the API server", id, fits).await?;
        let ours = event(&log, id, "ResponseComplete").await?;
        for member in ["level", "requestURI", "verb", "objectRef", "userAgent"] {
            ensure!(ours[member] == theirs[member], "{member}: {ours}\n{theirs}");
        }
        ensure!(ours["responseStatus"] == theirs["responseStatus"], "{ours}\n{theirs}");
        ensure!(theirs["impersonatedUser"]["username"] == READER, "{theirs}");
        let members = |event: &Value| event.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>());
        let unknown: Vec<String> = members(&ours)
            .unwrap_or_default()
            .into_iter()
            .filter(|member| member != "impersonatedUser" && theirs.get(member).is_none())
            .collect();
        ensure!(unknown.is_empty(), "members that the API server does not have: {unknown:?}");
    }
    ensure!(!std::fs::read_to_string(&log)?.contains("SECRET"), "the log has no token");

    drop(watch);
    driver.shutdown().await;
    let ended = event(&log, "watch", "ResponseComplete").await?;
    ensure!(ended["verb"] == json!("watch"), "{ended}");
    stop.cancel();
    running.join_all().await;
    Ok(())
}
