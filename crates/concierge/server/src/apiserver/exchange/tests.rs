use std::collections::BTreeMap;
use std::sync::Mutex;
use std::task::Poll;

use futures::future::BoxFuture;
use pinniped_concierge_authentication::registry::{AuthenticateError, TokenAuthenticator};
use pinniped_pki::{Certificate, CertificateAuthority, CertificateStore, Validity};

use pinniped_concierge_api::login::{CredentialType, ImpersonatedUser};
use pinniped_concierge_api::names::STORE_IMPERSONATION_SIGNER;
use pinniped_kube_request::identity::User;
use pinniped_secret::text::SecretString;

use super::metrics::LoginMetrics;
use super::*;
use crate::client_cert_issuer::{CertificateStoreIssuer, FailingIssuer, IssuerError};
use crate::token_issuer::tests::Off;
use crate::token_issuer::{IssuedToken, TokenIssuerError};

const TOKEN: &str = "the-secret-token";

struct FixedResult(Result<Option<User>, AuthenticateError>);

impl TokenAuthenticator for FixedResult {
    fn authenticate<'a>(
        &'a self,
        token: &'a Token,
    ) -> BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
        assert_eq!(token.expose(), TOKEN);
        Box::pin(async { self.0.clone() })
    }
}

fn now() -> Timestamp {
    "2026-01-02T03:04:05.678Z".parse().expect("a time")
}

fn user(name: &str) -> User {
    User { name: name.to_owned(), groups: vec!["b".to_owned(), "a".to_owned()], ..User::default() }
}

struct Case<'a> {
    suffix: &'a str,
    api_group: Option<&'a str>,
    name: &'a str,
    result: Result<Option<User>, AuthenticateError>,
    with_ca: bool,
    accepts: Vec<CredentialType>,
    tokens: Arc<dyn TokenIssuer>,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            suffix: "pinniped.dev",
            api_group: Some("authentication.concierge.pinniped.dev"),
            name: "my-webhook",
            result: Ok(Some(user("pinny"))),
            with_ca: true,
            accepts: Vec::new(),
            tokens: Arc::new(Off),
        }
    }
}

/// Returns the exchange of a case with this authenticator, and the request.
fn exchange(
    case: Case<'_>,
    authenticator: Arc<dyn TokenAuthenticator>,
    audit: Auditor,
) -> (Exchange, TokenCredentialRequestSpec) {
    let suffix = GroupSuffix::parse(case.suffix).expect("a suffix");
    let registry = Registry::new();
    let key = AuthenticatorKey {
        api_group: authenticator_group(&suffix),
        kind: "WebhookAuthenticator".to_owned(),
        name: "my-webhook".to_owned(),
    };
    registry.insert(key, "1".to_owned(), authenticator);
    let signer = CertificateStore::signer(STORE_IMPERSONATION_SIGNER);
    if case.with_ca {
        let validity = Validity::starting(now(), Duration::from_secs(3600));
        let ca = CertificateAuthority::generate("ca", &validity).expect("a CA");
        signer.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes()).expect("a pair");
    }
    let exchange = Exchange {
        registry,
        issuers: vec![Arc::new(CertificateStoreIssuer::new(signer))],
        tokens: case.tokens,
        suffix,
        credential_lifetime: tokio::sync::watch::channel(Duration::from_secs(300)).1,
        audit,
        started: "2026-01-01T00:00:00Z".parse().expect("a time"),
        logins: Exchange::logins(),
        metrics: LoginMetrics::default(),
    };
    let request = TokenCredentialRequestSpec {
        token: Some(SecretString::new(TOKEN)),
        authenticator: TypedLocalObjectReference {
            api_group: case.api_group.map(str::to_owned),
            kind: "WebhookAuthenticator".to_owned(),
            name: case.name.to_owned(),
        },
        accept_credential_types: case.accepts,
    };
    (exchange, request)
}

/// Returns the key of an anonymous client at this address.
fn client(address: &str) -> ClientKey<'static> {
    ClientKey::anonymous(Some(address.parse().expect("an address")))
}

/// Returns the response, and the audit lines from their fields on.
async fn run(case: Case<'_>) -> (TokenCredentialRequestStatus, Vec<String>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let audit = Auditor::with_sink(false, move |line| {
        let start = line.find(",\"message\":").expect("a message") + 11;
        sink.lock().expect("lock").push(line[start..].trim_end().trim_end_matches('}').to_owned());
    });
    let authenticator = Arc::new(FixedResult(case.result.clone()));
    let (exchange, request) = exchange(case, authenticator, audit);
    let status = exchange.run(request, &client("10.0.0.1"), "audit-1", now()).await.expect("a permit");
    let lines = lines.lock().expect("lock").clone();
    assert!(lines.iter().all(|line| !line.contains(TOKEN)));
    (status, lines)
}

/// An authenticator that never responds.
struct Silent;

impl TokenAuthenticator for Silent {
    fn authenticate<'a>(
        &'a self,
        _token: &'a Token,
    ) -> BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
        Box::pin(futures::future::pending())
    }
}

#[tokio::test]
async fn a_client_of_a_slow_authenticator_leaves_permits_to_its_other_clients() {
    let audit = Auditor::with_sink(false, |_| {});
    let (exchange, request) = exchange(Case::default(), Arc::new(Silent), audit);
    let (greedy, other) = (client("10.0.0.1"), client("10.0.0.2"));
    let mut logins = Vec::new();
    loop {
        let mut login = Box::pin(exchange.run(request.clone(), &greedy, "audit-1", now()));
        if let Poll::Ready(refused) = futures::poll!(login.as_mut()) {
            assert_eq!(refused.expect_err("no permit").code, 429);
            break;
        }
        logins.push(login);
    }
    assert_eq!(logins.len(), 72);
    let mut login = Box::pin(exchange.run(request, &other, "audit-2", now()));
    assert!(futures::poll!(login.as_mut()).is_pending(), "it waits for the authenticator");
}

#[tokio::test]
async fn a_valid_token_returns_a_certificate_and_writes_two_events() {
    let (status, lines) = run(Case::default()).await;
    assert_eq!(status.message, None);
    let credential = status.credential.expect("a credential");
    let leaf = Certificate::parse_pem(credential.client_certificate_data.as_bytes()).expect("a certificate");
    assert_eq!(leaf.subject_cn, "pinny");
    assert_eq!(leaf.not_after, credential.expiration_timestamp.expect("a time").0);
    assert_eq!(leaf.not_after.to_string(), "2026-01-02T03:09:05Z");
    assert!(credential.client_key_data.expose().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert!(credential.token.is_empty());
    let token_id = Token::new(TOKEN).sha256_hex();
    assert_eq!(
        lines,
        [
            format!(
                r#""TokenCredentialRequest Token Received","auditEvent":true,"auditID":"audit-1","tokenID":"{token_id}""#
            ),
            concat!(
                r#""TokenCredentialRequest Authenticated User","auditEvent":true,"auditID":"audit-1","#,
                r#""personalInfo":{"username":"redacted","groups":["redacted 2 values"],"extras":{"redacted":"redacted 0 keys"}},"#,
                r#""issuedClientCert":{"notBefore":"2026-01-02T02:59:05Z","notAfter":"2026-01-02T03:09:05Z"},"#,
                r#""authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator","name":"my-webhook""#,
            )
            .to_owned(),
        ]
    );
}

#[tokio::test]
async fn failures_are_equal_for_the_client_and_differ_in_the_audit_log() {
    let extra = |key: &str| BTreeMap::from([(key.to_owned(), vec!["v".to_owned()])]);
    let unsupported = |count: usize, error: &str| {
        format!(
            r#""TokenCredentialRequest Unsupported UserInfo","auditEvent":true,"auditID":"audit-1","personalInfo":{{"userInfoName":"redacted","userInfoUID":"redacted"}},"userInfoExtrasCount":{count},"reason":"unsupported value in userInfo returned by authenticator","err":{error},"authenticator":"#
        )
    };
    let unexpected = |reason: &str, error: &str| {
        format!(
            r#""TokenCredentialRequest Unexpected Error","auditEvent":true,"auditID":"audit-1","reason":"{reason}","err":"{error}","authenticator":"#
        )
    };
    let cases = [
        (
            Case { name: "other", ..Case::default() },
            unexpected("authenticator returned an error", "no such authenticator"),
        ),
        (
            Case { api_group: None, ..Case::default() },
            unexpected("authenticator returned an error", "no such authenticator"),
        ),
        (
            Case { result: Err(AuthenticateError::Failed("boom".to_owned())), ..Case::default() },
            unexpected("authenticator returned an error", "boom"),
        ),
        (
            Case { result: Ok(None), ..Case::default() },
            r#""TokenCredentialRequest Authentication Failed","auditEvent":true,"auditID":"audit-1","reason":"auth rejected by authenticator","authenticator":"#.to_owned(),
        ),
        (
            Case { result: Ok(Some(user(""))), ..Case::default() },
            unsupported(0, r#""empty username is not allowed""#),
        ),
        (
            Case { result: Ok(Some(User { uid: "1".to_owned(), ..user("u") })), ..Case::default() },
            unsupported(0, r#""UIDs are not supported""#),
        ),
        (
            Case { result: Ok(Some(User { extra: extra("a.io/b=c"), ..user("u") })), ..Case::default() },
            unsupported(
                1,
                r#""authenticator returned illegal userInfo extra key(s): userInfo extra key \"a.io/b=c\": Invalid value: \"a.io/b=c\": Pinniped does not allow extra key names to contain equals sign""#,
            ),
        ),
        (
            Case { with_ca: false, ..Case::default() },
            unexpected(
                "cert issuer returned an error",
                "impersonation-proxy-signing-cert failed to issue client cert: could not load CA: tls: failed to find any PEM data in certificate input",
            ),
        ),
    ];
    for (case, wanted) in cases {
        let (status, lines) = run(case).await;
        assert_eq!(
            status,
            TokenCredentialRequestStatus {
                message: Some("authentication failed".to_owned()),
                ..TokenCredentialRequestStatus::default()
            }
        );
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with(&wanted), "{}\n{wanted}", lines[1]);
    }
}

#[tokio::test]
async fn a_login_whose_issuer_is_busy_gets_429_and_an_audit_event() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let audit = Auditor::with_sink(false, move |line| sink.lock().expect("lock").push(line.to_owned()));
    let case = Case::default();
    let authenticator = Arc::new(FixedResult(case.result.clone()));
    let (mut exchange, request) = exchange(case, authenticator, audit);
    // The certificate of another issuer would not be accepted by the server that the client uses.
    exchange.issuers.insert(0, Arc::new(FailingIssuer(|| IssuerError::Busy)));
    let refused = exchange.run(request, &client("10.0.0.1"), "audit-1", now()).await.expect_err("it is busy");
    assert_eq!(refused.code, 429);
    let lines = lines.lock().expect("lock").clone();
    let error = "signer failed to issue client cert: too many CertificateSigningRequests are open";
    assert!(lines.len() == 2 && lines[1].contains(error), "{lines:?}");
}

#[tokio::test]
async fn references_use_the_groups_of_the_installation() {
    let plain = "authentication.concierge.pinniped.dev";
    let cases = [
        ("tuna.io", Some("authentication.concierge.tuna.io"), true, plain),
        ("tuna.io", Some(plain), false, "_INVALID_API_GROUP_2026-01-01T00:00:00Z"),
        ("tuna.io", None, false, "_INVALID_API_GROUP_2026-01-01T00:00:00Z"),
        ("pinniped.dev", Some("other.example"), false, "other.example"),
        ("pinniped.dev", None, false, ""),
    ];
    for (suffix, api_group, works, audited) in cases {
        let (status, lines) = run(Case { suffix, api_group, ..Case::default() }).await;
        assert_eq!(status.credential.is_some(), works, "{suffix} {api_group:?}");
        assert!(lines[1].contains(&format!(r#""authenticator":{{"apiGroup":"{audited}","#)), "{}", lines[1]);
    }
}

/// Issues a token that is distinguishable from a certificate, or refuses.
struct Tokens(Result<(), TokenIssuerError>);

impl TokenIssuer for Tokens {
    fn issue<'a>(
        &'a self,
        _user: &'a ImpersonatedUser,
    ) -> BoxFuture<'a, Result<IssuedToken, TokenIssuerError>> {
        Box::pin(async {
            self.0.clone().map(|()| IssuedToken {
                token: SecretString::new("the-issued-token"),
                expires: "2026-01-02T03:09:05Z".parse().expect("a time"),
                service_account: "system:serviceaccount:users:pinniped-user-1".to_owned(),
                bound_secret: "users/pinniped-user-1-abcd2345".to_owned(),
                jti: "6b8a".to_owned(),
            })
        })
    }
}

fn requesting(accepts: &[&str], user: User) -> Case<'static> {
    Case {
        accepts: accepts.iter().map(|&type_| CredentialType::from(type_)).collect(),
        result: Ok(Some(user)),
        tokens: Arc::new(Tokens(Ok(()))),
        ..Case::default()
    }
}

#[tokio::test]
async fn a_requested_token_is_returned_with_the_user_to_impersonate() {
    let user = User { uid: "u-1".to_owned(), ..user("pinny") };
    let (status, lines) = run(requesting(&["ServiceAccountToken"], user)).await;
    let credential = status.credential.expect("a credential");
    assert_eq!(credential.token.expose(), "the-issued-token");
    assert_eq!(credential.expiration_timestamp.expect("a time").0.to_string(), "2026-01-02T03:09:05Z");
    assert!(credential.client_certificate_data.is_empty() && credential.client_key_data.is_empty());
    let wanted = ImpersonatedUser {
        username: "pinny".to_owned(),
        uid: "u-1".to_owned(),
        groups: vec!["a".to_owned(), "b".to_owned()],
        ..ImpersonatedUser::default()
    };
    assert_eq!(status.impersonate, Some(wanted));
    assert_eq!(
        lines[1],
        concat!(
            r#""TokenCredentialRequest Authenticated User","auditEvent":true,"auditID":"audit-1","#,
            r#""personalInfo":{"username":"redacted","uid":"redacted","groups":["redacted 2 values"],"#,
            r#""extras":{"redacted":"redacted 0 keys"}},"issuedServiceAccountToken":{"#,
            r#""serviceAccount":"system:serviceaccount:users:pinniped-user-1","#,
            r#""boundSecret":"users/pinniped-user-1-abcd2345","jti":"6b8a","notAfter":"2026-01-02T03:09:05Z"},"#,
            r#""authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator","name":"my-webhook""#,
        )
    );
    assert!(!lines.concat().contains("the-issued-token"));
}

#[tokio::test]
async fn only_accepted_types_are_issued_in_the_order_of_the_client() {
    let with_uid = || User { uid: "1".to_owned(), ..user("u") };
    let certificate = "certificate";
    for (accepts, user, with_ca, wanted) in [
        (&[][..], user("u"), true, certificate),
        (&[][..], user("u"), false, "nothing"),
        (&["ClientCertificate"], with_uid(), true, "nothing"),
        (&["ClientCertificate", "ServiceAccountToken"], user("u"), true, certificate),
        (&["ClientCertificate", "ServiceAccountToken"], user("u"), false, "token"),
        (&["ClientCertificate", "ServiceAccountToken"], with_uid(), true, "token"),
        (&["ServiceAccountToken", "ClientCertificate"], user("u"), true, "token"),
        (&["ServiceAccountToken", "ClientCertificate"], user("system:node:n"), true, certificate),
        (&["Passkey", "ClientCertificate"], user("u"), true, certificate),
        (&["Passkey"], user("u"), true, "nothing"),
        (&["ServiceAccountToken", "ServiceAccountToken"], user("system:node:n"), true, "nothing"),
    ] {
        let name = format!("{accepts:?} {user:?} {with_ca}");
        let (status, _) = run(Case { with_ca, ..requesting(accepts, user) }).await;
        let issued = status
            .credential
            .as_ref()
            .map_or("nothing", |credential| if credential.token.is_empty() { certificate } else { "token" });
        assert_eq!(issued, wanted, "{name}");
        assert_eq!(status.impersonate.is_some(), wanted == "token", "{name}");
        assert_eq!(status.message.is_some(), wanted == "nothing", "{name}");
    }
}

#[tokio::test]
async fn the_reason_of_a_failed_token_is_only_in_the_audit_log() {
    let refuses = |error: TokenIssuerError| Case {
        tokens: Arc::new(Tokens(Err(error))),
        ..requesting(&["ServiceAccountToken"], user("u"))
    };
    let account = || "pinniped-user-1".to_owned();
    for (case, reason, error) in [
        (
            requesting(&["ServiceAccountToken"], user("system:serviceaccount:a:b")),
            "unsupported value in userInfo returned by authenticator",
            r#"username \"system:serviceaccount:a:b\" is reserved for Kubernetes"#,
        ),
        (
            refuses(TokenIssuerError::Off),
            "service account token issuer returned an error",
            "service account tokens are not enabled",
        ),
        (
            refuses(TokenIssuerError::RbacNotYetEffective { account: account() }),
            "rbac not yet effective",
            r#"did not allow \"pinniped-user-1\" to impersonate its user within 5s"#,
        ),
        (
            requesting(&["Passkey"], user("u")),
            "no credential type that the client accepts is supported",
            r#""authenticator""#,
        ),
    ] {
        let (status, lines) = run(case).await;
        let wanted = TokenCredentialRequestStatus {
            message: Some("authentication failed".to_owned()),
            ..TokenCredentialRequestStatus::default()
        };
        assert_eq!(status, wanted);
        assert!(lines[1].contains(&format!(r#""reason":"{reason}""#)), "{}", lines[1]);
        assert!(lines[1].contains(error), "{}", lines[1]);
    }
}

#[tokio::test]
async fn logins_are_counted_by_authenticator_strategy_and_result() {
    let (logins, metrics) = (LoginMetrics::default(), pinniped_metrics::Metrics::new());
    logins.register(&metrics);
    for case in [
        Case::default(),
        Case { name: "no-such", ..Case::default() },
        Case { with_ca: false, ..Case::default() },
        Case { result: Ok(None), ..Case::default() },
        Case { result: Err(AuthenticateError::InvalidToken("expired".to_owned())), ..Case::default() },
        Case { result: Err(AuthenticateError::Overloaded("busy".to_owned())), ..Case::default() },
        Case { result: Err(AuthenticateError::Failed("down".to_owned())), ..Case::default() },
    ] {
        let authenticator = Arc::new(FixedResult(case.result.clone()));
        let (mut exchange, request) = exchange(case, authenticator, Auditor::with_sink(false, |_| {}));
        exchange.metrics = logins.clone();
        exchange.run(request, &client("10.0.0.1"), "audit-1", now()).await.expect("a permit");
    }
    let text = metrics.text().expect("text");
    let counted: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("pinniped_logins_total")).collect();
    let expected = [
        r#"{authenticator_kind="unknown",strategy="none",result="no_authenticator",authenticator=""} 1"#,
        r#"{authenticator_kind="webhook",strategy="ImpersonationProxy",result="issued",authenticator="my-webhook"} 1"#,
        r#"{authenticator_kind="webhook",strategy="none",result="rejected",authenticator="my-webhook"} 2"#,
        r#"{authenticator_kind="webhook",strategy="none",result="authenticator_failed",authenticator="my-webhook"} 1"#,
        r#"{authenticator_kind="webhook",strategy="none",result="issuer_failed",authenticator="my-webhook"} 1"#,
        r#"{authenticator_kind="webhook",strategy="none",result="overloaded",authenticator="my-webhook"} 1"#,
    ];
    assert_eq!(counted, expected, "{text}");
    let duration =
        r#"pinniped_login_duration_seconds_count{authenticator_kind="webhook",authenticator="my-webhook"} 6"#;
    assert!(text.contains(duration), "{text}");
}
