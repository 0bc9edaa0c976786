//! The audit log and the audit webhook of the impersonation proxy beside those of a real API
//! server.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_concierge::config::parse;
use pinniped_concierge::traces;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use pinniped_kube_audit::auditor::Auditor;
use pinniped_kube_audit::webhook::ClientParams;
use pinniped_pki::tls::CipherRestriction;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::control_plane::ControlPlaneParams;
use pinniped_test_support::issuer::{Reply, ScriptedIssuer, Seen};
use pinniped_test_support::{audit_log, wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::concierge::{Concierge, Options, READER, client_pair, concierge_with, control_plane_with, token};

const PATIENCE: Duration = Duration::from_secs(30);
const READ: &str = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt?pretty=0";
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1";
/// Without a field manager, the object has no managed fields.
const CREATE: &str = "/api/v1/namespaces/default/configmaps?fieldManager=test";
/// The body of the request to [`CREATE`].
/// Without a value, the API server would not write managed fields.
const CREATED: &str =
    r#"{"apiVersion":"v1","data":{"key":"value"},"kind":"ConfigMap","metadata":{"name":"audited"}}"#;
const PATCH: &str = "/api/v1/namespaces/default/configmaps/audited";
const PATCHED: &str = r#"{"metadata":{"labels":{"a":"b"},"managedFields":[{}]}, "data": {"text": "1\n<2>"}}"#;
/// The paths of the receiver for the proxy and for the API server, and the query of both.
const OURS: &str = "/ours";
const THEIRS: &str = "/theirs";
const QUERY: &str = "?timeout=30s";
/// A user without permissions.
const STRANGER: &str = "stranger";

/// Sends a request over a connection of its own, which changes an object at [`CREATE`] and
/// [`PATCH`]. Returns the status and the body.
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
    let (method, body, content_type) = match path {
        CREATE => (Method::POST, CREATED, "application/json"),
        PATCH => (Method::PATCH, PATCHED, "application/merge-patch+json"),
        _ => (Method::GET, "", "application/json"),
    };
    let mut request = Request::builder()
        .method(method)
        .uri(format!("https://localhost{path}"))
        .header("content-type", content_type);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Full::new(bytes::Bytes::from(body)))?).await?;
    let (head, body) = response.into_parts();
    // The connection stays open as long as the body.
    driver.spawn(async move {
        let _open = sender;
        std::future::pending::<()>().await;
    });
    Ok((head.status.as_u16(), body))
}

/// Writes the kubeconfig of a webhook at a path of the receiver.
fn kubeconfig(file: &Path, receiver: &ScriptedIssuer, path: &str) -> anyhow::Result<()> {
    let cluster = json!({
        "server": format!("{}{path}", receiver.url()),
        "certificate-authority-data": STANDARD.encode(&receiver.ca_pem),
    });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "audit",
        "contexts": [{"name": "audit", "context": {"cluster": "audit", "user": "audit"}}],
        "clusters": [{"name": "audit", "cluster": cluster}],
        "users": [{"name": "audit", "user": {"token": "sent"}}],
    });
    Ok(std::fs::write(file, config.to_string())?)
}

/// Waits for an event that the receiver got, and returns its request and the event.
async fn received(
    receiver: &ScriptedIssuer,
    path: &str,
    fits: impl Fn(&Value) -> bool,
) -> anyhow::Result<(Seen, Value)> {
    wait::until(PATIENCE, format!("an event at {path}"), async || {
        receiver.seen(path).into_iter().find_map(|seen| {
            let mut list: Value = serde_json::from_slice(&seen.body).ok()?;
            let event = list["items"].as_array_mut()?.iter_mut().find(|event| fits(event))?.take();
            Some((seen, event))
        })
    })
    .await
}

/// Returns the parts of a request that do not depend on its events.
fn request(seen: &Seen) -> anyhow::Result<Value> {
    let mut list: Value = serde_json::from_slice(&seen.body)?;
    let has_types =
        list["items"].as_array().is_some_and(|items| items.iter().any(|item| item.get("kind").is_some()));
    list["items"] = json!([]);
    let field = |name: &str| seen.headers.get(name).and_then(|value| value.to_str().ok());
    Ok(json!({
        "method": seen.method.as_str(), "list": list, "has types": has_types,
        "content-type": field("content-type"), "accept": field("accept"), "authorization": field("authorization"),
    }))
}

/// Waits for the last event of a request.
async fn event(log: &Path, audit_id: &str, stage: &str) -> anyhow::Result<Value> {
    wait::until(PATIENCE, format!("the event {stage} of {audit_id}"), async || {
        let mut events = audit_log::events(log, audit_id).ok()?.into_iter();
        events.find(|event| event["auditID"] == audit_id && event["stage"] == stage)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_in_the_log_and_forwarded_ones_as_in_the_log_of_the_api_server() -> anyhow::Result<()>
{
    let folder = tempfile::tempdir()?;
    let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    let rules = json!([
        {"level": "RequestResponse", "verbs": ["create"]},
        {"level": "RequestResponse", "verbs": ["patch"], "omitManagedFields": true},
        {"level": "Metadata"},
    ]);
    let content = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules});
    std::fs::write(&policy, content.to_string())?;
    let receiver = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await?;
    for path in [OURS, THEIRS] {
        receiver.reply(&format!("{path}{QUERY}"), Reply::Full(StatusCode::OK, "text/plain", String::new()));
    }
    let (our_webhook, their_webhook) = (folder.path().join("ours"), folder.path().join("theirs"));
    kubeconfig(&our_webhook, &receiver, OURS)?;
    kubeconfig(&their_webhook, &receiver, THEIRS)?;
    let keys = format!(
        "audit: {{proxiedRequests: {{policyFile: '{}', log: {{path: '{}', batchMaxSize: 1}}, \
         webhook: {{kubeconfigFile: '{}', batchMaxWaitSeconds: 1}}}}}}\n",
        policy.display(),
        log.display(),
        our_webhook.display()
    );
    let config = parse(&format!("{}{keys}", include_str!("../../testdata/names.yaml")))?;
    let audit = config.proxied_requests_audit.as_ref().context("audit is configured")?;
    let client = ClientParams {
        proxies: ProxyEnvironment::default(),
        ciphers: CipherRestriction::default(),
        user_agent: traces::user_agent()?,
    };
    let (auditor, workers) = Auditor::open(audit, client)?;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    workers.into_iter().for_each(|worker| drop(running.spawn(worker.run(stop.clone()))));

    let extra_apiserver_args = vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-webhook-config-file={}", their_webhook.display()),
        "--audit-webhook-batch-max-wait=1s".to_owned(),
    ];
    let plane =
        control_plane_with(ControlPlaneParams { extra_apiserver_args, ..ControlPlaneParams::default() })
            .await?;
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
        ((reader, Some(READER)), CREATE, &[("audit-id", "created")], 201),
        ((reader, Some(READER)), PATCH, &[("audit-id", "patched")], 200),
        ((reader, Some(READER)), WATCH, &[("audit-id", "overloaded")], 429),
        ((Some(&stranger), Some(STRANGER)), READ, &[("audit-id", "forbidden")], 403),
        ((None, None), READ, &[("audit-id", "unknown"), ("authorization", "Bearer SECRET")], 401),
    ] {
        let (status, body) = get(&concierge, pair, path, headers, &mut driver).await?;
        ensure!(status == expected, "{status} for {headers:?}");
        body.collect().await?;
        let stage = if expected == 401 { "ResponseStarted" } else { "ResponseComplete" };
        let found = event(&log, headers[0].1, stage).await?;
        let fits = |event: &Value| event["auditID"] == headers[0].1 && event["stage"] == stage;
        let (_, mut sent) = received(&receiver, &format!("{OURS}{QUERY}"), fits).await?;
        sent["kind"] = found["kind"].clone();
        sent["apiVersion"] = found["apiVersion"].clone();
        ensure!(sent == found, "{sent}\n{found}");
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

    // Bodies are those that the API server logs.
    for (id, has_managed_fields) in [("created", true), ("patched", false)] {
        let fits = |event: &Value| event["auditID"] == id && event["stage"] == "ResponseComplete";
        let mut theirs = plane.await_audit_event("the request at the API server", id, fits).await?;
        // Before Kubernetes 1.34, a decoded object without this time has `null`.
        let metadata = theirs.pointer_mut("/requestObject/metadata").and_then(Value::as_object_mut);
        if let Some(metadata) =
            metadata.filter(|metadata| metadata.get("creationTimestamp") == Some(&Value::Null))
        {
            metadata.remove("creationTimestamp");
        }
        let ours = event(&log, id, "ResponseComplete").await?;
        for member in ["level", "requestObject", "responseObject"] {
            ensure!(ours[member] == theirs[member], "{id}, {member}: {ours}\n{theirs}");
        }
        let managed_fields = &ours["responseObject"]["metadata"]["managedFields"];
        ensure!(managed_fields.is_array() == has_managed_fields, "{ours}");
    }

    // The webhook of the API server gets such lists, too.
    let any = |event: &Value| event["stage"] == "ResponseComplete";
    let (ours, _) = received(&receiver, &format!("{OURS}{QUERY}"), any).await?;
    let (theirs, _) = received(&receiver, &format!("{THEIRS}{QUERY}"), any).await?;
    let (ours, theirs) = (request(&ours)?, request(&theirs)?);
    ensure!(ours == theirs, "{ours}\n{theirs}");

    drop(watch);
    driver.shutdown().await;
    let ended = event(&log, "watch", "ResponseComplete").await?;
    ensure!(ended["verb"] == json!("watch"), "{ended}");
    stop.cancel();
    running.join_all().await;
    Ok(())
}
