//! The audit webhook with a real HTTPS server that has faults, and the audit log on the standard
//! output of a real program.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, StatusCode};
use jiff::Timestamp;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_audit::auditor::{AuditParams, Auditor, BLOCKING_LIMIT, Delivery, LogParams, Worker};
use pinniped_kube_audit::bodies::BodyParams;
use pinniped_kube_audit::event::{Event, Request, RequestText};
use pinniped_kube_audit::file::FileParams;
use pinniped_kube_audit::policy::{Level, Stage};
use pinniped_kube_audit::queue::BatchParams;
use pinniped_kube_audit::webhook::{ClientParams, WebhookMode, WebhookParams};
use pinniped_kube_request::attributes::Attributes;
use pinniped_metrics::Metrics;
use pinniped_pki::tls::CipherRestriction;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::issuer::{Reply, ScriptedIssuer, Seen};
use pinniped_test_support::wait;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(30);
/// The path of the receiver, with the query of the API server.
const PATH: &str = "/audit?timeout=30s";
const POLICY: &str = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}";
/// A delay that no test waits for.
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(1);

/// A receiver, and a folder with the files of an auditor.
struct Setting {
    folder: tempfile::TempDir,
    receiver: ScriptedIssuer,
}

/// An auditor, and its running worker.
struct Running {
    auditor: Auditor,
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

fn accepts() -> Reply {
    Reply::Full(StatusCode::OK, "text/plain", "ok".to_owned())
}

fn fails() -> Reply {
    Reply::Full(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "no".to_owned())
}

fn batch() -> WebhookParams {
    WebhookParams {
        kubeconfig: PathBuf::new(),
        mode: WebhookMode::Batch,
        batch: BatchParams { buffer_size: 5, max_size: 2, max_wait: Duration::from_millis(10) },
        initial_backoff: SHORT,
    }
}

fn blocking() -> WebhookParams {
    WebhookParams { mode: WebhookMode::Blocking, ..batch() }
}

impl Setting {
    async fn new(reply: Reply) -> Self {
        let receiver = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await.unwrap();
        receiver.reply(PATH, reply);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.yaml"), POLICY).unwrap();
        std::fs::write(folder.path().join("ca.crt"), &receiver.ca_pem).unwrap();
        Self { folder, receiver }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Opens an auditor whose kubeconfig has these fields of a user.
    fn open(&self, webhook: WebhookParams, user: &str, log: Option<LogParams>) -> (Auditor, Vec<Worker>) {
        let kubeconfig = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("{}/audit", self.receiver.url()), "certificate-authority": "ca.crt",
            }}],
            "users": [{"name": "u", "user": serde_json::from_str::<Value>(user).unwrap()}],
        });
        std::fs::write(self.path("kubeconfig"), kubeconfig.to_string()).unwrap();
        let webhook = Some(WebhookParams { kubeconfig: self.path("kubeconfig"), ..webhook });
        let params = AuditParams {
            policy_file: self.path("policy.yaml"),
            bodies: BodyParams { max_bytes: 100 },
            log,
            webhook,
        };
        let client = ClientParams {
            proxies: ProxyEnvironment::default(),
            ciphers: CipherRestriction::default(),
            user_agent: http::HeaderValue::from_static("test"),
        };
        Auditor::open(&params, client).unwrap()
    }

    fn run(&self, webhook: WebhookParams) -> Running {
        let (auditor, mut workers) = self.open(webhook, "{}", None);
        let stop = CancellationToken::new();
        let worker = tokio::spawn(workers.pop().unwrap().run(stop.clone()));
        Running { auditor, stop, worker }
    }

    fn seen(&self) -> Vec<Seen> {
        self.receiver.seen(PATH)
    }

    /// Returns the audit IDs of each request.
    fn received(&self) -> Vec<Vec<String>> {
        self.seen().iter().map(ids).collect()
    }
}

fn ids(request: &Seen) -> Vec<String> {
    let list: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(list["kind"], "EventList");
    let items = list["items"].as_array().unwrap().iter();
    items.map(|event| event["auditID"].as_str().unwrap().to_owned()).collect()
}

impl Running {
    async fn await_count(&self, series: &str, count: u64) {
        let waited = wait::until_ok(PATIENCE, format!("{series} {count}"), async || {
            let found = value(&self.auditor, series);
            anyhow::ensure!(found == count, "{found}");
            Ok(())
        });
        waited.await.unwrap();
    }

    async fn stop(self) {
        self.stop.cancel();
        self.worker.await.unwrap();
    }
}

fn write(auditor: &Auditor, audit_id: &str) -> Option<Delivery> {
    let attributes = Attributes::NonResource { verb: "get".to_owned(), path: "/".to_owned() };
    let received = Timestamp::now();
    let request = RequestText::new(Request {
        audit_id,
        uri: "/",
        attributes: &attributes,
        source_ips: Vec::new(),
        user_agent: "",
        received,
    });
    auditor.write(Event {
        level: Level::Metadata,
        stage: Stage::ResponseComplete,
        request: request.into(),
        user: None,
        impersonated_user: None,
        response: None,
        request_object: None,
        response_object: None,
        time: received,
        annotations: Vec::new(),
    })
}

fn write_all(auditor: &Auditor, ids: &[&str]) {
    assert!(ids.iter().all(|id| write(auditor, id).is_none()));
}

fn value(auditor: &Auditor, series: &str) -> u64 {
    let metrics = Metrics::new();
    auditor.register_metrics(&metrics);
    let text = metrics.text().unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap()
}

const RECEIVED: &str = r#"pinniped_audit_events_total{backend="webhook"}"#;

fn lost(reason: &str) -> String {
    format!(r#"pinniped_audit_events_lost_total{{backend="webhook",reason="{reason}"}}"#)
}

fn in_file(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|event| event["auditID"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn events_arrive_in_batches_with_the_credential_and_are_in_the_file_as_well() {
    let setting = Setting::new(accepts()).await;
    let path = setting.path("audit.log");
    let file = FileParams { path: path.clone(), max_age: None, max_backups: 0, max_size: 1 << 20 };
    let log = Some(LogParams { file, batch: None });
    let (auditor, mut workers) = setting.open(batch(), r#"{"token": "secret"}"#, log);
    write_all(&auditor, &["a", "b", "c"]);
    assert_eq!(in_file(&path), ["a", "b", "c"]);
    let stop = CancellationToken::new();
    let worker = tokio::spawn(workers.pop().unwrap().run(stop.clone()));
    let running = Running { auditor, stop, worker };
    running.await_count(RECEIVED, 3).await;
    assert_eq!(setting.received(), [vec!["a", "b"], vec!["c"]]);
    let request = &setting.seen()[0];
    let field = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    assert_eq!(request.method, Method::POST);
    assert_eq!(field("authorization"), "Bearer secret");
    assert_eq!((field("content-type"), field("user-agent")), ("application/json".into(), "test".into()));
    running.stop().await;
}

#[tokio::test]
async fn a_failed_request_is_repeated_until_the_receiver_accepts_it() {
    let mut setting = Setting::new(fails()).await;
    let running = setting.run(WebhookParams { initial_backoff: Duration::from_millis(50), ..batch() });
    write_all(&running.auditor, &["a"]);
    wait::until(PATIENCE, "an attempt", async || (!setting.seen().is_empty()).then_some(())).await.unwrap();
    // A restart of the receiver changes nothing.
    setting.receiver.stop().await;
    setting.receiver.reply(PATH, accepts());
    setting.receiver.restart().await.unwrap();
    running.await_count(RECEIVED, 1).await;
    assert_eq!(setting.received().last().unwrap(), &["a"]);
    running.stop().await;
}

#[tokio::test]
async fn events_that_five_attempts_do_not_deliver_are_lost_and_later_ones_arrive() {
    let mut setting = Setting::new(fails()).await;
    let running = setting.run(batch());
    write_all(&running.auditor, &["a", "b"]);
    running.await_count(&lost("failed"), 2).await;
    assert_eq!(setting.received(), vec![vec!["a", "b"]; 5]);
    // Nothing listens.
    setting.receiver.stop().await;
    write_all(&running.auditor, &["c"]);
    running.await_count(&lost("failed"), 3).await;
    setting.receiver.restart().await.unwrap();
    setting.receiver.reply(PATH, accepts());
    write_all(&running.auditor, &["d"]);
    running.await_count(RECEIVED, 1).await;
    assert_eq!(setting.received().last().unwrap(), &["d"]);
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_with_a_wrong_certificate_gets_nothing() {
    let setting = Setting::new(accepts()).await;
    let foreign = Authority::new("foreign").unwrap();
    std::fs::write(setting.path("ca.crt"), foreign.certificate_pem).unwrap();
    let running = setting.run(batch());
    write_all(&running.auditor, &["a"]);
    running.await_count(&lost("failed"), 1).await;
    assert!(setting.seen().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn the_buffer_is_bounded_while_the_receiver_is_silent_and_the_rest_is_counted_at_the_end() {
    let setting = Setting::new(Reply::Never).await;
    let running = setting.run(batch());
    write_all(&running.auditor, &["a", "b"]);
    wait::until(PATIENCE, "a request", async || (!setting.seen().is_empty()).then_some(())).await.unwrap();
    let start = Instant::now();
    write_all(&running.auditor, &["c", "d", "e", "f", "g", "h", "i"]);
    assert!(start.elapsed() < BLOCKING_LIMIT);
    assert_eq!(value(&running.auditor, &lost("buffer_full")), 2);
    running.stop.cancel();
    running.worker.abort();
    assert!(running.worker.await.unwrap_err().is_cancelled());
    assert_eq!(value(&running.auditor, &lost("shutdown")), 7);
}

#[tokio::test]
async fn a_worker_that_stops_sends_the_rest_without_a_pause() {
    let setting = Setting::new(fails()).await;
    let running = setting.run(WebhookParams { initial_backoff: LONG, ..batch() });
    write_all(&running.auditor, &["a", "b"]);
    wait::until(PATIENCE, "a request", async || (!setting.seen().is_empty()).then_some(())).await.unwrap();
    write_all(&running.auditor, &["c"]);
    setting.receiver.reply(PATH, accepts());
    running.stop.cancel();
    running.await_count(RECEIVED, 3).await;
    running.worker.await.unwrap();
    assert_eq!(setting.received(), [vec!["a", "b"], vec!["a", "b"], vec!["c"]]);
}

#[tokio::test]
async fn in_mode_blocking_a_request_waits_until_the_receiver_has_the_event() {
    let setting = Setting::new(accepts()).await;
    let batch = BatchParams { max_wait: LONG, ..batch().batch };
    let running = setting.run(WebhookParams { batch, ..blocking() });
    assert!(running.auditor.has_deliveries());
    for id in ["a", "b"] {
        write(&running.auditor, id).unwrap().await;
        assert_eq!(setting.received().last().unwrap(), &[id]);
    }
    assert_eq!(value(&running.auditor, RECEIVED), 2);
    // Events of requests at the same time share a request.
    let waits = ["c", "d", "e"].map(|id| write(&running.auditor, id).unwrap());
    for wait in waits {
        wait.await;
    }
    assert_eq!(setting.received().concat(), ["a", "b", "c", "d", "e"]);
    running.stop().await;
}

#[tokio::test]
async fn a_request_waits_for_a_limited_time_and_not_at_all_for_a_lost_event() {
    let setting = Setting::new(Reply::Never).await;
    let running = setting.run(blocking());
    let start = Instant::now();
    write(&running.auditor, "a").unwrap().await;
    assert!(start.elapsed() >= BLOCKING_LIMIT);
    let waits = ["b", "c", "d", "e", "f"].map(|id| write(&running.auditor, id));
    assert!(waits.iter().all(Option::is_some));
    assert!(write(&running.auditor, "g").is_none());
    assert_eq!(value(&running.auditor, &lost("buffer_full")), 1);
    running.worker.abort();
}

#[tokio::test]
async fn a_list_that_the_receiver_refuses_is_divided_and_not_repeated() {
    let refused = || Reply::Full(StatusCode::BAD_REQUEST, "text/plain", String::new());
    let setting = Setting::new(refused()).await;
    let params = BatchParams { max_size: 3, ..batch().batch };
    let running = setting.run(WebhookParams { batch: params, initial_backoff: LONG, ..batch() });
    write_all(&running.auditor, &["a", "b", "c"]);
    running.await_count(&lost("failed"), 3).await;
    assert_eq!(setting.received(), [vec!["a", "b", "c"], vec!["a"], vec!["b", "c"], vec!["b"], vec!["c"]]);
    setting.receiver.reply(PATH, accepts());
    write_all(&running.auditor, &["d"]);
    running.await_count(RECEIVED, 1).await;
    running.stop().await;
}

/// Set for a process of this executable that writes events to its standard output.
const WRITER: &str = "PINNIPED_AUDIT_TEST_WRITER";

#[tokio::test]
async fn the_path_of_a_hyphen_writes_each_event_as_a_line_of_standard_output() {
    if std::env::var_os(WRITER).is_some() {
        return write_to_stdout().await;
    }
    let name = "the_path_of_a_hyphen_writes_each_event_as_a_line_of_standard_output";
    let folder = tempfile::tempdir().unwrap();
    let mut program = tokio::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name, "--nocapture"]).env(WRITER, "1").current_dir(&folder).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, program.output()).await.unwrap().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stdout}{stderr}");
    // The test harness writes to standard output, too, also at the beginning of a line.
    let events = stdout.lines().filter_map(|line| line.find("{\"kind\":\"Event\"").map(|at| &line[at..]));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let ids: Vec<_> = events.iter().map(|event| event["auditID"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b", "c"], "{stdout}");
    for event in &events {
        assert_eq!((&event["apiVersion"], &event["verb"]), (&json!("audit.k8s.io/v1"), &json!("get")));
    }
    assert!(!stderr.contains("auditID"), "{stderr}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "a file");
}

/// Writes three events with an auditor whose path is `-`.
async fn write_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let policy_file = folder.path().join("policy.yaml");
    std::fs::write(&policy_file, POLICY).unwrap();
    let file = FileParams { path: PathBuf::from("-"), max_age: None, max_backups: 0, max_size: 1 };
    let batch = BatchParams { buffer_size: 5, max_size: 2, max_wait: SHORT };
    let log = Some(LogParams { file, batch: Some(batch) });
    let bodies = BodyParams { max_bytes: 100 };
    let params = AuditParams { policy_file, bodies, log, webhook: None };
    let client = ClientParams {
        proxies: ProxyEnvironment::default(),
        ciphers: CipherRestriction::default(),
        user_agent: http::HeaderValue::from_static("test"),
    };
    let (auditor, mut workers) = Auditor::open(&params, client).unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(workers.pop().unwrap().run(stop.clone()));
    write_all(&auditor, &["a", "b", "c"]);
    stop.cancel();
    worker.await.unwrap();
}
