use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::{KnownUser, User};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use pinniped_secret::token::Token;

/// Maps number of the call, path and body to status code and body.
type Script = dyn Fn(usize, &str, Value) -> (u16, Value) + Send + Sync;

/// An API server that responds with `content` and counts calls.
pub(super) struct Peer {
    calls: AtomicUsize,
    /// Calls acquire a permit before they are answered.
    gate: Semaphore,
    content: Box<Script>,
}

pub(super) fn peer(
    content: impl Fn(usize, &str, Value) -> (u16, Value) + Send + Sync + 'static,
) -> (Arc<Peer>, Reviews) {
    let peer =
        Arc::new(Peer { calls: AtomicUsize::new(0), gate: Semaphore::new(1000), content: Box::new(content) });
    let service = {
        let peer = Arc::clone(&peer);
        tower::service_fn(move |request: Request<Body>| {
            let peer = Arc::clone(&peer);
            async move {
                let call = peer.calls.fetch_add(1, Ordering::SeqCst);
                let _turn = peer.gate.acquire().await.unwrap();
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let (code, content) = (peer.content)(call, &path, serde_json::from_slice(&body).unwrap());
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, std::io::Error>(response.body(Body::from(content.to_string().into_bytes())).unwrap())
            }
        })
    };
    let backoff = Backoff { first: Duration::from_millis(1), ..Backoff::REVIEWS };
    (peer, Reviews { backoff, ..Reviews::new(kube::Client::new(service, "default")) })
}

impl Peer {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

pub(super) fn allowed(is_allowed: bool) -> Value {
    json!({"status": {"allowed": is_allowed, "reason": "because"}})
}

fn user(name: &str) -> User {
    User { name: name.to_owned(), ..User::default() }
}

fn path(path: &str) -> Attributes {
    Attributes::NonResource { verb: "get".to_owned(), path: path.to_owned() }
}

#[tokio::test]
async fn a_review_sends_the_token_and_returns_the_user() {
    let (_, reviews) = peer(|_, path, review| {
        assert_eq!(path, "/apis/authentication.k8s.io/v1/tokenreviews");
        let expected = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
            "spec": {"token": "secret"}, "status": {"user": {}},
        });
        assert_eq!(review, expected);
        (201, json!({"status": {"authenticated": true, "user": {"username": "alice", "groups": ["g"]}}}))
    });
    let found = TokenReviewer::with(reviews).review(&Token::new("secret"), None).await.unwrap();
    let expected = User { groups: vec!["g".to_owned()], ..user("alice") };
    assert_eq!(found.as_deref(), Some(&expected));
}

#[tokio::test]
async fn results_are_cached_and_failures_are_not() {
    let (peer, reviews) = peer(|_, _, review| match review["spec"]["token"].as_str() {
        Some("good") => (201, json!({"status": {"authenticated": true, "user": {"username": "a"}}})),
        Some("bad") => (201, json!({"status": {"error": "[invalid bearer token]"}})),
        _ => (403, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no right"})),
    });
    let reviewer = TokenReviewer::with(reviews);
    for _ in 0..3 {
        assert!(reviewer.review(&Token::new("good"), None).await.unwrap().is_some());
        assert!(reviewer.review(&Token::new("bad"), None).await.unwrap().is_none());
    }
    assert_eq!(peer.calls(), 2);
    for _ in 0..3 {
        let error = reviewer.review(&Token::new("broken"), None).await.unwrap_err();
        assert_eq!(error, ReviewError::Call("no right".to_owned()));
    }
    assert_eq!(peer.calls(), 5);
}

#[tokio::test]
async fn equal_reviews_in_flight_share_one_call() {
    let (peer, reviews) = peer(|_, _, _| (201, allowed(true)));
    let authorizer = Authorizer::with(reviews);
    let held = peer.gate.acquire_many(1000).await.unwrap();
    let (alice, question) = (KnownUser::from(user("alice")), path("/x"));
    let all = futures::future::join_all((0..50).map(|_| authorizer.authorize("a", &alice, &question)));
    let (responses, ()) = futures::join!(all, async {
        while peer.calls() == 0 {
            tokio::task::yield_now().await;
        }
        drop(held);
    });
    assert!(responses.into_iter().all(|response| response == Ok(Decision::Allow)));
    assert_eq!(peer.calls(), 1);
}

#[tokio::test]
async fn a_review_is_tried_five_times_on_transient_failures() {
    let (calls, reviews) = peer(|call, _, _| if call < 4 { (500, json!({})) } else { (201, allowed(true)) });
    let authorizer = Authorizer::with(reviews);
    assert_eq!(authorizer.authorize("a", &user("a").into(), &path("/x")).await, Ok(Decision::Allow));
    assert_eq!(calls.calls(), 5);
    let (calls, reviews) = peer(|_, _, _| (500, json!({})));
    let error = Authorizer::with(reviews).authorize("a", &user("a").into(), &path("/x")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "an error on the server (\"unknown\") has prevented the request from succeeding (post \
         subjectaccessreviews.authorization.k8s.io)"
    );
    assert_eq!(calls.calls(), 5);
}

#[tokio::test]
async fn known_decisions_need_no_review() {
    let (peer, reviews) = peer(|_, _, _| (500, json!({})));
    let authorizer = Authorizer::with(reviews);
    let masters = User { groups: vec!["system:masters".to_owned()], ..user("root") };
    let no_verb = Attributes::Resource(ResourceAttributes::default());
    let invalid = Decision::Deny { reason: "invalid verb".to_owned() };
    assert_eq!(authorizer.authorize("a", &masters.clone().into(), &no_verb).await, Ok(invalid));
    assert_eq!(authorizer.authorize("a", &masters.clone().into(), &path("/x")).await, Ok(Decision::Allow));
    for health in ["/healthz", "/readyz", "/livez"] {
        assert_eq!(authorizer.authorize("a", &user("a").into(), &path(health)).await, Ok(Decision::Allow));
    }
    assert_eq!(peer.calls(), 0);
    authorizer.authorize("a", &user("a").into(), &path("/healthz/")).await.unwrap_err();
}

#[tokio::test]
async fn the_review_contains_every_attribute() {
    let (_, reviews) = peer(|_, path, review| {
        assert_eq!(path, "/apis/authorization.k8s.io/v1/subjectaccessreviews");
        let expected = json!({
            "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {
                "user": "alice", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]},
                "resourceAttributes": {
                    "verb": "list", "group": "apps", "version": "v1", "resource": "deployments", "subresource": "scale",
                    "namespace": "ns", "name": "n", "fieldSelector": {"rawSelector": "a=b"},
                },
            },
        });
        assert_eq!(review, expected);
        (201, json!({"status": {"denied": true, "reason": "never"}}))
    });
    let alice = User {
        uid: "u".to_owned(),
        groups: vec!["g".to_owned()],
        extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]),
        ..user("alice")
    };
    let question = Attributes::Resource(ResourceAttributes {
        verb: "list".to_owned(),
        group: "apps".to_owned(),
        version: "v1".to_owned(),
        resource: "deployments".to_owned(),
        subresource: "scale".to_owned(),
        name: "n".to_owned(),
        namespace: "ns".to_owned(),
        field_selector: Some("a=b".to_owned()),
        label_selector: Some(String::new()),
    });
    let decision = Authorizer::with(reviews).authorize("a", &alice.clone().into(), &question).await;
    assert_eq!(decision, Ok(Decision::Deny { reason: "never".to_owned() }));
}

#[tokio::test]
async fn contradictory_responses_are_errors_and_empty_ones_are_no_opinion() {
    let (_, reviews) = peer(|_, path, review| {
        assert!(!path.is_empty());
        match review["spec"]["nonResourceAttributes"]["path"].as_str() {
            Some("/both") => (201, json!({"status": {"allowed": true, "denied": true}})),
            _ => (201, json!({"status": {"reason": "nobody"}})),
        }
    });
    let authorizer = Authorizer::with(reviews);
    authorizer.authorize("a", &user("a").into(), &path("/both")).await.unwrap_err();
    let expected = Decision::NoOpinion { reason: "nobody".to_owned() };
    assert_eq!(authorizer.authorize("a", &user("a").into(), &path("/x")).await, Ok(expected));
}

#[tokio::test]
async fn every_member_is_part_of_the_cache_key_and_large_reviews_are_not_cached() {
    let (peer, reviews) = peer(|_, _, _| (201, allowed(false)));
    let authorizer = Authorizer::with(reviews);
    let resource = |verb: &str, name: &str, selector: Option<&str>| {
        Attributes::Resource(ResourceAttributes {
            verb: verb.to_owned(),
            name: name.to_owned(),
            label_selector: selector.map(str::to_owned),
            ..ResourceAttributes::default()
        })
    };
    let groups =
        |groups: &[&str]| User { groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..user("a") };
    let questions = [
        (user("a"), resource("get", "x", None)),
        (user("b"), resource("get", "x", None)),
        (user("a"), resource("getx", "", None)),
        (user("a"), resource("get", "x", Some(""))),
        (groups(&["a", "b"]), resource("get", "x", None)),
        (groups(&["ab"]), resource("get", "x", None)),
        (user("a"), path("/x")),
    ];
    for _ in 0..2 {
        for (user, attributes) in &questions {
            authorizer.authorize("a", &user.clone().into(), attributes).await.unwrap();
        }
    }
    assert_eq!(peer.calls(), questions.len());
    let huge = path(&"x".repeat(10_000));
    for _ in 0..3 {
        authorizer.authorize("a", &user("a").into(), &huge).await.unwrap();
    }
    assert_eq!(peer.calls(), questions.len() + 3);
}

#[tokio::test(start_paused = true)]
async fn rejected_tokens_do_not_evict_accepted_ones() {
    let (peer, reviews) = peer(|_, _, review| match review["spec"]["token"].as_str() {
        Some(token) if token.starts_with("good") => {
            (201, json!({"status": {"authenticated": true, "user": {"username": token}}}))
        }
        _ => (201, json!({"status": {"error": "no"}})),
    });
    let reviewer = TokenReviewer::with(reviews);
    let flood = async |name: &str| {
        for n in 0..8_500 {
            assert!(reviewer.review(&Token::new(format!("{name}-{n}")), None).await.unwrap().is_none());
        }
    };
    flood("bad").await;
    let good: Vec<Token> = (0..100).map(|n| Token::new(format!("good-{n}"))).collect();
    for token in &good {
        assert!(reviewer.review(token, None).await.unwrap().is_some());
    }
    flood("worse").await;
    let calls = peer.calls();
    for token in &good {
        assert!(reviewer.review(token, None).await.unwrap().is_some());
    }
    assert_eq!(peer.calls(), calls, "all are known still");
}

/// Returns an API server whose token reviews wait for the permits of its gate.
fn any_token() -> (Arc<Peer>, TokenReviewer) {
    let (peer, reviews) = peer(|_, _, review| {
        let user = review["spec"]["token"].as_str().unwrap().to_owned();
        (201, json!({"status": {"authenticated": true, "user": {"username": user}}}))
    });
    (peer, TokenReviewer::with(reviews))
}

fn address(text: &str) -> Option<std::net::IpAddr> {
    Some(text.parse().unwrap())
}

/// Waits until all tasks that can run have run.
async fn all_tasks_have_run() {
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
}

/// Starts reviews of new tokens. Returns those that wait for the API server, and the number of
/// refused ones.
async fn flood(
    reviewer: &TokenReviewer,
    client: impl Fn(usize) -> Option<std::net::IpAddr>,
) -> (tokio::task::JoinSet<()>, usize) {
    let mut waiting = tokio::task::JoinSet::new();
    let mut refused = 0;
    for number in 0..1000 {
        let token = Token::new(format!("flood-{number}"));
        let mut review = {
            let (reviewer, client) = (reviewer.clone(), client(number));
            Box::pin(async move { reviewer.review(&token, client).await })
        };
        match futures::poll!(&mut review) {
            std::task::Poll::Ready(result) => {
                assert_eq!(result, Err(ReviewError::Overloaded));
                refused += 1;
            }
            std::task::Poll::Pending => {
                waiting.spawn(async { drop(review.await) });
            }
        }
    }
    all_tasks_have_run().await;
    (waiting, refused)
}

#[tokio::test(start_paused = true)]
async fn new_tokens_of_one_address_leave_permits_for_other_addresses_and_accepted_tokens() {
    let (peer, reviewer) = any_token();
    reviewer.review(&Token::new("alice"), address("10.0.0.1")).await.unwrap();
    // Expires the cached result, but not the user of the accepted token.
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    let before = peer.calls();
    let held = peer.gate.acquire_many(1000).await.unwrap();
    let (_waiting, refused) = flood(&reviewer, |_| address("10.0.0.1")).await;
    assert_eq!(peer.calls() - before, 75, "three quarters of the permits for new tokens");
    assert_eq!(refused, 1000 - 75 - 300);
    for (token, client) in [("alice", "10.0.0.1"), ("bob", "10.0.0.2"), ("carol", "2001:db8::1")] {
        let before = peer.calls();
        let token = Token::new(token);
        let mut review = Box::pin(reviewer.review(&token, address(client)));
        assert!(futures::poll!(&mut review).is_pending());
        all_tasks_have_run().await;
        assert_eq!(peer.calls(), before + 1, "{client}: the review is on its way");
    }
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_ipv6_network_is_one_client_and_many_addresses_do_not_delay_accepted_tokens() {
    let (peer, reviewer) = any_token();
    reviewer.review(&Token::new("alice"), address("10.0.0.1")).await.unwrap();
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    let before = peer.calls();
    let held = peer.gate.acquire_many(1000).await.unwrap();
    let (waiting, _) = flood(&reviewer, |n| address(&format!("2001:db8::{n:x}"))).await;
    assert_eq!(peer.calls() - before, 75);
    drop(waiting);
    let (_waiting, _) = flood(&reviewer, |n| address(&format!("10.1.{}.{}", n / 250, n % 250))).await;
    let before = peer.calls();
    let token = Token::new("alice");
    let mut review = Box::pin(reviewer.review(&token, address("10.1.0.1")));
    assert!(futures::poll!(&mut review).is_pending());
    all_tasks_have_run().await;
    assert_eq!(peer.calls(), before + 1);
    drop(held);
}

#[tokio::test]
async fn a_review_continues_without_its_caller_and_serves_the_next_one() {
    let (peer, reviewer) = any_token();
    let held = peer.gate.acquire_many(1000).await.unwrap();
    let token = Token::new("alice");
    {
        let mut review = Box::pin(reviewer.review(&token, None));
        assert!(futures::poll!(&mut review).is_pending());
    }
    while peer.calls() == 0 {
        tokio::task::yield_now().await;
    }
    drop(held);
    assert!(reviewer.review(&token, None).await.unwrap().is_some());
    assert_eq!(peer.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn reviews_of_one_client_do_not_delay_equal_reviews_of_another() {
    let (peer, reviews) = peer(|_, _, _| (201, allowed(true)));
    let authorizer = Authorizer::with(reviews);
    let held = peer.gate.acquire_many(1000).await.unwrap();
    let victim = KnownUser::from(user("victim"));
    // Mallory impersonates the victim and starts reviews of many of the victim's requests.
    let mut crowd: Vec<_> = (0..1500)
        .map(|n| {
            let (authorizer, victim) = (authorizer.clone(), victim.clone());
            Box::pin(async move { authorizer.authorize("mallory", &victim, &path(&format!("/{n}"))).await })
        })
        .collect();
    let mut refused = 0;
    for review in &mut crowd {
        if let std::task::Poll::Ready(result) = futures::poll!(review.as_mut()) {
            assert_eq!(result, Err(ReviewError::Overloaded));
            refused += 1;
        }
    }
    assert_eq!(refused, 1500 - 150 - 900);
    all_tasks_have_run().await;
    assert_eq!(peer.calls(), 150);
    // The path of a review that waits for a permit of Mallory.
    let question = path("/1000");
    let mut own = Box::pin(authorizer.authorize("victim", &victim, &question));
    assert!(futures::poll!(&mut own).is_pending());
    all_tasks_have_run().await;
    assert_eq!(peer.calls(), 151);
    drop(held);
    assert_eq!(own.await, Ok(Decision::Allow));
}

#[test]
fn a_refused_connection_to_the_api_server_is_retried() {
    let refused = failed(&std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
    assert!(refused.is_lost, "{refused:?}");
    let unreachable = failed(&std::io::Error::from(std::io::ErrorKind::HostUnreachable));
    assert!(!unreachable.is_lost, "{unreachable:?}");
}

#[tokio::test]
async fn reviews_are_counted_by_result_and_look_ups_by_whether_the_result_is_cached() {
    let (_, reviews) = peer(|_, path, review| match review["spec"]["token"].as_str() {
        Some("good") => (201, json!({"status": {"authenticated": true, "user": {"username": "a"}}})),
        Some("bad") => (201, json!({"status": {}})),
        None if path.ends_with("/subjectaccessreviews") => (201, allowed(false)),
        _ => (403, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no"})),
    });
    let (reviewer, authorizer) = (TokenReviewer::with(reviews.clone()), Authorizer::with(reviews));
    let metrics = pinniped_metrics::Metrics::new();
    reviewer.register_metrics(&metrics);
    authorizer.register_metrics(&metrics);
    for token in ["good", "good", "bad", "broken", "broken"] {
        let _result = reviewer.review(&Token::new(token), None).await;
    }
    authorizer.authorize("a", &user("a").into(), &path("/x")).await.unwrap();
    let text = metrics.text().unwrap();
    for line in [
        r#"pinniped_token_reviews_total{result="authenticated"} 1"#,
        r#"pinniped_token_reviews_total{result="unauthenticated"} 1"#,
        r#"pinniped_token_reviews_total{result="failed"} 2"#,
        r#"pinniped_token_reviews_total{result="overloaded"} 0"#,
        r#"pinniped_token_review_cache_requests_total{result="hit"} 1"#,
        r#"pinniped_token_review_cache_requests_total{result="miss"} 4"#,
        "pinniped_token_review_cache_entries 2",
        "pinniped_token_review_duration_seconds_count 4",
        r#"pinniped_access_reviews_total{result="no_opinion"} 1"#,
        "pinniped_access_review_duration_seconds_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn reviews_without_a_permit_are_counted_as_overloaded() {
    let (peer, reviewer) = any_token();
    let metrics = pinniped_metrics::Metrics::new();
    reviewer.register_metrics(&metrics);
    let _held = peer.gate.acquire_many(1000).await.unwrap();
    let (_waiting, refused) = flood(&reviewer, |_| address("192.0.2.1")).await;
    let text = metrics.text().unwrap();
    let line = format!("pinniped_token_reviews_total{{result=\"overloaded\"}} {refused}\n");
    assert!(refused > 0 && text.contains(&line), "{line}{text}");
}
