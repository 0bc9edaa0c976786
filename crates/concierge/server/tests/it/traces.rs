//! Traces of the Concierge and of a real API server in a real OpenTelemetry collector.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_concierge::config;
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_concierge_authentication::webhook::WebhookClient;
use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfigWatch;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_metrics::Metrics;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_program::downward_api::PodInfo;
use pinniped_tasks::{TaskGroup, TaskMonitor};
use pinniped_test_support::collector::{self, Collector};
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams, free_port};
use pinniped_test_support::issuer::{Reply, ScriptedIssuer, Seen};
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::concierge::{Options, concierge_with, control_plane_with, token};

const PATIENCE: Duration = Duration::from_secs(60);
const READ: &str = "https://localhost/api/v1/namespaces/default/configmaps?limit=1";
const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
/// The name of the authenticator, and the requests that its webhook gets.
const WEBHOOK: &str = "webhook";
const REVIEW: &str = "/?timeout=30s";
const CLIENT_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// The name of the Concierge and of the API server in traces.
const CONCIERGE: &str = "pinniped-concierge";
const API_SERVER: &str = "apiserver";

/// Starts a webhook that accepts each token.
async fn webhook() -> anyhow::Result<ScriptedIssuer> {
    let webhook = ScriptedIssuer::start(Ipv4Addr::LOCALHOST.into()).await?;
    let user = json!({"username": "pinny", "groups": ["developers"]});
    let review = json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1beta1",
        "status": {"authenticated": true, "user": user}});
    webhook.reply(REVIEW, Reply::json(&review));
    Ok(webhook)
}

/// Adds the authenticator of a webhook.
fn add(registry: &Registry, webhook: &ScriptedIssuer) -> anyhow::Result<()> {
    let roots = Roots::Bundle(CaBundle::from_pem(webhook.ca_pem.as_bytes())?);
    let (proxies, ciphers) = (ProxyEnvironment::default(), CipherRestriction::default());
    let client = WebhookClient::new(&webhook.url().parse()?, roots, &proxies, &ciphers)?;
    let key = AuthenticatorKey {
        api_group: "authentication.concierge.pinniped.dev".to_owned(),
        kind: "WebhookAuthenticator".to_owned(),
        name: WEBHOOK.to_owned(),
    };
    registry.insert(key, String::new(), Arc::new(client));
    Ok(())
}

/// Registers the aggregated API, which listens on this port of the loopback address.
async fn register(plane: &ControlPlane, port: u16) -> anyhow::Result<()> {
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "concierge", "namespace": "default"},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1alpha1.login.concierge.pinniped.dev"},
            "spec": {
                "group": "login.concierge.pinniped.dev", "version": "v1alpha1",
                "groupPriorityMinimum": 9900, "versionPriority": 15, "insecureSkipTLSVerify": true,
                "service": {"name": "concierge", "namespace": "default", "port": port},
            },
        },
    ]});
    plane.kubectl().apply(&objects.to_string()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_the_concierge_and_of_a_real_api_server_refer_to_each_other() -> anyhow::Result<()> {
    let Some(program) = collector::program() else { return Ok(()) };
    let (dir, grpc) = (tempfile::tempdir()?, free_port()?);
    let tracing = dir.path().join("tracing.yaml");
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "TracingConfiguration",
        "endpoint": format!("127.0.0.1:{grpc}"), "samplingRatePerMillion": 1_000_000});
    std::fs::write(&tracing, configuration.to_string())?;
    // Before the API server, which would otherwise lose spans until it connects again.
    let collector = Collector::start(&program, dir.path(), grpc).await?;
    let plane = control_plane_with(ControlPlaneParams {
        extra_apiserver_args: vec![
            format!("--tracing-config-file={}", tracing.display()),
            // Lets the API server reach a Service of type ExternalName.
            "--enable-aggregator-routing=false".to_owned(),
        ],
        ..ControlPlaneParams::default()
    })
    .await?;

    let data = STANDARD.encode(&collector.ca_pem);
    let config = config::parse(&format!(
        "{}\ntracing: {{endpoint: {}, samplingRatePerMillion: 1000000, certificateAuthorityData: {data}}}\n",
        include_str!("../../testdata/names.yaml"),
        collector.endpoint,
    ))?;
    let pod = PodInfo {
        namespace: "concierge".to_owned(),
        name: "concierge-0".to_owned(),
        labels: BTreeMap::new(),
    };
    let (metrics, mut tasks) = (Metrics::new(), TaskGroup::new(&TaskMonitor::default()));
    let tracer =
        pinniped_concierge::traces::start(&config, &pod, &ProxyEnvironment::default(), &metrics, &mut tasks)?;
    ensure!(tracer.is_some());
    let admin = plane.client().await?;
    let cluster_auth = ClusterAuthConfigWatch::load(admin.clone()).await?;
    let account = token(&admin).await?;
    let (webhook, registry) = (webhook().await?, Registry::new());
    add(&registry, &webhook)?;
    let options = Options { cluster_auth, tracer, registry, ..Options::default() };
    let concierge = concierge_with(&plane, account, options).await?;

    // A request through the proxy, whose client is an ordinary user.
    let tcp = TcpStream::connect(concierge.proxy.local_addr()).await?;
    let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], Some(&concierge.reader)).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let traceparent = format!("00-{CLIENT_TRACE}-00f067aa0ba902b7-01");
    let request = Request::get(READ).header("traceparent", traceparent).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    ensure!(response.status().is_success(), "{}", response.status());
    response.into_body().collect().await?;

    // A login through the API server, whose client is a member of system:masters.
    register(&plane, concierge.api.local_addr().port()).await?;
    let login = json!({"apiVersion": "login.concierge.pinniped.dev/v1alpha1", "kind": "TokenCredentialRequest",
        "spec": {"token": "token", "authenticator": {
            "apiGroup": "authentication.concierge.pinniped.dev", "kind": "WebhookAuthenticator", "name": WEBHOOK}}});
    let response = wait::until_ok(PATIENCE, "a login through the API server", async || {
        let request = Request::post(LOGIN).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&login)?)?;
        anyhow::Ok(admin.request::<Value>(request).await?)
    })
    .await?;
    ensure!(response["status"]["credential"]["clientCertificateData"].is_string(), "{response}");

    let read = collector
        .span(CONCIERGE, "the request", |span| span.name == "GET /api/v1/namespaces/{:namespace}/configmaps")
        .await?;
    ensure!(read.parent.is_empty() && read.trace != CLIENT_TRACE, "{read:?}");
    ensure!(read.links.iter().any(|(trace, _)| trace == CLIENT_TRACE), "{read:?}");
    for (name, received) in [
        ("Forward", "GET /api/v1/namespaces/{:namespace}/configmaps"),
        ("SubjectAccessReview", "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"),
    ] {
        let call =
            collector.span(CONCIERGE, name, |span| span.name == name && span.parent == read.id).await?;
        ensure!(call.trace == read.trace, "{call:?}");
        // The API server does not trust service accounts, so it begins a trace with a link.
        let target = (call.trace.clone(), call.id.clone());
        let what = format!("{name} in the API server");
        let received = collector
            .span(API_SERVER, &what, |span| span.name == received && span.links.contains(&target))
            .await?;
        ensure!(received.trace != call.trace, "{received:?}");
    }

    let login = collector.span(CONCIERGE, "the login", |span| span.name == format!("POST {LOGIN}")).await?;
    ensure!(login.links.is_empty(), "{login:?}");
    let call =
        collector.span(API_SERVER, "the call of the aggregated API", |span| span.id == login.parent).await?;
    ensure!(call.trace == login.trace, "{call:?} {login:?}");
    let received = collector
        .span(API_SERVER, "the login in the API server", |span| {
            span.trace == login.trace && span.name == format!("POST {LOGIN}")
        })
        .await?;
    let below = async |name: &'static str| {
        collector.span(CONCIERGE, name, |span| span.name == name && span.parent == login.id).await
    };
    let (review, issue) = (below("WebhookTokenReview").await?, below("IssueCredential").await?);
    ensure!(review.trace == login.trace && issue.trace == login.trace, "{review:?} {issue:?}");
    let reviews = webhook.seen(REVIEW);
    let context = format!("00-{}-{}-01", login.trace, review.id);
    let is_of_the_login = |seen: &Seen| seen.headers.get("traceparent").is_some_and(|sent| *sent == context);
    ensure!(reviews.iter().any(is_of_the_login), "{reviews:?} {review:?}");
    eprintln!("one trace: {received:?}\n  {call:?}\n  {login:?}\n  {review:?}\n  {issue:?}");

    tasks.stop().await;
    let text = metrics.text()?;
    ensure!(text.contains("pinniped_trace_spans_total{result=\"failed\"} 0"), "{text}");
    ensure!(!text.contains("pinniped_trace_spans_total{result=\"exported\"} 0"), "{text}");
    Ok(())
}
