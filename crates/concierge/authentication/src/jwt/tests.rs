//! Tests with a scripted issuer and real TLS connections: the verification of tokens in its order,
//! the keys while the issuer changes or does not respond, and the faults of an issuer.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures::future::join_all;
use pinniped_concierge_domain::jwt_authenticator::conditions::Progress;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set, token};
use pinniped_oidc::WaitLimits;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_test_support::issuer::{DISCOVERY_PATH, KEYS_PATH, Reply, ScriptedIssuer};
use serde_json::{Value, json};

use super::provider::KEY_WAIT_LIMITS;
use super::*;

mod distributed;
mod faults;
mod rotation;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An issuer with one key of each algorithm.
struct Provider {
    issuer: ScriptedIssuer,
    rs256: Signer,
    es256: Signer,
}

impl Provider {
    async fn start() -> Self {
        pinniped_pki::install_crypto_provider();
        let issuer = ScriptedIssuer::start(LOCALHOST).await.unwrap();
        let (rs256, es256) =
            (Signer::generate(Algorithm::Rs256, "rs"), Signer::generate(Algorithm::Es256, "es"));
        issuer.publish(&key_set([&rs256, &es256]));
        Self { issuer, rs256, es256 }
    }

    /// Builds an authenticator whose spec has these fields; the time is [`now`].
    async fn validate(&self, fields: Value) -> Result<JwtAuthenticator, Progress> {
        let mut spec = json!({"issuer": self.issuer.url(), "audience": "aud"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let params = ProviderParams {
            roots: Roots::Bundle(CaBundle::from_pem(self.issuer.ca_pem.as_bytes()).unwrap()),
            proxies: &ProxyEnvironment::default(),
            ciphers: &CipherRestriction::default(),
        };
        let built = validate(&serde_json::from_value(spec).unwrap(), params).await?;
        Ok(JwtAuthenticator { now, ..built })
    }

    /// Builds an authenticator whose logins wait for keys as long as a slow machine needs.
    async fn authenticator(&self) -> JwtAuthenticator {
        let built = self.validate(json!({})).await.unwrap();
        let patient = WaitLimits { max_wait: Duration::from_secs(600), ..KEY_WAIT_LIMITS };
        JwtAuthenticator { keys: built.keys.with_wait_limits(patient), ..built }
    }

    /// Returns the claims of a valid token with these in addition, or in their place.
    fn claims(&self, more: &Value) -> Value {
        let mut claims = json!({"iss": self.issuer.url(), "aud": "aud", "exp": NOW + 60, "username": "u"});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        claims
    }
}

/// 2026-01-01T00:00:00Z.
const NOW: i64 = 1_767_225_600;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// Logs in; errors as text.
async fn log_in(authenticator: &JwtAuthenticator, token: &str) -> Result<Option<User>, String> {
    authenticator.authenticate(&Token::new(token)).await.map_err(|error| error.to_string())
}

fn named(name: &str, groups: &[&str]) -> User {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    User { name: name.to_owned(), groups, ..User::default() }
}

#[tokio::test]
async fn a_valid_token_gives_its_user() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    for signer in [&provider.rs256, &provider.es256] {
        let claims = provider.claims(&json!({"aud": ["x", "aud"], "groups": ["g", "h"], "jti": "id"}));
        let user = log_in(&authenticator, &signer.sign(&claims)).await.unwrap().unwrap();
        let mut wanted = named("u", &["g", "h"]);
        wanted
            .extra
            .insert("authentication.kubernetes.io/credential-id".to_owned(), vec!["JTI=id".to_owned()]);
        assert_eq!(user, wanted);
    }
    assert_eq!(
        provider.issuer.seen(KEYS_PATH).len(),
        1,
        "the keys were fetched once, before the first login"
    );
}

#[tokio::test]
async fn text_that_is_no_token_of_the_issuer_is_rejected_without_an_error() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let sign = |claims: &Value| provider.es256.sign(claims);
    let twice = format!(r#"{{"iss": "{0}", "iss": "{0}"}}"#, provider.issuer.url());
    let deep = format!(r#"{{"a": {}"#, "[".repeat(100_000));
    for text in [
        String::new(),
        "pinny:password123".to_owned(),
        "a.b.c".to_owned(),
        "..".to_owned(),
        "x".repeat(1 << 20),
        format!("e30.{}.e30", "e30".repeat(400_000)),
        sign(&json!({})),
        sign(&json!([])),
        sign(&provider.claims(&json!({"large": "x".repeat(1 << 20)}))),
        sign(&provider.claims(&json!({"iss": "https://other.example"}))),
        sign(&provider.claims(&json!({"iss": format!("{}/", provider.issuer.url())}))),
        sign(&provider.claims(&json!({"iss": [provider.issuer.url()]}))),
        sign(&provider.claims(&json!({"iss": null}))),
        provider.es256.sign_text(r#"{"alg":"ES256"}"#, &twice),
        provider.es256.sign_text(r#"{"alg":"ES256"}"#, &deep),
    ] {
        assert_eq!(log_in(&authenticator, &text).await, Ok(None), "{}", &text[..text.len().min(100)]);
    }
    assert_eq!(provider.issuer.seen(KEYS_PATH).len(), 1);
}

#[tokio::test]
async fn each_check_has_the_error_of_upstream_and_they_have_an_order() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let valid = provider.claims(&json!({}));
    let with = |more: Value| provider.es256.sign(&provider.claims(&more));
    let unsupported = |name: &str| {
        format!(
            "oidc: id token signed with unsupported algorithm, expected [\"RS256\" \"ES256\"] got \"{name}\""
        )
    };
    // A public key must not serve as a shared secret.
    let shared = |input: &[u8]| {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &provider.rs256.public_key());
        aws_lc_rs::hmac::sign(&key, input).as_ref().to_vec()
    };
    let foreign = Signer::generate(Algorithm::Es256, "es");
    let expired = |time: &str| format!("oidc: token is expired (Token Expiry: {time})");
    let source = json!({"_claim_names": {"x": "s"}});
    let mut bad_in_every_way = provider.claims(&json!({"aud": "x", "exp": 1, "username": 1}));
    bad_in_every_way["_claim_names"] = json!({"x": "s"});
    for (token, wanted) in [
        (Signer::generate(Algorithm::Es384, "es").sign(&bad_in_every_way), unsupported("ES384")),
        (token(r#"{"alg":"none"}"#, &valid.to_string(), |_| vec![]), unsupported("none")),
        (token(r#"{"alg":"HS256","kid":"rs"}"#, &valid.to_string(), shared), unsupported("HS256")),
        (
            foreign.sign(&bad_in_every_way),
            "failed to verify signature: failed to verify id token signature".to_owned(),
        ),
        (provider.es256.sign(&bad_in_every_way), "oidc: source does not exist".to_owned()),
        (with(source), "oidc: source does not exist".to_owned()),
        (with(json!({"aud": ["x", "y"], "exp": 1})), r#"oidc: expected audience "aud" got ["x" "y"]"#.to_owned()),
        (with(json!({"aud": null})), r#"oidc: expected audience "aud" got []"#.to_owned()),
        (with(json!({"exp": NOW - 1, "nbf": NOW + 100})), expired("2025-12-31 23:59:59 +0000 UTC")),
        (with(json!({"exp": null})), expired("0001-01-01 00:00:00 +0000 UTC")),
        (
            with(json!({"nbf": NOW + 61, "username": 1})),
            "oidc: current time 2026-01-01 00:00:00 +0000 UTC before the nbf (not before) time: 2026-01-01 00:01:01 \
             +0000 UTC"
                .to_owned(),
        ),
    ] {
        let wanted = Err(format!("oidc: verify token: {wanted}"));
        assert_eq!(log_in(&authenticator, &token).await, wanted);
    }
    // The clock of the issuer may be a minute ahead, and the time of issue does not matter.
    for claims in [json!({"nbf": NOW + 60}), json!({"iat": NOW + 10_000}), json!({"exp": NOW})] {
        assert_eq!(log_in(&authenticator, &with(claims)).await, Ok(Some(named("u", &[]))));
    }
    // An error of the identity has no prefix.
    let wanted = r#"oidc: parse username claims "username": json: cannot unmarshal number into Go value of type string"#;
    assert_eq!(log_in(&authenticator, &with(json!({"username": 1}))).await, Err(wanted.to_owned()));
}

#[tokio::test]
async fn malformed_tokens_of_the_issuer_are_errors_and_keys_of_tokens_are_not_used() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let claims = provider.claims(&json!({})).to_string();
    let foreign = Signer::generate(Algorithm::Es256, "es");
    let url = format!("{}/attacker", provider.issuer.url());
    for (header, message) in [
        (json!({"alg": "ES256", "kid": "es", "crit": ["exp"]}), "oidc: malformed jwt"),
        (json!({"kid": "es"}), "oidc: malformed jwt"),
        (json!({"alg": "ES256", "kid": 1}), "oidc: malformed jwt"),
        (json!({"alg": "ES256", "jwk": foreign.jwk()}), "failed to verify id token signature"),
        (json!({"alg": "ES256", "jku": url}), "failed to verify id token signature"),
        (json!({"alg": "ES256", "x5u": url}), "failed to verify id token signature"),
    ] {
        let error =
            log_in(&authenticator, &foreign.sign_text(&header.to_string(), &claims)).await.unwrap_err();
        assert!(error.starts_with("oidc: verify token: ") && error.contains(message), "{header} {error}");
    }
    let twice = claims.replacen('{', r#"{"username": "other", "#, 1);
    let header = r#"{"alg": "ES256", "kid": "es"}"#;
    let error = log_in(&authenticator, &provider.es256.sign_text(header, &twice)).await.unwrap_err();
    assert!(error.contains("duplicate member name"), "{error}");
    for depth in [64, 20_000] {
        let nested = format!(r#"{{"a": {}{}, "#, "[".repeat(depth), "]".repeat(depth));
        let nested = provider.es256.sign_text(header, &claims.replacen('{', &nested, 1));
        let error = log_in(&authenticator, &nested).await.unwrap_err();
        assert!(error.contains("oidc: malformed jwt: the payload is not valid"), "{error}");
    }
    assert_eq!(provider.issuer.seen("/attacker").len(), 0);
}

#[tokio::test]
async fn an_invalid_token_is_no_failure_of_the_issuer() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let foreign = Signer::generate(Algorithm::Es256, "es");
    let valid = provider.claims(&json!({}));
    let with = |more: Value| provider.es256.sign(&provider.claims(&more));
    for token in [
        foreign.sign(&valid),
        with(json!({"exp": NOW - 1})),
        with(json!({"aud": "other"})),
        with(json!({"username": 1})),
        provider.es256.sign_text("{}", &valid.to_string()),
    ] {
        let result = authenticator.authenticate(&Token::new(token)).await;
        assert!(matches!(result, Err(AuthenticateError::InvalidToken(_))), "{result:?}");
    }
    let unknown = Token::new(foreign.sign(&valid));
    provider.issuer.reply(KEYS_PATH, Reply::not_found());
    let result = authenticator.authenticate(&unknown).await;
    assert!(matches!(result, Err(AuthenticateError::Failed(_))), "{result:?}");
    let none = WaitLimits { max_callers: 0, ..KEY_WAIT_LIMITS };
    let busy = JwtAuthenticator { keys: authenticator.keys.with_wait_limits(none), ..authenticator };
    let result = busy.authenticate(&unknown).await;
    assert!(matches!(result, Err(AuthenticateError::Overloaded(_))), "{result:?}");
}

#[tokio::test]
async fn nothing_prints_a_token_or_a_claim() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let text = format!("{authenticator:?}");
    assert!(text.contains(&provider.issuer.url()), "{text}");
    let token = provider.es256.sign(&provider.claims(&json!({"aud": "x", "secret": "hidden"})));
    let error = log_in(&authenticator, &token).await.unwrap_err();
    assert!(!error.contains("hidden") && !error.contains(&token[..20]), "{error}");
}
