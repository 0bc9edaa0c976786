//! Audit events of requests to the proxy.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use pinniped_http_server::body;
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use pinniped_kube_audit::auditor::{AuditParams, Auditor, LogParams};
use pinniped_kube_audit::file::FileParams;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::api_server::{Script, json_response};
use crate::world::{Options, World, eventually};

const RESULT: &str = "impersonation-proxy.concierge.pinniped.dev/result";

/// A log of all requests.
struct AuditLog {
    folder: tempfile::TempDir,
}

impl AuditLog {
    fn new() -> Self {
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
        Arc::new(Auditor::open(&AuditParams { policy_file, log }).unwrap().0)
    }

    async fn world(&self, script: Script, options: Options) -> World {
        World::start_with(script, Options { audit: Some(self.auditor("{level: Metadata}")), ..options }).await
    }

    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for the events of a request, and returns their stages and the last event.
    async fn of(&self, audit_id: &str, last_stage: &str) -> (Vec<String>, Value) {
        let events =
            || self.events().into_iter().filter(|event| event["auditID"] == audit_id).collect::<Vec<_>>();
        eventually("the last event", || events().iter().any(|event| event["stage"] == last_stage)).await;
        let events = events();
        let stages = events.iter().map(|event| event["stage"].as_str().unwrap().to_owned()).collect();
        (stages, events.last().unwrap().clone())
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
