//! Audit events of requests to the proxy.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::body;
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use pinniped_kube_audit::auditor::{AuditParams, Auditor, LogParams};
use pinniped_kube_audit::bodies::BodyParams;
use pinniped_kube_audit::file::FileParams;
use pinniped_kube_audit::queue::BatchParams;
use pinniped_kube_audit::webhook::{ClientParams, WebhookMode, WebhookParams};
use pinniped_pki::tls::CipherRestriction;
use pinniped_test_support::audit_log;
use pinniped_test_support::issuer::{Reply, ScriptedIssuer};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;

use crate::api_server::{Script, json_response};
use crate::world::{Options, World, eventually};

const RESULT: &str = "impersonation-proxy.concierge.pinniped.dev/result";

const NOT_JSON: &str = "omitted: not JSON, JSON with more than 60 levels, or compressed";

const BODIES: BodyParams = BodyParams { max_bytes: 1000 };

/// A log of all requests.
pub(crate) struct AuditLog {
    folder: tempfile::TempDir,
}

impl AuditLog {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    fn auditor(&self, rules: &str) -> Arc<Auditor> {
        let policy_file = self.folder.path().join("policy.yaml");
        let policy = format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{rules}]}}");
        std::fs::write(&policy_file, policy).unwrap();
        let file = FileParams { path: self.path(), max_age: None, max_backups: 0, max_size: 1 << 30 };
        let log = Some(LogParams { file, batch: None });
        let params = AuditParams { policy_file, bodies: BODIES, log, webhook: None };
        Arc::new(Auditor::open(&params, client_params()).unwrap().0)
    }

    pub(crate) async fn world(&self, script: Script, options: Options) -> World {
        World::start_with(script, Options { audit: Some(self.auditor("{level: Metadata}")), ..options }).await
    }

    fn events(&self) -> Vec<Value> {
        audit_log::events(&self.path(), "").unwrap()
    }

    /// Waits for the events of a request, and returns their stages and the last event.
    pub(crate) async fn of(&self, audit_id: &str, last_stage: &str) -> (Vec<String>, Value) {
        let events =
            || self.events().into_iter().filter(|event| event["auditID"] == audit_id).collect::<Vec<_>>();
        eventually("the last event", || events().iter().any(|event| event["stage"] == last_stage)).await;
        let events = events();
        let stages = events.iter().map(|event| event["stage"].as_str().unwrap().to_owned()).collect();
        (stages, events.last().unwrap().clone())
    }
}

fn client_params() -> ClientParams {
    ClientParams {
        proxies: ProxyEnvironment::default(),
        ciphers: CipherRestriction::default(),
        user_agent: http::HeaderValue::from_static("test"),
    }
}

#[tokio::test]
async fn an_allowed_request_has_the_status_of_the_api_server_and_no_secret() {
    let script = Script {
        handler: Arc::new(|_| {
            Box::pin(async {
                let mut response = json_response(&json!({"kind": "Status"}));
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            })
        }),
        ..Script::default()
    };
    let log = AuditLog::new();
    let world = log.world(script, Options::default()).await;
    let client = world.certificate("pinny", &["developers"]);
    let headers = [
        ("audit-id", "one"),
        ("user-agent", "kubectl"),
        ("x-forwarded-for", "192.0.2.1, invalid"),
        ("cookie", "SECRET"),
    ];
    client.get_with("/api/v1/namespaces/ns/pods/p?pretty=1", &headers).await;
    let (stages, mut event) = log.of("one", "ResponseComplete").await;
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
    let credential = event["user"]["extra"]["authentication.kubernetes.io/credential-id"][0].take();
    assert!(credential.as_str().unwrap().starts_with("X509SHA256="), "{credential}");
    let fields = event.as_object_mut().unwrap();
    for time in ["requestReceivedTimestamp", "stageTimestamp"] {
        assert_eq!(fields.remove(time).unwrap().as_str().unwrap().len(), "2026-01-01T00:00:00.000000Z".len());
    }
    fields["user"].as_object_mut().unwrap().remove("extra");
    assert_eq!(
        event,
        json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "one",
            "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/ns/pods/p?pretty=1", "verb": "get",
            "user": {"username": "pinny", "groups": ["developers", "system:authenticated"]},
            "sourceIPs": ["192.0.2.1", "127.0.0.1"], "userAgent": "kubectl",
            "objectRef": {"resource": "pods", "namespace": "ns", "name": "p", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 404},
            "annotations": {
                "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "", (RESULT): "forwarded",
            },
        })
    );
    assert!(!std::fs::read_to_string(log.path()).unwrap().contains("SECRET"));
}

#[tokio::test]
async fn an_unauthenticated_request_has_one_event_without_a_user_and_without_its_token() {
    let log = AuditLog::new();
    let world = log.world(Script::default(), Options::default()).await;
    world.foreign_certificate("u").get_with("/api/v1/pods", &[("audit-id", "a")]).await;
    let token = [("audit-id", "b"), ("authorization", "Bearer SECRET")];
    world.anonymous().get_with("/api/v1/pods", &token).await;
    world.anonymous().get_with("/%zz", &[("audit-id", "c")]).await;
    for (id, code, uri) in [("a", 401, "/api/v1/pods"), ("b", 401, "/api/v1/pods"), ("c", 400, "/%zz")] {
        let (stages, event) = log.of(id, "ResponseStarted").await;
        assert_eq!(stages, ["ResponseStarted"], "{id}");
        assert_eq!((&event["user"], &event["responseStatus"]["code"]), (&json!({}), &json!(code)), "{id}");
        assert_eq!(event["requestURI"], uri);
    }
    assert!(!std::fs::read_to_string(log.path()).unwrap().contains("SECRET"));
}

#[tokio::test]
async fn forbidden_requests_have_the_decision_and_the_reason() {
    let log = AuditLog::new();
    let world =
        log.world(Script { policy: Arc::new(|_| false), ..Script::default() }, Options::default()).await;
    world.certificate("pinny", &[]).get_with("/api/v1/pods", &[("audit-id", "a")]).await;
    let (stages, event) = log.of("a", "ResponseComplete").await;
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
    let status = &event["responseStatus"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")));
    assert!(status["message"].as_str().unwrap().starts_with("pods is forbidden: User \"pinny\" cannot list"));
    assert_eq!(
        event["annotations"],
        json!({
            "authorization.k8s.io/decision": "forbid",
            "authorization.k8s.io/reason": "decision made by impersonation-proxy.concierge.pinniped.dev",
            (RESULT): "forbidden",
        })
    );
}

#[tokio::test]
async fn events_name_the_client_and_the_user_that_it_impersonates() {
    let log = AuditLog::new();
    let world = log.world(Script::default(), Options::default()).await;
    let headers = [("audit-id", "a"), ("impersonate-user", "other"), ("impersonate-group", "g")];
    world.certificate("admin", &["system:masters"]).get_with("/api/v1/pods", &headers).await;
    let (_, event) = log.of("a", "ResponseComplete").await;
    assert_eq!(event["user"]["username"], "admin");
    assert_eq!(event["impersonatedUser"]["username"], "other");
    assert_eq!(event["impersonatedUser"]["groups"], json!(["g", "system:authenticated"]));
}

#[tokio::test]
async fn refused_and_abandoned_requests_are_logged() {
    let script = Script {
        handler: Arc::new(|request| {
            Box::pin(async move {
                if request.uri().path() == "/slow" {
                    std::future::pending::<()>().await;
                }
                json_response(&json!({}))
            })
        }),
        ..Script::default()
    };
    let in_flight = InFlightLimits {
        short: 1,
        mutating: None,
        waiting: 0,
        queue_timeout: Duration::from_millis(1),
        long_running: 1,
    };
    let log = AuditLog::new();
    let world = log.world(script, Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    let slow = client.get_with("/slow?timeout=20s", &[("audit-id", "slow")]);
    let quick = async {
        eventually("the slow request arrives", || !world.api.seen().is_empty()).await;
        client.get_with("/quick", &[("audit-id", "quick")]).await
    };
    tokio::select! {
        _ = slow => panic!("the slow request must not end"),
        refused = quick => assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS),
    }
    for (id, code, result) in [("quick", 429, "overloaded"), ("slow", 499, "abandoned")] {
        let (stages, event) = log.of(id, "ResponseComplete").await;
        assert_eq!(stages, ["RequestReceived", "ResponseComplete"], "{id}");
        assert_eq!(event["responseStatus"]["code"], code);
        assert_eq!(event["annotations"][RESULT], result);
    }
}

#[tokio::test]
async fn a_watch_and_an_upgraded_connection_have_an_event_at_their_beginning_and_at_their_end() {
    let script = Script {
        handler: Arc::new(|mut request| {
            Box::pin(async move {
                if !request.headers().contains_key("upgrade") {
                    let (sender, body) = tokio::sync::mpsc::channel::<Bytes>(1);
                    sender.send(Bytes::from("event")).await.unwrap();
                    // The response ends when the client closes it.
                    tokio::spawn(async move { sender.closed().await });
                    let frames = futures::stream::unfold(body, |mut body| async {
                        let data = body.recv().await?;
                        Some((Ok::<_, pinniped_http_server::BoxError>(http_body::Frame::data(data)), body))
                    });
                    return Response::new(pinniped_http_server::Body::new(http_body_util::StreamBody::new(
                        frames,
                    )));
                }
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let mut io = TokioIo::new(upgrade.await.unwrap());
                    tokio::io::copy(&mut io, &mut tokio::io::sink()).await.unwrap();
                    io.shutdown().await.unwrap();
                });
                let mut response = Response::new(body::empty());
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                for (name, value) in [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")] {
                    response.headers_mut().insert(name, http::HeaderValue::from_static(value));
                }
                response
            })
        }),
        ..Script::default()
    };
    let log = AuditLog::new();
    let world = log.world(script, Options::default()).await;
    let client = world.certificate("u", &[]);
    let both = ["RequestReceived", "ResponseStarted"];

    let request =
        client.request("/api/v1/pods?watch=1").header("audit-id", "watch").body(body::empty()).unwrap();
    let mut sender = client.h2().await;
    let mut response = sender.send_request(request).await.unwrap().into_body();
    response.frame().await.unwrap().unwrap();
    assert_eq!(log.of("watch", "ResponseStarted").await.0, both);
    drop((response, sender));
    let (stages, event) = log.of("watch", "ResponseComplete").await;
    assert_eq!(stages, ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    assert_eq!((&event["verb"], &event["responseStatus"]["code"]), (&json!("watch"), &json!(200)));

    let request = Request::post("/api/v1/namespaces/n/pods/p/exec?command=sh")
        .header("host", "proxy.example")
        .header("audit-id", "exec")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .body(body::empty())
        .unwrap();
    let mut response = client.h1().await.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    io.write_all(b"input").await.unwrap();
    eventually("the tunnel", || world.proxy.tunnels() == 1).await;
    assert_eq!(log.of("exec", "ResponseStarted").await.0, both);
    io.shutdown().await.unwrap();
    drop(io);
    let (stages, event) = log.of("exec", "ResponseComplete").await;
    assert_eq!(stages, ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    assert_eq!(event["responseStatus"]["code"], 101);
    assert_eq!(event["annotations"][RESULT], "upgraded");
}

#[tokio::test]
async fn the_policy_decides_which_events_are_written() {
    let log = AuditLog::new();
    let audit = log.auditor(
        "{level: None, users: [quiet]}, {level: Metadata, omitStages: [RequestReceived], verbs: [list]}",
    );
    let world =
        World::start_with(Script::default(), Options { audit: Some(audit), ..Options::default() }).await;
    for (user, path, id) in
        [("quiet", "/api/v1/pods", "a"), ("u", "/version", "b"), ("u", "/api/v1/pods", "c")]
    {
        world.certificate(user, &[]).get_with(path, &[("audit-id", id)]).await;
    }
    assert_eq!(log.of("c", "ResponseComplete").await.0, ["ResponseComplete"]);
    assert_eq!(log.events().len(), 1);
}

/// With a webhook in mode `blocking`, a request is neither forwarded nor complete before the
/// webhook has its events.
#[tokio::test]
async fn a_request_waits_for_a_webhook_in_mode_blocking() {
    const PATH: &str = "/audit?timeout=30s";
    let receiver = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await.unwrap();
    let accepts = || receiver.reply(PATH, Reply::Full(StatusCode::OK, "text/plain", String::new()));
    let fails = || receiver.reply(PATH, Reply::not_found());
    let log = AuditLog::new();
    let (policy_file, kubeconfig) = (log.folder.path().join("p.yaml"), log.folder.path().join("kubeconfig"));
    std::fs::write(
        &policy_file,
        "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [
           {level: Metadata, verbs: [head], omitStages: [RequestReceived]}, {level: Metadata}]}",
    )
    .unwrap();
    std::fs::write(log.folder.path().join("ca.crt"), &receiver.ca_pem).unwrap();
    let cluster = json!({"server": format!("{}/audit", receiver.url()), "certificate-authority": "ca.crt"});
    let content = json!({
        "current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
    });
    std::fs::write(&kubeconfig, content.to_string()).unwrap();
    let batch = BatchParams { buffer_size: 100, max_size: 100, max_wait: Duration::from_secs(3600) };
    let initial_backoff = Duration::from_millis(500);
    let webhook = WebhookParams { kubeconfig, mode: WebhookMode::Blocking, batch, initial_backoff };
    let params = AuditParams { policy_file, bodies: BODIES, log: None, webhook: Some(webhook) };
    let (auditor, mut workers) = Auditor::open(&params, client_params()).unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(workers.pop().unwrap().run(stop.clone()));
    let stages = |id: &str| -> Vec<String> {
        let lists = receiver.seen(PATH).into_iter().map(|seen| serde_json::from_slice(&seen.body).unwrap());
        let events = lists.flat_map(|list: Value| list["items"].as_array().unwrap().clone());
        events
            .filter(|event| event["auditID"] == id)
            .map(|event| event["stage"].as_str().unwrap().to_owned())
            .collect()
    };

    let forwarded = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&forwarded);
    let script = Script {
        handler: Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { json_response(&json!({"kind": "Status"})) })
        }),
        ..Script::default()
    };
    let world =
        World::start_with(script, Options { audit: Some(Arc::new(auditor)), ..Options::default() }).await;
    let client = world.certificate("pinny", &[]);
    fails();
    {
        let headers = [("audit-id", "one")];
        let mut request = std::pin::pin!(client.get_with("/api/v1/pods", &headers));
        tokio::select! {
            _ = &mut request => panic!("the webhook has no event"),
            () = eventually("an attempt", || !stages("one").is_empty()) => {}
        }
        assert_eq!(forwarded.load(Ordering::SeqCst), 0);
        accepts();
        request.await;
    }
    assert_eq!(forwarded.load(Ordering::SeqCst), 1);
    assert_eq!(stages("one").last().unwrap(), "ResponseComplete");
    // Without the event of the first stage, the end of the response waits.
    client.get_with("/api/v1/pods", &[("audit-id", "two")]).await;
    assert_eq!(stages("two"), ["RequestReceived", "ResponseComplete"]);
    world.foreign_certificate("u").get_with("/api/v1/pods", &[("audit-id", "three")]).await;
    assert_eq!(stages("three"), ["ResponseStarted"]);
    // No server reads the body of a response to HEAD, so the response waits.
    fails();
    {
        let mut sender = client.h1().await;
        let request = Request::head("https://proxy.example/metrics")
            .header("host", "proxy.example")
            .header("audit-id", "four")
            .body(body::empty())
            .unwrap();
        let mut response = std::pin::pin!(sender.send_request(request));
        tokio::select! {
            _ = &mut response => panic!("the webhook has no event"),
            () = eventually("two attempts", || stages("four").len() > 1) => {}
        }
        accepts();
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
    stop.cancel();
    worker.await.unwrap();
}

const REQUEST_OBJECT: &str = "impersonation-proxy.concierge.pinniped.dev/request-object";
const RESPONSE_OBJECT: &str = "impersonation-proxy.concierge.pinniped.dev/response-object";

/// Sends a request with a body, and returns the last event.
async fn event_of(
    log: &AuditLog,
    client: &crate::world::Client<'_>,
    path: &str,
    content_type: &str,
    body: &str,
) -> Value {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let id = format!("body-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let request = Request::post(format!("https://proxy.example{path}"))
        .header("host", "proxy.example")
        .header("audit-id", &id)
        .header("content-type", content_type)
        .body(body::full(body.to_owned()))
        .unwrap();
    let response = client.h1().await.send_request(request).await.unwrap();
    response.into_body().collect().await.unwrap();
    log.of(&id, "ResponseComplete").await.1
}

#[tokio::test]
async fn events_have_the_bodies_that_the_policy_requires_if_they_are_small_json() {
    const CREATED: &str = r#"{"kind": "Pod", "metadata": {"name": "p", "managedFields": [{}]}}"#;
    const PODS: &str = "/api/v1/namespaces/n/pods";
    const JSON: &str = "application/json";
    let script = Script {
        handler: Arc::new(|request| {
            Box::pin(async move {
                let path = request.uri().path().to_owned();
                request.into_body().collect().await.unwrap();
                let (kind, text) = match path.as_str() {
                    "/large" => (JSON, format!("\"{}\"", "x".repeat(1000))),
                    "/text" => ("text/plain", "ok".to_owned()),
                    _ => (JSON, CREATED.to_owned()),
                };
                let mut response = Response::new(body::full(text));
                response.headers_mut().insert("content-type", http::HeaderValue::from_static(kind));
                response
            })
        }),
        ..Script::default()
    };
    let log = AuditLog::new();
    let audit = log.auditor(
        "{level: Request, users: [request]}, {level: Metadata, users: [metadata]}, \
         {level: RequestResponse, omitManagedFields: true, users: [omits]}, {level: RequestResponse}",
    );
    let world = World::start_with(script, Options { audit: Some(audit), ..Options::default() }).await;
    let [all, omits, request, metadata] =
        ["all", "omits", "request", "metadata"].map(|user| world.certificate(user, &[]));
    let sent = json!({"kind": "Pod", "metadata": {"managedFields": []}, "text": "a\nb"});
    let text = serde_json::to_string_pretty(&sent).unwrap();

    let event = event_of(&log, &all, PODS, JSON, &text).await;
    assert_eq!((&event["level"], &event["requestObject"]), (&json!("RequestResponse"), &sent));
    assert_eq!(event["responseObject"], serde_json::from_str::<Value>(CREATED).unwrap());
    let event = event_of(&log, &omits, PODS, "application/merge-patch+json", &text).await;
    assert_eq!(event["requestObject"], json!({"kind": "Pod", "metadata": {}, "text": "a\nb"}));
    assert_eq!(event["responseObject"], json!({"kind": "Pod", "metadata": {"name": "p"}}));
    let event = event_of(&log, &request, PODS, JSON, &text).await;
    assert_eq!((&event["requestObject"], event.get("responseObject")), (&sent, None));
    let event = event_of(&log, &metadata, PODS, JSON, &text).await;
    assert_eq!((event.get("requestObject"), event.get("responseObject")), (None, None));

    let large = format!("\"{}\"", "x".repeat(1000));
    let protobuf = "application/vnd.kubernetes.protobuf";
    let login = "/apis/login.concierge.tuna.io/v1alpha1/tokencredentialrequests";
    for (path, content_type, body, truncated, request_omitted, response_omitted) in [
        ("/a", JSON, large.as_str(), Some("true"), Some("omitted: larger than the limit"), None),
        ("/large", JSON, "{}", Some("true"), None, Some("omitted: larger than the limit")),
        ("/a", protobuf, "k8s", None, Some(NOT_JSON), None),
        ("/a", JSON, "{", None, Some(NOT_JSON), None),
        ("/text", JSON, "", None, None, Some(NOT_JSON)),
        (
            login,
            JSON,
            r#"{"spec": {"token": "SECRET"}}"#,
            None,
            Some("omitted: contains a credential"),
            Some("omitted: contains a credential"),
        ),
    ] {
        let event = event_of(&log, &all, path, content_type, body).await;
        let annotations = &event["annotations"];
        assert_eq!(annotations["audit.k8s.io/truncated"].as_str(), truncated, "{event}");
        assert_eq!(annotations[REQUEST_OBJECT].as_str(), request_omitted, "{event}");
        assert_eq!(annotations[RESPONSE_OBJECT].as_str(), response_omitted, "{event}");
        assert_eq!(event.get("requestObject").is_some(), request_omitted.is_none() && !body.is_empty());
        assert_eq!(event.get("responseObject").is_some(), response_omitted.is_none());
    }
    assert!(!std::fs::read_to_string(log.path()).unwrap().contains("SECRET"));
}
