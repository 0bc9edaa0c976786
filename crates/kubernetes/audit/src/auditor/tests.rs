use std::fs;
use std::path::Path;
use std::time::Duration;

use http::HeaderValue;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_pki::tls::CipherRestriction;
use pinniped_test_support::log_events::LogEvents;
use tracing::Level;

use super::*;
use crate::event::tests::event;

const POLICY: &str = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}";

fn batch(buffer_size: usize) -> BatchParams {
    BatchParams { buffer_size, max_size: 3, max_wait: Duration::from_secs(30) }
}

fn open(folder: &Path, path: &Path, batch: Option<BatchParams>) -> (Auditor, Vec<Worker>) {
    let policy_file = folder.join("policy.yaml");
    fs::write(&policy_file, POLICY).unwrap();
    let file = FileParams { path: path.to_owned(), max_age: None, max_backups: 0, max_size: 1 << 20 };
    let log = Some(LogParams { file, batch });
    Auditor::open(
        &AuditParams { policy_file, bodies: BodyParams { max_bytes: 100 }, log, webhook: None },
        client(),
    )
    .unwrap()
}

fn client() -> ClientParams {
    ClientParams {
        proxies: ProxyEnvironment::default(),
        ciphers: CipherRestriction::default(),
        user_agent: HeaderValue::from_static("test"),
    }
}

fn write(auditor: &Auditor, audit_id: &str) {
    assert!(auditor.write(event(audit_id)).is_none());
}

/// Returns the audit IDs in a file.
fn ids(path: &Path) -> Vec<String> {
    let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| event(line)["auditID"].as_str().unwrap().to_owned()).collect()
}

fn count(auditor: &Auditor, series: &str) -> u64 {
    let metrics = Metrics::new();
    auditor.register_metrics(&metrics);
    let text = metrics.text().unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap()
}

const RECEIVED: &str = r#"pinniped_audit_events_total{backend="log"}"#;

fn lost(reason: &str) -> String {
    format!(r#"pinniped_audit_events_lost_total{{backend="log",reason="{reason}"}}"#)
}

#[test]
fn a_blocking_log_has_each_event_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let (auditor, workers) = open(folder.path(), &path, None);
    assert!(workers.is_empty());
    for id in ["a", "b"] {
        write(&auditor, id);
        assert_eq!(ids(&path).last().unwrap(), id);
    }
    assert_eq!(count(&auditor, RECEIVED), 2);
}

#[test]
fn events_that_a_full_disk_refuses_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (auditor, _) = open(folder.path(), Path::new("/dev/full"), None);
    for id in ["a", "b"] {
        write(&auditor, id);
    }
    assert_eq!((count(&auditor, RECEIVED), count(&auditor, &lost("failed"))), (0, 2));
}

#[tokio::test]
async fn a_worker_writes_the_events_that_wait_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let (auditor, mut workers) = open(folder.path(), &path, Some(batch(100)));
    let stop = CancellationToken::new();
    let worker = tokio::spawn(workers.pop().unwrap().run(stop.clone()));
    // A complete batch is written without a wait.
    ["a", "b", "c"].into_iter().for_each(|id| write(&auditor, id));
    while ids(&path).len() < 3 {
        tokio::task::yield_now().await;
    }
    write(&auditor, "d");
    stop.cancel();
    worker.await.unwrap();
    assert_eq!(ids(&path), ["a", "b", "c", "d"]);
    assert_eq!(count(&auditor, RECEIVED), 4);
}

#[tokio::test]
async fn a_worker_that_stops_while_a_batch_is_ready_writes_the_incomplete_one_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let (auditor, mut workers) = open(folder.path(), &path, Some(batch(100)));
    let stop = CancellationToken::new();
    ["a", "b", "c", "d"].into_iter().for_each(|id| write(&auditor, id));
    stop.cancel();
    workers.pop().unwrap().run(stop).await;
    assert_eq!(ids(&path), ["a", "b", "c", "d"]);
}

#[test]
fn events_are_lost_counted_and_logged_when_the_buffer_is_full_or_the_time_is_over() {
    let lines = LogEvents::record(&["pinniped_kube_audit"], Level::ERROR);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    // The only thread for blocking work waits until the end of the test, so no write completes.
    let (_end, end) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || end.recv());
    let _entered = runtime.enter();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let (auditor, mut workers) = open(folder.path(), &path, Some(batch(5)));
    for _ in 0..7 {
        write(&auditor, "a");
    }
    assert_eq!(count(&auditor, &lost("buffer_full")), 2);
    let worker = workers.pop().unwrap().run(CancellationToken::new());
    let mut worker = Box::pin(worker);
    // The worker has begun, and is dropped before it is done.
    assert!(futures_poll(&mut worker));
    drop(worker);
    assert_eq!(count(&auditor, &lost("shutdown")), 5);
    for (reason, all) in [("buffer_full", 2), ("shutdown", 5)] {
        let events = lines.all().into_iter().filter(|line| line.field("reason") == reason);
        let logged: u64 = events.map(|line| line.field("events").parse::<u64>().unwrap()).sum();
        assert_eq!(logged, all, "{reason}");
    }
}

/// Polls a future once, and returns whether it is pending.
fn futures_poll<F: Future + Unpin>(future: &mut F) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context).is_pending()
}
