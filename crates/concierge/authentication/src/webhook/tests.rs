//! Tests with a real TLS server whose responses each test scripts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_pki::CaBundle;
use pinniped_traces::TracesParams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// One request as the server received it.
#[derive(Clone, Debug)]
struct Seen {
    version: Version,
    line: String,
    headers: HeaderMap,
    body: String,
}

/// Returns the response to a request, which has this number and body.
type Script = dyn Fn(usize, &str) -> Response<Full<Bytes>> + Send + Sync;

/// A webhook on loopback that stops when it is dropped.
struct Webhook {
    address: SocketAddr,
    ca_pem: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// The number of connections that were accepted.
    connections: Arc<AtomicUsize>,
    /// The number of connections that are open.
    open: Arc<AtomicUsize>,
    task: AbortOnDropHandle<()>,
}

type ServerConfigBuilder = rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier>;

struct Setup {
    alpn: &'static [&'static [u8]],
    names: &'static [&'static str],
    is_ca: bool,
}

const USUAL: Setup = Setup { alpn: ALPN_HTTP, names: &["127.0.0.1", "localhost"], is_ca: false };

impl Webhook {
    async fn start(
        setup: Setup,
        script: impl Fn(usize) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        pinniped_pki::install_crypto_provider();
        Self::start_with(setup, rustls::ServerConfig::builder(), script).await
    }

    /// Starts a webhook that computes each response from the body of the request.
    async fn start_with_responses(
        setup: Setup,
        respond: impl Fn(&str) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        pinniped_pki::install_crypto_provider();
        Self::run(setup, rustls::ServerConfig::builder(), Arc::new(move |_, body: &str| respond(body))).await
    }

    async fn start_with(
        setup: Setup,
        tls: ServerConfigBuilder,
        script: impl Fn(usize) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::run(setup, tls, Arc::new(move |call, _: &str| script(call))).await
    }

    async fn run(setup: Setup, tls: ServerConfigBuilder, script: Arc<Script>) -> Self {
        let (ca_pem, tls) = certificates(&setup, tls);
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let open = Arc::new(AtomicUsize::new(0));
        let (seen_there, count, open_there) =
            (Arc::clone(&seen), Arc::clone(&connections), Arc::clone(&open));
        let task = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                open_there.fetch_add(1, Ordering::SeqCst);
                let connection =
                    serve(acceptor.clone(), stream, Arc::clone(&script), Arc::clone(&seen_there));
                let open = Arc::clone(&open_there);
                tasks.spawn(async move {
                    connection.await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, ca_pem, seen, connections, open, task: AbortOnDropHandle::new(task) }
    }

    /// Stops the webhook and returns when its listener is closed.
    async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    fn url(&self) -> Url {
        Url::parse(&format!("https://{}/some/authenticate?ignored=1", self.address)).unwrap()
    }

    fn roots(&self) -> Roots {
        Roots::Bundle(CaBundle::from_pem(self.ca_pem.as_bytes()).unwrap())
    }

    fn client(&self) -> WebhookClient {
        with_short_backoff(client_for(&self.url(), self.roots(), &ProxyEnvironment::default()))
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Returns a client with all cipher suites.
fn client_for(endpoint: &Url, roots: Roots, proxies: &ProxyEnvironment) -> WebhookClient {
    WebhookClient::new(endpoint, roots, proxies, &CipherRestriction::default()).unwrap()
}

/// Dials with all cipher suites.
async fn probe(endpoint: &Url, roots: Roots) -> Result<(), ProbeError> {
    super::probe(endpoint, roots, &CipherRestriction::default()).await
}

fn with_short_backoff(client: WebhookClient) -> WebhookClient {
    WebhookClient { backoff: Backoff::REVIEWS.with_first(Duration::from_millis(1)), ..client }
}

fn certificates(setup: &Setup, tls: ServerConfigBuilder) -> (String, rustls::ServerConfig) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "test-ca");
    let ca_pem = params.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let names: Vec<String> = setup.names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let (bundle, leaf) = if setup.is_ca {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let leaf = params.self_signed(&key).unwrap();
        (leaf.pem(), leaf)
    } else {
        (ca_pem, params.signed_by(&key, &issuer).unwrap())
    };
    let private_key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut tls = tls.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], private_key).unwrap();
    tls.alpn_protocols = setup.alpn.iter().map(|protocol| protocol.to_vec()).collect();
    (bundle, tls)
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, script: Arc<Script>, seen: Arc<Mutex<Vec<Seen>>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        let (script, seen) = (Arc::clone(&script), Arc::clone(&seen));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let line = format!("{} {}", parts.method, parts.uri.path_and_query().unwrap());
            let body = String::from_utf8(body.to_vec()).unwrap();
            let call = {
                let mut seen = seen.lock().unwrap();
                seen.push(Seen { version: parts.version, line, headers: parts.headers, body: body.clone() });
                seen.len() - 1
            };
            Ok::<_, Infallible>(script(call, &body))
        }
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    // The client checks how a connection ends.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

fn response(code: u16, body: &str) -> Response<Full<Bytes>> {
    Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap()
}

const YES: &str = r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","status":{"authenticated":true,
    "user":{"username":"pinny","uid":"1","groups":["group-for-mtls"],"extra":{"a":["b"]}}}}"#;

fn pinny() -> User {
    User {
        name: "pinny".to_owned(),
        uid: "1".to_owned(),
        groups: vec!["group-for-mtls".to_owned()],
        extra: BTreeMap::from([("a".to_owned(), vec!["b".to_owned()])]),
    }
}

#[tokio::test]
async fn the_request_equals_that_of_kubernetes_and_connections_are_reused() {
    const H1: &[&[u8]] = &[b"http/1.1"];
    for (alpn, version) in [(ALPN_HTTP, Version::HTTP_2), (H1, Version::HTTP_11), (&[], Version::HTTP_11)] {
        let webhook = Webhook::start(Setup { alpn, ..USUAL }, |_| response(200, YES)).await;
        let client = webhook.client();
        for _ in 0..3 {
            assert_eq!(client.authenticate(&Token::new("pinny:password123")).await, Ok(Some(pinny())));
        }
        let seen = webhook.seen();
        assert_eq!(seen[0].version, version);
        assert_eq!(seen[0].line, "POST /some/authenticate?timeout=30s");
        assert_eq!(
            seen[0].body,
            r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{"token":"pinny:password123"},"status":{"user":{}}}"#
        );
        assert_eq!(seen[0].headers["accept"], "application/json");
        assert_eq!(seen[0].headers["content-type"], "application/json");
        assert_eq!(seen.len(), 3);
        assert_eq!(webhook.connections.load(Ordering::SeqCst), 1, "{version:?}");
    }
}

#[tokio::test]
async fn the_webhook_gets_the_trace_of_a_recorded_login_and_none_when_traces_are_off() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const CLIENT_SPAN: &str = "00f067aa0ba902b7";
    let webhook = Webhook::start(USUAL, |_| response(200, YES)).await;
    let (client, token) = (webhook.client(), Token::new("x"));
    assert_eq!(client.authenticate(&token).await, Ok(Some(pinny())));

    let (tracer, _exporter) = pinniped_traces::start(TracesParams {
        url: pinniped_traces::endpoint("https://collector.example").unwrap(),
        sampling_rate_per_million: 0,
        roots: webhook.roots(),
        ciphers: CipherRestriction::default(),
        proxies: ProxyEnvironment::default(),
        user_agent: HeaderValue::from_static("test/1"),
        resource: Vec::new(),
    })
    .unwrap();
    let context = |flags: &str| {
        let value = HeaderValue::from_str(&format!("00-{TRACE}-{CLIENT_SPAN}-{flags}")).unwrap();
        HeaderMap::from_iter([(HeaderName::from_static("traceparent"), value)])
    };
    assert!(tracer.begin(&context("00"), || true).is_none());
    let login = tracer.begin(&context("01"), || true).unwrap();
    assert_eq!(login.instrument(client.authenticate(&token)).await, Ok(Some(pinny())));

    let [off, recorded] = webhook.seen().try_into().unwrap();
    for name in ["traceparent", "tracestate", "baggage"] {
        assert!(!off.headers.contains_key(name), "{name}");
    }
    let sent = recorded.headers["traceparent"].to_str().unwrap();
    let parts: Vec<_> = sent.split('-').collect();
    // The parent is the span of the call, which the integration test reads from a collector.
    assert_eq!([parts[0], parts[1], parts[3]], ["00", TRACE, "01"]);
    assert!(parts[2].len() == 16 && parts[2] != CLIENT_SPAN, "{sent}");
}

#[tokio::test]
async fn responses_are_translated_into_results() {
    let failed = |text: &str| Err(AuthenticateError::Failed(text.to_owned()));
    for (code, body, expected) in [
        (200, YES, Ok(Some(pinny()))),
        (201, r#"{"status":{"authenticated":true}}"#, Ok(Some(User::default()))),
        (200, r#"{"status":{"authenticated":false}}"#, Ok(None)),
        (200, "{}", Ok(None)),
        (
            200,
            r#"{"status":{"error":"expired"}}"#,
            Err(AuthenticateError::InvalidToken("expired".to_owned())),
        ),
        (
            200,
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            failed(r#"no kind "Pod" is registered for version "v1""#),
        ),
        (200, "", failed("0-length response with status code: 200 and content type: application/json")),
        (401, "", failed("the server has asked for the client to provide credentials")),
        (404, "", failed("the server could not find the requested resource")),
        (
            302,
            "",
            failed("the server responded with the status code 302 but did not return more information"),
        ),
    ] {
        let webhook = Webhook::start(USUAL, move |_| response(code, body)).await;
        let result = webhook.client().authenticate(&Token::new("x")).await;
        assert_eq!(result, expected, "{code} {body}");
        assert_eq!(webhook.seen().len(), 1, "{code} {body}");
    }
    let webhook = Webhook::start(USUAL, |_| response(200, "<html>")).await;
    let text = webhook.client().authenticate(&Token::new("x")).await.unwrap_err().to_string();
    assert!(text.starts_with("couldn't get version/kind; json parse error: "), "{text}");
}

/// Returns the versions of the reviews that a webhook received.
fn versions(webhook: &Webhook) -> Vec<&'static str> {
    let seen = webhook.seen();
    let version = |seen: &Seen| match seen.body.contains(r#""apiVersion":"authentication.k8s.io/v1""#) {
        true => "v1",
        false if seen.body.contains(r#""apiVersion":"authentication.k8s.io/v1beta1""#) => "v1beta1",
        false => panic!("{}", seen.body),
    };
    seen.iter().map(version).collect()
}

const YES_V1: &str = r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"authenticated":true,
    "user":{"username":"pinny","uid":"1","groups":["group-for-mtls"],"extra":{"a":["b"]}}}}"#;

#[tokio::test]
async fn a_webhook_that_speaks_only_v1_is_found_with_the_first_login() {
    const STATUS: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"BadRequest","code":400}"#;
    for (code, refusal) in [(400, ""), (400, STATUS), (415, "<html>"), (422, "no"), (200, YES_V1)] {
        let webhook = Webhook::start(USUAL, move |call| match call {
            0 => response(code, refusal),
            _ => response(200, YES_V1),
        })
        .await;
        let client = webhook.client();
        for _ in 0..3 {
            assert_eq!(client.authenticate(&Token::new("x")).await, Ok(Some(pinny())), "{code} {refusal}");
        }
        assert_eq!(versions(&webhook), ["v1beta1", "v1", "v1", "v1"], "{code} {refusal}");
    }
}

#[tokio::test]
async fn a_webhook_that_speaks_only_v1beta1_receives_what_upstream_sends() {
    // Like the local-user-authenticator, which refuses v1, and tokens that are not well-formed.
    let webhook = Webhook::start_with_responses(USUAL, |body| {
        if !body.contains(r#""apiVersion":"authentication.k8s.io/v1beta1""#) || body.contains("malformed") {
            return response(400, "");
        }
        response(200, YES)
    })
    .await;
    let client = webhook.client();
    let refused = "the server rejected our request for an unknown reason";
    let login = async |token| client.authenticate(&Token::new(token)).await;
    // Nothing is known yet.
    assert_eq!(login("malformed").await, Err(AuthenticateError::Failed(refused.to_owned())));
    assert_eq!(login("good").await, Ok(Some(pinny())));
    // Once a minute: the webhook may have been replaced.
    assert_eq!(login("malformed").await, Err(AuthenticateError::Failed(refused.to_owned())));
    assert_eq!(login("malformed").await, Err(AuthenticateError::Failed(refused.to_owned())));
    assert_eq!(login("good").await, Ok(Some(pinny())));
    assert_eq!(
        versions(&webhook),
        ["v1beta1", "v1", "v1beta1", "v1beta1", "v1", "v1beta1", "v1beta1"],
        "a valid login is one request"
    );
}

#[tokio::test]
async fn a_webhook_that_changes_its_version_is_found_again() {
    let webhook = Webhook::start(USUAL, |call| match call {
        0 => response(200, YES),
        1 => response(400, ""),
        _ => response(200, YES_V1),
    })
    .await;
    let client = webhook.client();
    for _ in 0..3 {
        assert_eq!(client.authenticate(&Token::new("x")).await, Ok(Some(pinny())));
    }
    assert_eq!(versions(&webhook), ["v1beta1", "v1beta1", "v1", "v1"]);
}

#[tokio::test]
async fn other_failures_do_not_cause_a_second_review() {
    for (code, body) in [(401, ""), (403, ""), (404, ""), (200, "<html>"), (302, "")] {
        let webhook = Webhook::start(USUAL, move |_| response(code, body)).await;
        webhook.client().authenticate(&Token::new("x")).await.unwrap_err();
        assert_eq!(versions(&webhook), ["v1beta1"], "{code}");
    }
    let failing = Webhook::start(USUAL, |_| response(500, "")).await;
    failing.client().authenticate(&Token::new("x")).await.unwrap_err();
    assert_eq!(versions(&failing), ["v1beta1"; 5]);
    // A webhook whose responses never have the version of the request.
    let crossed = Webhook::start_with_responses(USUAL, |body| {
        let is_v1 = body.contains(r#""apiVersion":"authentication.k8s.io/v1""#);
        response(200, if is_v1 { YES } else { YES_V1 })
    })
    .await;
    let text = crossed.client().authenticate(&Token::new("x")).await.unwrap_err().to_string();
    assert_eq!(text, "converting (v1.TokenReview) to (v1beta1.TokenReview): unknown conversion");
    assert_eq!(versions(&crossed), ["v1beta1", "v1"]);
}

#[tokio::test]
async fn a_client_keeps_few_connections_after_many_concurrent_logins() {
    const LOGINS: usize = 24;
    const H1: &[&[u8]] = &[b"http/1.1"];
    for (alpn, most_new) in [(H1, LOGINS - 4), (ALPN_HTTP, 0)] {
        let webhook = Webhook::start(Setup { alpn, ..USUAL }, |_| response(200, YES)).await;
        let client = Arc::new(webhook.client());
        let log_in_together = async || {
            let logins = (0..LOGINS).map(|_| {
                let client = Arc::clone(&client);
                async move { client.authenticate(&Token::new("x")).await }
            });
            for result in futures::future::join_all(logins).await {
                assert_eq!(result, Ok(Some(pinny())));
            }
            webhook.connections.load(Ordering::SeqCst)
        };
        let first = log_in_together().await;
        assert!(first <= LOGINS, "{first} connections");
        // Later logins reuse the idle connections.
        for _ in 0..4 {
            client.authenticate(&Token::new("x")).await.unwrap();
        }
        assert_eq!(webhook.connections.load(Ordering::SeqCst), first);
        let second = log_in_together().await - first;
        assert!(second <= most_new, "{second} new connections");
        // The others are closed, not only unused.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while webhook.open.load(Ordering::SeqCst) > 4 {
            assert!(tokio::time::Instant::now() < deadline, "{:?} connections are open", webhook.open);
            tokio::task::yield_now().await;
        }
        drop(client);
        while webhook.open.load(Ordering::SeqCst) > 0 {
            assert!(tokio::time::Instant::now() < deadline, "{:?} connections are open", webhook.open);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn responses_that_are_much_larger_when_decoded_are_refused() {
    let groups = |count: usize| {
        let groups = vec!["\"\""; count].join(",");
        format!(r#"{{"status":{{"authenticated":true,"user":{{"username":"a","groups":[{groups}]}}}}}}"#)
    };
    let deep = format!(
        r#"{{"status":{{"authenticated":false}},"a":{}1{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let header = "x".repeat(200_000);
    for (body, expected) in [
        (groups(10_000), Ok(10_000)),
        (groups(10_001), Err("the user has more than 10000 values in groups")),
        // Members that are not used are skipped without recursion.
        (deep, Ok(0)),
    ] {
        let start = body[..20].to_owned();
        let webhook = Webhook::start(USUAL, move |_| response(200, &body)).await;
        let result = webhook.client().authenticate(&Token::new("x")).await;
        match (result, expected) {
            (Ok(user), Ok(count)) => assert_eq!(user.map_or(0, |user| user.groups.len()), count),
            (Err(AuthenticateError::Failed(text)), Err(expected)) => {
                assert!(text.contains(expected), "{text}");
            }
            (result, expected) => panic!("{start}: {result:?} instead of {expected:?}"),
        }
    }
    for alpn in [ALPN_HTTP, &[b"http/1.1"]] {
        let header = header.clone();
        let webhook = Webhook::start(Setup { alpn, ..USUAL }, move |_| {
            let mut response = response(200, YES);
            response.headers_mut().insert("x-large", header.parse().unwrap());
            response
        })
        .await;
        webhook.client().authenticate(&Token::new("x")).await.unwrap_err();
    }
}

#[tokio::test]
async fn transient_failures_are_attempted_five_times() {
    for code in [500, 504, 429] {
        let webhook =
            Webhook::start(USUAL, move |call| if call < 4 { response(code, "") } else { response(200, YES) })
                .await;
        assert_eq!(webhook.client().authenticate(&Token::new("x")).await, Ok(Some(pinny())));
        let webhook = Webhook::start(USUAL, move |_| response(code, "")).await;
        webhook.client().authenticate(&Token::new("x")).await.unwrap_err();
        assert_eq!(webhook.seen().len(), 5, "{code}");
    }
}

#[tokio::test]
async fn an_endless_response_is_cut_off() {
    let huge = "x".repeat(MAX_RESPONSE + 1);
    let webhook = Webhook::start(USUAL, move |_| response(200, &huge)).await;
    let text = webhook.client().authenticate(&Token::new("x")).await.unwrap_err().to_string();
    assert!(text.contains("length limit exceeded"), "{text}");
}

#[tokio::test]
async fn a_restarted_server_is_dialed_again() {
    let first = Webhook::start(USUAL, |_| response(200, YES)).await;
    let client = first.client();
    client.authenticate(&Token::new("x")).await.unwrap();
    let address = first.address;
    first.stop().await;
    let text = client.authenticate(&Token::new("x")).await.unwrap_err().to_string();
    let expected = format!(
        "Post \"https://{address}/some/authenticate?timeout=30s\": dial tcp {address}: connect: connection refused"
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn a_server_that_never_responds_causes_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
    let webhook = Webhook::start(USUAL, |_| response(200, YES)).await;
    let client = client_for(&url, webhook.roots(), &ProxyEnvironment::default());
    let client = WebhookClient { try_timeout: Duration::from_millis(50), ..client };
    let text = client.authenticate(&Token::new("x")).await.unwrap_err().to_string();
    assert!(text.ends_with("/?timeout=30s\": context deadline exceeded"), "{text}");
}

#[tokio::test]
async fn the_probe_returns_the_error_texts_of_go() {
    let good = Webhook::start(USUAL, |_| response(500, "")).await;
    assert_eq!(probe(&good.url(), good.roots()).await, Ok(()));
    assert_eq!(good.seen().len(), 0);
    let own_ca = Webhook::start(Setup { is_ca: true, ..USUAL }, |_| response(500, "")).await;
    assert_eq!(probe(&own_ca.url(), own_ca.roots()).await, Ok(()));

    let error = async |url: &Url, roots: Roots| probe(url, roots).await.unwrap_err().to_string();
    assert_eq!(
        error(&good.url(), own_ca.roots()).await,
        "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    );
    let named = Webhook::start(Setup { names: &["a.example"], ..USUAL }, |_| response(500, "")).await;
    assert_eq!(
        error(&named.url(), named.roots()).await,
        "tls: failed to verify certificate: x509: cannot validate certificate for 127.0.0.1 because it doesn't contain \
         any IP SANs"
    );
    let localhost = Url::parse(&format!("https://localhost:{}", named.address.port())).unwrap();
    assert_eq!(
        error(&localhost, named.roots()).await,
        "tls: failed to verify certificate: x509: certificate is valid for a.example, not localhost"
    );
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = Url::parse(&format!("https://{closed}/x")).unwrap();
    assert_eq!(error(&url, good.roots()).await, format!("dial tcp {closed}: connect: connection refused"));
    let nowhere = Url::parse("https://nowhere.invalid/x").unwrap();
    let text = error(&nowhere, good.roots()).await;
    assert!(text.starts_with("dial tcp: lookup nowhere.invalid: "), "{text}");
}

#[tokio::test]
async fn only_allowed_cipher_suites_are_used() {
    // The webhook supports TLS 1.2 only, with a single cipher suite.
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
    let provider = rustls::crypto::CryptoProvider {
        cipher_suites: vec![suite],
        ..rustls::crypto::aws_lc_rs::default_provider()
    };
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    let webhook = Webhook::start_with(USUAL, builder, |_| response(200, YES)).await;
    for (allowed, works) in [
        (&[][..], true),
        (&["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"], true),
        (&["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], false),
    ] {
        let names: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let ciphers = CipherRestriction::parse(&names).unwrap();
        let dialled = super::probe(&webhook.url(), webhook.roots(), &ciphers).await;
        let proxies = ProxyEnvironment::default();
        let client = WebhookClient::new(&webhook.url(), webhook.roots(), &proxies, &ciphers).unwrap();
        let response = with_short_backoff(client).authenticate(&Token::new("x")).await;
        if works {
            assert_eq!((dialled, response), (Ok(()), Ok(Some(pinny()))), "{allowed:?}");
        } else {
            let refusal = "remote error: tls: handshake failure";
            assert_eq!(dialled.unwrap_err().to_string(), refusal);
            let text = response.unwrap_err().to_string();
            assert!(text.ends_with(refusal), "{text}");
        }
    }
}

/// Accepts one connection, reads a few bytes, writes `response` and closes the connection.
async fn raw_server(response: &'static [u8]) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut some = [0; 4096];
        let _ = stream.read(&mut some).await;
        let _ = stream.write_all(response).await;
        let _ = stream.shutdown().await;
        while matches!(stream.read(&mut some).await, Ok(1..)) {}
    });
    (address, AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn servers_without_tls_have_distinct_errors() {
    let webhook = Webhook::start(USUAL, |_| response(200, YES)).await;
    for (bytes, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "tls: first record does not look like a TLS handshake"),
        (b"", "EOF"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "remote error: tls: handshake failure"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "remote error: tls: protocol version not supported"),
    ] {
        let (address, _task) = raw_server(bytes).await;
        let url = Url::parse(&format!("https://{address}")).unwrap();
        assert_eq!(probe(&url, webhook.roots()).await.unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn a_proxy_of_the_environment_opens_a_tunnel() {
    let webhook = Webhook::start(USUAL, |_| response(200, YES)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let target = webhook.address;
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n").await.unwrap();
        let mut upstream = TcpStream::connect(target).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
        String::from_utf8(request).unwrap()
    }));
    // Loopback addresses are never proxied, so the endpoint needs a host name.
    let url = Url::parse(&format!("https://webhook.example:{}/x", target.port())).unwrap();
    let environment = ProxyEnvironment::new(format!("http://user:p%40ss@{proxy}"), "");
    let named = Setup { names: &["webhook.example"], ..USUAL };
    let (ca_pem, _) = certificates(&named, rustls::ServerConfig::builder());
    let roots = Roots::Bundle(CaBundle::from_pem(ca_pem.as_bytes()).unwrap());
    let client = with_short_backoff(client_for(&url, roots, &environment));
    let text = client.authenticate(&Token::new("x")).await.unwrap_err().to_string();
    assert!(
        text.ends_with("x509: certificate signed by unknown authority"),
        "it got as far as the webhook: {text}"
    );
    drop(client);
    let request = task.await.unwrap();
    let port = target.port();
    assert_eq!(
        request,
        format!(
            "CONNECT webhook.example:{port} HTTP/1.1\r\nHost: webhook.example:{port}\r\nProxy-Authorization: Basic \
             dXNlcjpwQHNz\r\n\r\n"
        )
    );

    let (refusing, _task) = raw_server(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
    let environment = ProxyEnvironment::new(refusing.to_string(), "");
    let client = with_short_backoff(client_for(&url, webhook.roots(), &environment));
    let text = client.authenticate(&Token::new("x")).await.unwrap_err().to_string();
    assert!(text.ends_with(": Forbidden"), "{text}");
}
