use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::client::Body;
use pinniped_gateway_api::HttpProxy;
use pinniped_gateway_routing::addresses;
use pinniped_gateway_routing::status::HttpProxyValidation;

use super::*;

/// An API server with the same response to every request, and the requests that it received.
#[derive(Clone, Default)]
struct Server {
    requests: Arc<Mutex<Vec<(Method, String)>>>,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Server {
    fn client(
        &self,
        respond: impl Fn(&Method, &str, usize) -> (u16, Value) + Clone + Send + 'static,
    ) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, respond) = (server.clone(), respond.clone());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let nth = {
                let mut requests = server.requests.lock().unwrap();
                requests.push((method.clone(), path.clone()));
                requests.len()
            };
            async move {
                let open = server.open.fetch_add(1, Ordering::SeqCst) + 1;
                server.most.fetch_max(open, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                server.open.fetch_sub(1, Ordering::SeqCst);
                let (code, body) = respond(&method, &path, nth);
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        kube::Client::new(service, "ns")
    }

    fn requests(&self) -> Vec<(Method, String)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn refusal(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"}))
}

fn proxy(name: &str, version: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "projectcontour.io/v1", "kind": "HTTPProxy", "spec": {}, "status": status,
        "metadata": {"namespace": "ns", "name": name, "generation": 1, "resourceVersion": version},
    })
}

fn name(name: &str) -> Name {
    Name { namespace: "ns".to_owned(), name: name.to_owned() }
}

/// Returns a writer for these proxies, which are all valid.
fn writer(
    client: kube::Client,
    names: &[String],
    leader: bool,
) -> (StatusWriter, watch::Sender<Arc<ValidationResults>>) {
    let read = |name: &String| serde_json::from_value::<HttpProxy>(proxy(name, "1", &Value::Null)).unwrap();
    let mut observed = Observed::default();
    observed.http_proxies = Mirrors::of(names.iter().map(read).collect());
    let validation = HttpProxyValidation { generation: Some(1), ..HttpProxyValidation::default() };
    let http_proxies = names.iter().map(|it| (name(it), validation.clone())).collect();
    let (sender, results) =
        watch::channel(Arc::new(ValidationResults { http_proxies, ..ValidationResults::default() }));
    let writer = StatusWriter {
        client,
        observed: Arc::new(observed),
        results,
        addresses: watch::channel(addresses("10.0.0.1")).1,
        leadership: Leadership::fixed(leader),
        trigger: Trigger::new(),
        metrics: GatewayMetrics::default(),
        memory: Memory::default(),
    };
    (writer, sender)
}

/// Returns the object that the API server has stored after a complete write.
fn stored(name: &str, version: &str) -> Value {
    let object: HttpProxy = serde_json::from_value(proxy(name, "1", &Value::Null)).unwrap();
    let validation = HttpProxyValidation { generation: Some(1), ..HttpProxyValidation::default() };
    let now = jiff::Timestamp::now();
    let status = super::super::statuses::http_proxy(&object, &validation, &addresses("10.0.0.1"), now);
    proxy(name, version, &serde_json::to_value(status).unwrap())
}

fn path(name: &str) -> String {
    format!("/apis/projectcontour.io/v1/namespaces/ns/httpproxies/{name}")
}

fn put(name: &str) -> (Method, String) {
    (Method::PUT, format!("{}/status", path(name)))
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes_and_concurrency_is_limited() {
    let names: Vec<String> = (0..100).map(|n| format!("p{n:03}")).collect();
    let server = Server::default();
    let client = server.client(|_, path, _| (200, stored(path.split('/').nth(7).unwrap(), "2")));
    let (mut follower, _kept) = writer(client.clone(), &names, false);
    follower.pass().await;
    assert_eq!(server.requests(), []);
    let (mut leader, _kept) = writer(client, &names, true);
    assert_eq!(leader.pass().await.failures, 0);
    assert_eq!(server.requests().len(), 100);
    assert_eq!(server.most.load(Ordering::SeqCst), MAX_CONCURRENT_WRITES);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_retried_with_the_current_object() {
    let server = Server::default();
    let client = server.client(|method, _, nth| match (method, nth) {
        (&Method::GET, _) => (200, proxy("p", "5", &Value::Null)),
        (_, 1) => refusal(409),
        _ => (200, stored("p", "6")),
    });
    let (mut leader, _kept) = writer(client, &["p".to_owned()], true);
    assert_eq!(leader.pass().await.failures, 0);
    assert_eq!(server.requests(), [put("p"), (Method::GET, path("p")), put("p")]);
}

#[tokio::test(start_paused = true)]
async fn retries_after_conflicts_are_limited() {
    let server = Server::default();
    let client = server.client(|method, _, _| match *method {
        Method::GET => (200, proxy("p", "5", &Value::Null)),
        _ => refusal(409),
    });
    let (mut leader, _kept) = writer(client, &["p".to_owned()], true);
    assert_eq!(leader.pass().await.failures, 1);
    assert_eq!(server.requests().len(), 2 * MAX_ATTEMPTS as usize);
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_retried_once_a_minute_and_not_for_each_object() {
    let names: Vec<String> = (0..100).map(|n| format!("p{n:03}")).collect();
    let server = Server::default();
    let client = server.client(|_, _, _| refusal(403));
    let (mut leader, _kept) = writer(client, &names, true);
    for round in 0..3 {
        let result = leader.pass().await;
        assert!(result.skipped && result.failures == 0, "{round}");
        let requests = server.requests().len();
        // First the concurrent writes, then none.
        assert!(
            if round == 0 { (1..=MAX_CONCURRENT_WRITES).contains(&requests) } else { requests == 0 },
            "{round}: {requests}"
        );
    }
    tokio::time::advance(AFTER_FORBIDDEN).await;
    leader.pass().await;
    assert!(!server.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_status_is_not_written_again_until_the_object_changes() {
    let server = Server::default();
    let client = server.client(|_, _, _| (200, proxy("p", "2", &Value::Null)));
    let (mut leader, _kept) = writer(client, &["p".to_owned()], true);
    leader.pass().await;
    assert_eq!(server.requests(), [put("p")]);
    let arrives = |version: &str| serde_json::from_value(proxy("p", version, &Value::Null)).unwrap();
    leader.observed.http_proxies.set(arrives("2"));
    leader.pass().await;
    assert_eq!(server.requests(), []);
    leader.observed.http_proxies.set(arrives("3"));
    leader.pass().await;
    assert_eq!(server.requests(), [put("p")]);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_not_repeated_before_its_watch_event_arrives() {
    let server = Server::default();
    let client = server.client(|_, _, _| (200, stored("p", "2")));
    let (mut leader, _kept) = writer(client, &["p".to_owned()], true);
    for _ in 0..3 {
        leader.pass().await;
    }
    assert_eq!(server.requests(), [put("p")]);
    leader.observed.http_proxies.set(serde_json::from_value(stored("p", "2")).unwrap());
    leader.pass().await;
    assert!(server.requests().is_empty() && leader.memory.with(|learned| learned.settled.is_empty()));
    // Another client has removed the status.
    leader.observed.http_proxies.set(serde_json::from_value(proxy("p", "3", &Value::Null)).unwrap());
    leader.pass().await;
    assert_eq!(server.requests(), [put("p")]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_does_not_affect_other_objects() {
    let server = Server::default();
    let client = server.client(|_, path, _| match path.contains("/a/") {
        true => refusal(422),
        false => (200, stored("b", "2")),
    });
    let (mut leader, _kept) = writer(client, &["a".to_owned(), "b".to_owned()], true);
    let result = leader.pass().await;
    assert_eq!(result.failures, 1);
    assert!(result.first.unwrap().starts_with("HTTPProxy ns/a: "));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn newer_validation_results_end_a_pass() {
    let names: Vec<String> = (0..100).map(|n| format!("p{n:03}")).collect();
    let server = Server::default();
    let client = server.client(|_, _, _| refusal(500));
    let (mut leader, sender) = writer(client, &names, true);
    let passing = tokio::spawn(async move { leader.pass().await.failures });
    tokio::time::sleep(Duration::from_millis(15)).await;
    sender.send_replace(Arc::default());
    assert!((1..=2 * MAX_CONCURRENT_WRITES).contains(&passing.await.unwrap()));
}
