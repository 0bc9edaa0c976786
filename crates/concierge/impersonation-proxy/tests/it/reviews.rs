//! Slow reviews, and clients that cause many reviews: other clients do not wait for those.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::SendRequest;
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api_server::{Delay, Script};
use crate::world::{Client, Options, PATIENCE, ReceivedResponse, World, eventually};

/// More than the limits of concurrent reviews and of short requests.
const FLOOD: usize = 1000;
/// Streams per connection of the flood.
const STREAMS: usize = 100;
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Delays the reviews that `fits` matches until it is opened.
struct Gate {
    open: watch::Sender<bool>,
    waiting: Arc<AtomicUsize>,
}

/// Decrements the counter when dropped, also when the server drops the request because its stream
/// was reset.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn before(fits: impl Fn(&Value) -> bool + Send + Sync + 'static) -> (Self, Delay) {
        let (open, opened) = watch::channel(false);
        let waiting = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&waiting);
        let delay: Delay = Arc::new(move |spec| {
            if !fits(spec) {
                return Box::pin(async {});
            }
            let mut opened = opened.clone();
            counter.fetch_add(1, Ordering::SeqCst);
            let counted = Counted(Arc::clone(&counter));
            Box::pin(async move {
                let _counted = counted;
                drop(opened.wait_for(|open| *open).await);
            })
        });
        (Self { open, waiting }, delay)
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

/// Requests that are in progress until this is dropped, and the statuses of those that were
/// answered.
struct Flood {
    _requests: JoinSet<()>,
    statuses: Arc<Mutex<Vec<StatusCode>>>,
}

impl Flood {
    /// Sends requests with different paths, each with these headers.
    async fn of(client: &Client<'_>, headers: impl Fn(usize) -> Vec<(&'static str, String)>) -> Self {
        let statuses = Arc::new(Mutex::new(Vec::new()));
        let mut requests = JoinSet::new();
        let mut connections: Vec<SendRequest<Empty<Bytes>>> = Vec::new();
        for number in 0..FLOOD {
            if number % STREAMS == 0 {
                connections.push(client.h2().await);
            }
            let mut request = client.request(&format!("/flood/{number}"));
            for (name, value) in headers(number) {
                request = request.header(name, value);
            }
            let request = request.body(Empty::new()).unwrap();
            let mut sender = connections[number / STREAMS].clone();
            let statuses = Arc::clone(&statuses);
            requests.spawn(async move {
                sender.ready().await.unwrap();
                let response = sender.send_request(request).await.unwrap();
                statuses.lock().unwrap().push(response.status());
                drop(response.into_body().collect().await);
            });
        }
        Self { _requests: requests, statuses }
    }

    fn refused(&self) -> usize {
        let statuses = self.statuses.lock().unwrap();
        statuses.iter().filter(|status| **status == StatusCode::TOO_MANY_REQUESTS).count()
    }
}

async fn get(client: &Client<'_>) -> ReceivedResponse {
    tokio::time::timeout(PATIENCE, client.get("/api/v1/namespaces")).await.expect("a response in time")
}

#[tokio::test]
async fn anonymous_requests_for_many_paths_do_not_delay_reviews_of_other_users() {
    let (gate, delay) = Gate::before(|spec| spec["user"] == "system:anonymous");
    let world = World::start(Script { delay, ..Script::default() }).await;
    let flood = Flood::of(&world.anonymous(), |_| Vec::new()).await;
    eventually("anonymous reviews wait", || gate.waiting() >= 100).await;
    for user in ["alice", "bob"] {
        let response = get(&world.certificate(user, &[])).await;
        assert_eq!(response.status, StatusCode::OK, "{user}: {}", response.text);
    }
    assert!(gate.waiting() < 200, "some places are left for others");
    drop(flood);
}

#[tokio::test]
async fn anonymous_requests_from_one_address_do_not_delay_those_from_another() {
    let is_flood = |spec: &Value| {
        let path = spec["nonResourceAttributes"]["path"].as_str();
        path.is_some_and(|path| path.starts_with("/flood"))
    };
    let (gate, delay) = Gate::before(is_flood);
    // Ensures that no waiting request gets a permit because another one times out.
    let in_flight = InFlightLimits { queue_timeout: 10 * PATIENCE, ..InFlightLimits::PROXY };
    let options = Options { in_flight, ..Options::default() };
    let world = World::start_with(Script { delay, ..Script::default() }, options).await;
    let _flood = Flood::of(&world.anonymous().at(ELSEWHERE), |_| Vec::new()).await;
    eventually("anonymous reviews wait", || gate.waiting() >= 100).await;
    let response = get(&world.anonymous()).await;
    assert_eq!(response.status, StatusCode::OK, "{}", response.text);
    let response = get(&world.certificate("alice", &[])).await;
    assert_eq!(response.status, StatusCode::OK, "{}", response.text);
}

#[tokio::test]
async fn a_user_who_impersonates_many_others_does_not_delay_reviews_of_other_users() {
    let (gate, delay) = Gate::before(|spec| spec["user"] == "mallory");
    let world = World::start(Script { delay, ..Script::default() }).await;
    let mallory = world.certificate("mallory", &[]);
    let flood = Flood::of(&mallory, |number| vec![("impersonate-user", format!("u{number}"))]).await;
    eventually("reviews wait", || gate.waiting() >= 100).await;
    let response = get(&world.certificate("alice", &[])).await;
    assert_eq!(response.status, StatusCode::OK, "{}", response.text);
    // Each request acquires its permit before its first review.
    eventually("requests beyond the limit are refused", || flood.refused() > 0).await;
}

#[tokio::test]
async fn anonymous_clients_cannot_impersonate_and_no_review_is_made_for_them() {
    let world = World::start(Script { policy: Arc::new(|_| false), ..Script::default() }).await;
    let cases = [
        (
            "/api/v1/namespaces",
            "alice",
            "namespaces is forbidden: User \"system:anonymous\" cannot impersonate-on:user-info:list resource \
             \"namespaces\" in API group \"\" at the cluster scope: decision made by \
             impersonation-proxy.concierge.pinniped.dev",
        ),
        (
            "/flood",
            "system:node:n",
            "forbidden: User \"system:anonymous\" cannot impersonate-on:arbitrary-node:get path \"/flood\": \
             decision made by impersonation-proxy.concierge.pinniped.dev",
        ),
    ];
    for (path, wanted, message) in cases {
        let response = world.anonymous().get_with(path, &[("impersonate-user", wanted)]).await;
        assert_eq!((response.status.as_u16(), response.message()), (403, message.to_owned()));
    }
    assert_eq!(world.api.reviews(), Vec::<String>::new());
}

fn tokens(names: &[&str]) -> std::collections::HashMap<String, Value> {
    names.iter().map(|name| ((*name).to_owned(), json!({"username": name}))).collect()
}

#[tokio::test]
async fn random_tokens_from_one_address_do_not_delay_tokens_from_other_addresses() {
    let (gate, delay) =
        Gate::before(|spec| spec["token"].as_str().is_some_and(|token| token.starts_with("random")));
    let tokens = tokens(&["alice"]);
    let world = World::start(Script { delay, tokens, ..Script::default() }).await;
    let flood = Flood::of(&world.anonymous().at(ELSEWHERE), |number| {
        vec![("authorization", format!("Bearer random-{number}"))]
    })
    .await;
    eventually("token reviews wait", || gate.waiting() >= 50).await;
    let request =
        world.anonymous().get_with("/api/v1/namespaces", &[("authorization", "Bearer alice")]).await;
    assert_eq!(request.status, StatusCode::OK, "{}", request.text);
    drop(flood);
}

#[tokio::test]
async fn a_review_continues_after_its_client_disconnects() {
    let (gate, delay) = Gate::before(|spec| spec["user"] == "alice");
    let world = World::start(Script { delay, ..Script::default() }).await;
    let alice = world.certificate("alice", &[]);
    for _ in 0..3 {
        let mut sender = alice.h2::<Empty<Bytes>>().await;
        let request = alice.request("/api/v1/namespaces").body(Empty::new()).unwrap();
        let request = tokio::spawn(sender.send_request(request));
        eventually("the review waits", || gate.waiting() == 1).await;
        // Resets the stream, then closes the connection.
        request.abort();
        drop(sender);
        eventually("the client is gone", || world.proxy.stats().open == 0).await;
    }
    assert_eq!(gate.waiting(), 1, "the review was not reset");
    gate.open.send_replace(true);
    assert_eq!(get(&alice).await.status, StatusCode::OK);
    assert_eq!(world.api.reviews().len(), 1, "one review for all four");
}

#[tokio::test]
async fn reviews_do_not_share_a_connection_with_requests_of_clients() {
    let world = World::start(Script::default()).await;
    assert_eq!(get(&world.certificate("alice", &[])).await.status, StatusCode::OK);
    let (with_reviews, with_both) = world.api.review_connections();
    assert!(with_reviews > 0);
    assert_eq!(with_both, 0);
}
