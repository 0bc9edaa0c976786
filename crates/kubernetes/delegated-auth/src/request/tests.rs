use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use pinniped_pki::{Certificate, CertificateAuthority, ClientSubject, Validity};
use serde_json::{Value, json};

use super::*;
use crate::cluster_auth_config::{ClusterAuthConfig, RequestHeaderConfig};

const NOW: &str = "2026-06-01T00:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn validity() -> Validity {
    Validity { not_before: at("2026-01-01T00:00:00Z"), not_after: at("2027-01-01T00:00:00Z") }
}

fn authority(name: &str) -> CertificateAuthority {
    CertificateAuthority::generate(name, &validity()).unwrap()
}

fn bundle(authority: &CertificateAuthority) -> CaBundle {
    CaBundle::from_pem(authority.certificate_pem().as_bytes()).unwrap()
}

fn client(authority: &CertificateAuthority, name: &str, groups: &[&str]) -> Vec<CertificateDer<'static>> {
    let subject = ClientSubject {
        username: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        extra: BTreeMap::new(),
    };
    let pair = authority.issue_client(&subject, &validity()).unwrap();
    vec![Certificate::parse_pem(pair.certificate_pem.as_bytes()).unwrap().der]
}

/// Returns a reviewer whose API server accepts token `good` and fails to review token `broken`.
fn reviewer(calls: Arc<AtomicUsize>) -> TokenReviewer {
    let service = tower::service_fn(move |request: Request<Body>| {
        let calls = Arc::clone(&calls);
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let (code, content) = match review["spec"]["token"].as_str() {
                Some("good") => {
                    (201, json!({"status": {"authenticated": true, "user": {"username": "tim"}}}))
                }
                Some("broken") => (403, json!({})),
                _ => (201, json!({"status": {"error": "no"}})),
            };
            let response = Response::builder().status(code);
            Ok::<_, std::io::Error>(response.body(Body::from(content.to_string().into_bytes())).unwrap())
        }
    });
    TokenReviewer::new(kube::Client::new(service, "default"))
}

#[derive(Default)]
struct Extra {
    generation: AtomicU64,
    bundle: Mutex<Option<CaBundle>>,
}

impl Extra {
    fn set(&self, bundle: Option<CaBundle>) {
        *self.bundle.lock().unwrap() = bundle;
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

impl ClientCaSource for Extra {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
    fn current(&self) -> Option<CaBundle> {
        self.bundle.lock().unwrap().clone()
    }
}

struct World {
    cluster_ca: CertificateAuthority,
    signer: CertificateAuthority,
    proxy_ca: CertificateAuthority,
    stranger: CertificateAuthority,
    extra: Arc<Extra>,
    reviews: Arc<AtomicUsize>,
    authenticator: RequestAuthenticator,
    connections: Mutex<HashMap<Vec<CertificateDer<'static>>, Arc<CachedVerification>>>,
}

impl World {
    fn with(make: impl FnOnce(&CaBundle, RequestHeaderConfig) -> ClusterAuthConfig) -> Self {
        let (cluster_ca, signer) = (authority("kubernetes"), authority("signer"));
        let (proxy_ca, stranger) = (authority("front-proxy"), authority("stranger"));
        let request_header = RequestHeaderConfig {
            ca: bundle(&proxy_ca),
            allowed_names: vec!["front-proxy-client".to_owned()],
            username_headers: vec![HeaderName::from_static("x-remote-user")],
            uid_headers: Vec::new(),
            group_headers: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        };
        let extra = Arc::new(Extra::default());
        extra.set(Some(bundle(&signer)));
        let reviews = Arc::new(AtomicUsize::new(0));
        let authenticator = RequestAuthenticator::new(RequestAuthenticatorParams {
            cluster: ClusterAuthConfigWatch::fixed(make(&bundle(&cluster_ca), request_header)),
            extra_client_ca: Some(Arc::clone(&extra) as _),
            reviewer: reviewer(Arc::clone(&reviews)),
        });
        Self {
            cluster_ca,
            signer,
            proxy_ca,
            stranger,
            extra,
            reviews,
            authenticator,
            connections: Mutex::default(),
        }
    }

    /// Creates a cluster with the default configuration.
    fn new() -> Self {
        Self::with(|ca, proxy| ClusterAuthConfig { client_ca: Some(ca.clone()), request_header: Some(proxy) })
    }

    async fn authenticate(&self, peer: &[CertificateDer<'static>], headers: &[(&str, &str)]) -> String {
        self.authenticate_at(peer, headers, NOW).await.0
    }

    /// Returns the result in short form, and the remaining headers.
    async fn authenticate_at(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &[(&str, &str)],
        now: &str,
    ) -> (String, Vec<String>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
        }
        // Equal chains share one connection, so every change must apply to its next request.
        let cached = Arc::clone(self.connections.lock().unwrap().entry(peer.to_vec()).or_default());
        let peer = Peer { chain: peer, cached: Some(&cached), address: None };
        let result = self.authenticator.authenticate(&mut map, peer, at(now)).await;
        let shown = match result {
            AuthenticationResult::User { user, method } => {
                format!("{method:?} {} [{}]", user.name, user.groups.join(" "))
            }
            AuthenticationResult::Anonymous => "anonymous".to_owned(),
            AuthenticationResult::Rejected { .. } => "rejected".to_owned(),
            AuthenticationResult::Overloaded => "overloaded".to_owned(),
        };
        (shown, map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect())
    }
}

const GOOD: (&str, &str) = ("authorization", "Bearer good");
const BAD: (&str, &str) = ("authorization", "Bearer bad");
const BROKEN: (&str, &str) = ("authorization", "Bearer broken");
const BASIC: (&str, &str) = ("authorization", "Basic dGltOnNlY3JldA==");
const REMOTE: (&str, &str) = ("x-remote-user", "rose");

#[tokio::test]
async fn the_chain_decides_like_the_api_server() {
    let world = World::new();
    let alice = client(&world.cluster_ca, "alice", &["a", "b"]);
    let sam = client(&world.signer, "sam", &[]);
    let nameless = client(&world.cluster_ca, "", &["a"]);
    let bad = client(&world.stranger, "mallory", &["system:masters"]);
    let proxy = client(&world.proxy_ca, "front-proxy-client", &[]);
    let other_proxy = client(&world.proxy_ca, "other", &[]);
    let websocket = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-protocol", "x, base64url.bearer.authorization.k8s.io.Z29vZA"),
    ];
    let tim = "BearerToken tim [system:authenticated]";
    for (what, peer, headers, expected) in [
        ("nothing", &[][..], &[][..], "anonymous"),
        ("basic", &[], &[BASIC], "anonymous"),
        ("good token", &[], &[GOOD], tim),
        ("bad token", &[], &[BAD], "rejected"),
        ("token that cannot be judged", &[], &[BROKEN], "rejected"),
        ("cluster certificate", &alice, &[], "ClientCertificate alice [a b system:authenticated]"),
        ("signer certificate", &sam, &[], "ClientCertificate sam [system:authenticated]"),
        ("certificate and bad token", &sam, &[BAD], "ClientCertificate sam [system:authenticated]"),
        ("certificate and good token", &sam, &[GOOD], "ClientCertificate sam [system:authenticated]"),
        ("bad certificate", &bad, &[], "rejected"),
        ("bad certificate and good token", &bad, &[GOOD], tim),
        ("bad certificate and basic", &bad, &[BASIC], "rejected"),
        ("certificate without a name", &nameless, &[], "rejected"),
        (
            "front proxy",
            &proxy,
            &[REMOTE, ("x-remote-group", "g")],
            "FrontProxy rose [g system:authenticated]",
        ),
        (
            "front proxy for somebody anonymous",
            &proxy,
            &[("x-remote-user", "system:anonymous"), ("x-remote-group", "system:unauthenticated")],
            "FrontProxy system:anonymous [system:unauthenticated]",
        ),
        ("front proxy without user", &proxy, &[], "rejected"),
        ("front proxy of another name", &other_proxy, &[REMOTE], "rejected"),
        ("identity headers without the proxy", &[], &[REMOTE], "anonymous"),
        (
            "identity headers from a user",
            &alice,
            &[REMOTE],
            "ClientCertificate alice [a b system:authenticated]",
        ),
        ("websocket token", &[], &websocket, "WebSocketToken tim [system:authenticated]"),
        (
            "websocket token that is alone",
            &[],
            &[
                websocket[0],
                websocket[1],
                ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.Z29vZA"),
            ],
            "rejected",
        ),
        (
            "bad header token and good websocket token",
            &[],
            &[BAD, websocket[0], websocket[1], websocket[2]],
            "WebSocketToken tim [system:authenticated]",
        ),
    ] {
        assert_eq!(world.authenticate(peer, headers).await, expected, "{what}");
    }
}

#[tokio::test]
async fn a_certificate_without_a_name_is_anonymous_without_a_front_proxy() {
    let world = World::with(|ca, _| ClusterAuthConfig { client_ca: Some(ca.clone()), request_header: None });
    let nameless = client(&world.cluster_ca, "", &[]);
    assert_eq!(world.authenticate(&nameless, &[]).await, "anonymous");
}

#[tokio::test]
async fn certificates_are_ignored_without_a_ca() {
    let world = World::with(|_, _| ClusterAuthConfig::default());
    world.extra.set(None);
    let alice = client(&world.cluster_ca, "alice", &[]);
    assert_eq!(world.authenticate(&alice, &[]).await, "anonymous");
    assert!(world.authenticator.client_ca_hints().is_empty());
}

#[tokio::test]
async fn a_certificate_authenticates_only_while_it_is_valid() {
    let world = World::new();
    let sam = client(&world.signer, "sam", &[]);
    let user = "ClientCertificate sam [system:authenticated]";
    for (now, expected) in [
        ("2025-12-31T23:59:59Z", "rejected"),
        ("2026-01-01T00:00:00Z", user),
        (NOW, user),
        ("2027-01-01T00:00:00Z", user),
        ("2027-01-01T00:00:01Z", "rejected"),
        (NOW, user),
        ("2025-12-31T23:59:59Z", "rejected"),
    ] {
        assert_eq!(world.authenticate_at(&sam, &[], now).await.0, expected, "{now}");
    }
}

#[tokio::test]
async fn a_rotated_ca_applies_to_the_next_request() {
    let world = World::new();
    let sam = client(&world.signer, "sam", &[]);
    let mallory = client(&world.stranger, "mallory", &[]);
    assert_eq!(world.authenticate(&sam, &[]).await, "ClientCertificate sam [system:authenticated]");
    assert_eq!(world.authenticate(&mallory, &[]).await, "rejected");
    assert_eq!(world.authenticator.client_ca_hints().len(), 3);
    world.extra.set(Some(bundle(&world.stranger)));
    assert_eq!(world.authenticate(&sam, &[]).await, "rejected");
    assert_eq!(world.authenticate(&mallory, &[]).await, "ClientCertificate mallory [system:authenticated]");
    world.extra.set(None);
    assert_eq!(world.authenticate(&mallory, &[]).await, "rejected");
    assert_eq!(world.authenticator.client_ca_hints().len(), 2);
}

#[tokio::test]
async fn the_user_of_a_certificate_has_its_fingerprint_as_an_extra() {
    let world = World::new();
    let sam = client(&world.signer, "sam", &["g"]);
    let result = world.authenticator.authenticate(&mut HeaderMap::new(), Peer::new(&sam), at(NOW)).await;
    let fingerprint = Certificate::parse_der(&sam[0]).unwrap().sha256_hex();
    let extra =
        ("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("X509SHA256={fingerprint}")]);
    let expected = User {
        name: "sam".to_owned(),
        uid: String::new(),
        groups: vec!["g".to_owned(), "system:authenticated".to_owned()],
        extra: BTreeMap::from([extra]),
    };
    assert_eq!(
        result,
        AuthenticationResult::User { user: expected.into(), method: Method::ClientCertificate }
    );
}

#[tokio::test]
async fn authentication_removes_credentials_and_identities_on_success() {
    let world = World::new();
    let sam = client(&world.signer, "sam", &[]);
    let headers = [GOOD, REMOTE, ("x-remote-extra-a", "b"), ("x-remote-uid", "u"), ("accept", "text/plain")];
    for (peer, headers, remaining) in [
        (&sam[..], &headers[..], &["accept: text/plain"][..]),
        (&[], &headers, &["accept: text/plain"]),
        (&[], &[BASIC, REMOTE], &[]),
        (&[], &[BAD, REMOTE], &["authorization: Bearer bad", "x-remote-user: rose"]),
    ] {
        assert_eq!(world.authenticate_at(peer, headers, NOW).await.1, remaining);
    }
    let websocket = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-protocol", "a, base64url.bearer.authorization.k8s.io.Z29vZA"),
        ("sec-websocket-protocol", "b"),
    ];
    let remaining = ["upgrade: websocket", "connection: Upgrade", "sec-websocket-protocol: a,b"];
    assert_eq!(world.authenticate_at(&[], &websocket, NOW).await.1, remaining);
    // A token that was not used for authentication is not forwarded either.
    assert_eq!(world.authenticate_at(&sam, &websocket, NOW).await.1, remaining);
}

#[tokio::test]
async fn front_proxy_headers_that_are_not_text_name_no_user() {
    let world = World::new();
    let proxy = client(&world.proxy_ca, "front-proxy-client", &[]);
    for (token, expected) in [(None, None), (Some("Bearer good"), Some("tim"))] {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", HeaderValue::from_bytes(b"rose\xff").unwrap());
        if let Some(token) = token {
            headers.append("authorization", HeaderValue::from_static(token));
        }
        let result = world.authenticator.authenticate(&mut headers, Peer::new(&proxy), at(NOW)).await;
        let found = match result {
            AuthenticationResult::User { user, .. } => Some(user.name.clone()),
            AuthenticationResult::Rejected { reason } => {
                assert!(reason.contains("header x-remote-user of the front proxy is not UTF-8"), "{reason}");
                None
            }
            AuthenticationResult::Anonymous => Some("anonymous".to_owned()),
            AuthenticationResult::Overloaded => Some("overloaded".to_owned()),
        };
        assert_eq!(found.as_deref(), expected);
    }
}

#[tokio::test]
async fn a_valid_certificate_needs_no_review() {
    let world = World::new();
    let sam = client(&world.signer, "sam", &[]);
    world.authenticate(&sam, &[GOOD]).await;
    assert_eq!(world.reviews.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_certificate_has_a_uid_when_it_names_exactly_one() {
    let (key, mut params) =
        (rcgen::KeyPair::generate().unwrap(), rcgen::CertificateParams::new(Vec::new()).unwrap());
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "uid-ca");
    let ca_pem = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    let world = World::new();
    world.extra.set(Some(CaBundle::from_pem(ca_pem.as_bytes()).unwrap()));
    for (uid, expected) in [(None, Some("")), (Some("u-1"), Some("u-1")), (Some(""), None)] {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "sam");
        if let Some(uid) = uid {
            let oid = rcgen::DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
            params.distinguished_name.push(oid, uid);
        }
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let leaf = params.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap();
        let result = world
            .authenticator
            .authenticate(&mut HeaderMap::new(), Peer::new(&[leaf.der().clone()]), at(NOW))
            .await;
        let found = match &result {
            AuthenticationResult::User { user, .. } => Some(user.uid.as_str()),
            AuthenticationResult::Anonymous
            | AuthenticationResult::Overloaded
            | AuthenticationResult::Rejected { .. } => None,
        };
        assert_eq!(found, expected, "{uid:?}: {result:?}");
    }
}
