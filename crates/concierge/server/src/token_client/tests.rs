use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// An API server that issues `token-1`, `token-2`, ..., and accepts tokens from a certain number
/// on.
#[derive(Clone, Default)]
struct ApiServer(Arc<ApiServerState>);

#[derive(Default)]
struct ApiServerState {
    account_is_missing: AtomicBool,
    issued: AtomicUsize,
    checks: AtomicUsize,
    accepted_from: AtomicUsize,
}

impl ApiServer {
    fn client(&self, tokens: Option<Arc<dyn TokenSource>>) -> kube::Client {
        let state = Arc::clone(&self.0);
        let service = tower::service_fn(move |mut request: Request<Body>| {
            if let Some(token) = tokens.as_ref().and_then(|tokens| tokens.token()) {
                let value = HeaderValue::try_from(format!("Bearer {}", token.expose())).unwrap();
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            let (code, body) = state.respond(&request);
            let response = Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes())).unwrap();
            async { Ok::<_, Infallible>(response) }
        });
        kube::Client::new(service, "ns")
    }

    fn issued(&self) -> usize {
        self.0.issued.load(Ordering::SeqCst)
    }

    fn checks(&self) -> usize {
        self.0.checks.load(Ordering::SeqCst)
    }

    /// Invalidates all issued tokens, like the deletion of the ServiceAccount or of its signing
    /// key.
    fn end_tokens(&self) {
        self.0.accepted_from.store(self.issued() + 1, Ordering::SeqCst);
    }

    fn delete_account(&self, deleted: bool) {
        self.0.account_is_missing.store(deleted, Ordering::SeqCst);
    }
}

impl ApiServerState {
    fn respond(&self, request: &Request<Body>) -> (u16, Value) {
        let failure = |code: u16| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"}),
            )
        };
        if request.uri().path().ends_with("/serviceaccounts/proxy/token") {
            if self.account_is_missing.load(Ordering::SeqCst) {
                return failure(404);
            }
            let token = format!("token-{}", self.issued.fetch_add(1, Ordering::SeqCst) + 1);
            let body = json!({
                "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                "spec": {"audiences": [], "expirationSeconds": 86_400},
                "status": {"token": token, "expirationTimestamp": "1970-01-02T00:00:00Z"},
            });
            return (201, body);
        }
        assert_eq!(request.uri().path(), "/version");
        self.checks.fetch_add(1, Ordering::SeqCst);
        let token = request.headers()[AUTHORIZATION].to_str().unwrap();
        let number: usize = token.strip_prefix("Bearer token-").unwrap().parse().unwrap();
        if number < self.accepted_from.load(Ordering::SeqCst) {
            return failure(401);
        }
        let version = json!({"major": "1", "minor": "36", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        (200, version)
    }
}

/// A running token client, and its wall clock, which tests can set.
struct Running {
    api_server: ApiServer,
    fresh: FreshToken,
    offset: Arc<Mutex<SignedDuration>>,
    _task: AbortOnDropHandle<()>,
}

impl Running {
    async fn start() -> Self {
        let (api_server, offset) = (ApiServer::default(), Arc::new(Mutex::new(SignedDuration::ZERO)));
        let clock = {
            let (offset, start) = (Arc::clone(&offset), Instant::now());
            Clock::with_wall(move || {
                let elapsed = SignedDuration::try_from(start.elapsed()).unwrap();
                Timestamp::UNIX_EPOCH + elapsed + *offset.lock().unwrap()
            })
        };
        let acting = |tokens| api_server.client(Some(tokens));
        let client =
            TokenClient::with_clock(api_server.client(None), "ns", "proxy".to_owned(), acting, clock);
        let fresh = client.fresh_token();
        assert_eq!(fresh.check(), Err(NoToken::NotIssued));
        let task = AbortOnDropHandle::new(tokio::spawn(client.run(CancellationToken::new())));
        let running = Self { api_server, fresh, offset, _task: task };
        running.after(Duration::from_secs(1)).await;
        assert_eq!(running.token().as_deref(), Some("token-1"));
        running
    }

    async fn after(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn jump(&self, by: SignedDuration) {
        *self.offset.lock().unwrap() += by;
    }

    fn token(&self) -> Option<String> {
        self.fresh.token().map(|token| token.expose().to_owned())
    }
}

/// Slightly more than the time between two checks.
const A_MINUTE: Duration = Duration::from_secs(61);

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_after_four_fifths_of_its_life() {
    let running = Running::start().await;
    running.after(Duration::from_secs(69_100)).await;
    assert_eq!(running.token().as_deref(), Some("token-1"));
    running.after(Duration::from_secs(60)).await;
    assert_eq!(running.token().as_deref(), Some("token-2"));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_within_a_minute_after_a_suspend() {
    let running = Running::start().await;
    // Less than a fifth of the lifetime remains, although the timers have not advanced.
    running.jump(SignedDuration::from_hours(20));
    running.after(A_MINUTE).await;
    assert_eq!(running.token().as_deref(), Some("token-2"));
    running.jump(SignedDuration::from_hours(100));
    assert_eq!((running.token(), running.fresh.check()), (None, Err(NoToken::Expired)));
    running.after(A_MINUTE).await;
    assert_eq!(running.token().as_deref(), Some("token-3"));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_wall_clock_does_not_affect_the_renewal() {
    for years in [10, -5] {
        let running = Running::start().await;
        running.jump(SignedDuration::from_hours(years * 365 * 24));
        running.after(A_MINUTE).await;
        assert!(running.token().is_some(), "{years} years");
        let issued = running.api_server.issued();
        assert!(issued <= 2, "{issued}");
        running.after(Duration::from_secs(69_200)).await;
        assert_eq!(running.api_server.issued(), issued + 1, "{years} years");
        assert!(running.token().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_replaced_within_a_minute_without_client_requests() {
    let running = Running::start().await;
    running.api_server.end_tokens();
    running.after(A_MINUTE).await;
    assert_eq!(running.token().as_deref(), Some("token-2"));
    assert_eq!(running.fresh.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_of_a_client_replaces_the_token_within_seconds() {
    let running = Running::start().await;
    running.after(Duration::from_secs(10)).await;
    let first = running.fresh.token().unwrap();
    running.api_server.end_tokens();
    running.fresh.refused(&first);
    running.after(Duration::from_millis(10)).await;
    assert_eq!(running.token().as_deref(), Some("token-2"));
    // A late response to a request with the old token.
    let checks = running.api_server.checks();
    running.fresh.refused(&first);
    running.after(Duration::from_secs(10)).await;
    assert_eq!((running.api_server.checks(), running.api_server.issued()), (checks, 2));
}

#[tokio::test(start_paused = true)]
async fn unrelated_401_responses_cause_few_checks_and_no_new_token() {
    let running = Running::start().await;
    let token = running.fresh.token().unwrap();
    let before = running.api_server.checks();
    for _ in 0..60_000 {
        running.fresh.refused(&token);
        running.after(Duration::from_millis(1)).await;
    }
    let checks = running.api_server.checks() - before;
    assert!((1..=13).contains(&checks), "{checks} in a minute");
    assert_eq!(running.api_server.issued(), 1);
    assert_eq!(running.fresh.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_account_has_no_token_until_it_exists_again() {
    let running = Running::start().await;
    running.api_server.delete_account(true);
    running.api_server.end_tokens();
    running.after(A_MINUTE).await;
    assert_eq!((running.token(), running.fresh.check()), (None, Err(NoToken::Refused)));
    running.after(Duration::from_secs(3600)).await;
    assert_eq!(running.fresh.check(), Err(NoToken::Refused));
    running.api_server.delete_account(false);
    running.after(Duration::from_secs(11)).await;
    assert_eq!(running.token().as_deref(), Some("token-2"));
    assert_eq!(running.fresh.check(), Ok(()));
}
