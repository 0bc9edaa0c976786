use std::sync::LazyLock;

use pinniped_jose::test_util::{Signer, at_hash_sha256, key_set, token};
use serde_json::{Value, json};

use super::*;
use crate::unverified_issuer;

static SIGNER: LazyLock<Signer> = LazyLock::new(|| Signer::generate(Algorithm::Rs256, "k"));

const ISSUER: &str = "https://issuer.example";

fn now() -> Timestamp {
    "2026-11-24T12:00:00.5Z".parse().unwrap()
}

/// The current time plus some seconds, as a claim.
fn at(seconds: i64) -> i64 {
    now().as_second() + seconds
}

fn verifier() -> IdTokenVerifier {
    IdTokenVerifier {
        issuer: ISSUER.to_owned(),
        audience: "aud".to_owned(),
        algorithms: vec![Algorithm::Rs256, Algorithm::Es256],
        not_before_leeway: Duration::from_secs(60),
    }
}

fn keys() -> KeySet {
    KeySet::parse(key_set([&*SIGNER]).to_string().as_bytes()).unwrap()
}

fn verify(verifier: &IdTokenVerifier, token: &str) -> Result<IdToken, String> {
    let token = UnverifiedIdToken::parse(token).map_err(|error| error.to_string())?;
    verifier.verify_with(token, &keys(), now()).map_err(|error| error.to_string())
}

/// Claims that are accepted, with some of them replaced.
fn claims(replaced: &Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "sub": "alice", "aud": "aud", "exp": at(60)});
    for (name, value) in replaced.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn verify_claims(replaced: &Value) -> Result<IdToken, String> {
    verify(&verifier(), &SIGNER.sign(&claims(replaced)))
}

#[test]
fn a_good_token_is_accepted_with_all_its_claims() {
    let replaced = json!({"iat": at(-10), "nonce": "n", "groups": ["a", "b"], "at_hash": "h"});
    let token = verify_claims(&replaced).unwrap();
    assert_eq!((token.issuer.as_str(), token.subject.as_str()), (ISSUER, "alice"));
    assert_eq!((token.audience, token.nonce.as_str()), (vec!["aud".to_owned()], "n"));
    assert_eq!(token.expiry.as_second(), at(60));
    assert_eq!(token.issued_at.map(Timestamp::as_second), Some(at(-10)));
    assert_eq!(token.algorithm, Algorithm::Rs256);
    assert_eq!(Value::Object(token.claims), claims(&replaced));
}

#[test]
fn claims_are_verified_with_the_texts_of_go_oidc() {
    for (replaced, expected) in [
        (json!({"aud": ["other", "aud"]}), None),
        (json!({"aud": ["aud"]}), None),
        (json!({"aud": "other"}), Some(r#"oidc: expected audience "aud" got ["other"]"#)),
        (json!({"aud": ["x", "y\""]}), Some(r#"oidc: expected audience "aud" got ["x" "y\""]"#)),
        (json!({"aud": []}), Some(r#"oidc: expected audience "aud" got []"#)),
        (json!({"aud": null}), Some(r#"oidc: expected audience "aud" got []"#)),
        (json!({"aud": "AUD"}), Some(r#"oidc: expected audience "aud" got ["AUD"]"#)),
        // The clock has half a second more than a full one.
        (json!({"exp": at(1)}), None),
        (json!({"exp": at(0)}), Some("oidc: token is expired (Token Expiry: 2026-11-24 12:00:00 +0000 UTC)")),
        (
            json!({"exp": at(-60)}),
            Some("oidc: token is expired (Token Expiry: 2026-11-24 11:59:00 +0000 UTC)"),
        ),
        (json!({"exp": 0}), Some("oidc: token is expired (Token Expiry: 1970-01-01 00:00:00 +0000 UTC)")),
        (json!({"exp": null}), Some("oidc: token is expired (Token Expiry: 0001-01-01 00:00:00 +0000 UTC)")),
        (json!({"nbf": at(-5)}), None),
        (json!({"nbf": at(60)}), None),
        (
            json!({"nbf": at(61)}),
            Some(
                "oidc: current time 2026-11-24 12:00:00.5 +0000 UTC before the nbf (not before) time: \
                 2026-11-24 12:01:01 +0000 UTC",
            ),
        ),
        (json!({"iat": at(10_000)}), None),
        (
            json!({"iss": "https://other.example"}),
            Some(
                "oidc: id token issued by a different provider, expected \"https://issuer.example\" got \
                 \"https://other.example\"",
            ),
        ),
        (
            json!({"iss": "https://issuer.example/"}),
            Some(
                "oidc: id token issued by a different provider, expected \"https://issuer.example\" got \
                 \"https://issuer.example/\"",
            ),
        ),
        (
            json!({"exp": "soon"}),
            Some(
                "oidc: failed to unmarshal claims: json: cannot unmarshal string into Go struct field \
                 idToken.exp of type json.Number",
            ),
        ),
        (json!({"_claim_names": {"groups": ""}}), Some("oidc: failed to obtain source from claim name")),
        (json!({"_claim_names": {"groups": "s"}}), Some("oidc: source does not exist")),
        // Sources are checked before the audience.
        (json!({"_claim_names": {"other": "s"}, "aud": "x"}), Some("oidc: source does not exist")),
    ] {
        let result = verify_claims(&replaced);
        assert_eq!(result.as_ref().err().map(String::as_str), expected, "{replaced}");
    }
}

#[test]
fn the_leeway_is_an_argument() {
    let verifier = IdTokenVerifier { not_before_leeway: Duration::from_secs(300), ..verifier() };
    assert!(verify(&verifier, &SIGNER.sign(&claims(&json!({"nbf": at(300)})))).is_ok());
    assert!(verify(&verifier, &SIGNER.sign(&claims(&json!({"nbf": at(301)})))).is_err());
    // It does not apply to the expiry.
    assert!(verify(&verifier, &SIGNER.sign(&claims(&json!({"exp": at(-1)})))).is_err());
    let endless = IdTokenVerifier { not_before_leeway: Duration::MAX, ..verifier };
    assert!(verify(&endless, &SIGNER.sign(&claims(&json!({"nbf": at(301)})))).is_ok());
}

#[test]
fn an_empty_audience_accepts_nothing() {
    let verifier = IdTokenVerifier { audience: String::new(), ..verifier() };
    for audience in [json!(""), json!([""]), json!("aud"), Value::Null] {
        assert!(verify(&verifier, &SIGNER.sign(&claims(&json!({"aud": audience})))).is_err());
    }
}

#[test]
fn only_google_may_omit_the_scheme_of_its_issuer() {
    let google = IdTokenVerifier { issuer: GOOGLE.to_owned(), ..verifier() };
    for issuer in [GOOGLE, GOOGLE_WITHOUT_SCHEME] {
        let token = SIGNER.sign(&claims(&json!({"iss": issuer})));
        assert_eq!(unverified_issuer(&token).as_deref(), Some(GOOGLE));
        assert_eq!(UnverifiedIdToken::parse(&token).unwrap().issuer(), Some(GOOGLE));
        assert_eq!(verify(&google, &token).unwrap().issuer, issuer);
    }
    let token = SIGNER.sign(&claims(&json!({"iss": "issuer.example"})));
    assert_eq!(unverified_issuer(&token).as_deref(), Some("issuer.example"));
    assert!(verify(&verifier(), &token).is_err());
}

#[test]
fn algorithms_and_signatures_are_verified_before_the_claims() {
    let forged = |header: &str| token(header, &json!({"iss": 1}).to_string(), |_| vec![0; 256]);
    let expected = |name: &str| {
        format!(
            "oidc: id token signed with unsupported algorithm, expected [\"RS256\" \"ES256\"] got \"{name}\""
        )
    };
    for name in ["none", "HS256", "ES384", "PS256", "EdDSA"] {
        assert_eq!(
            verify(&verifier(), &forged(&format!(r#"{{"alg":"{name}"}}"#))).unwrap_err(),
            expected(name)
        );
    }
    let signature = "failed to verify signature: failed to verify id token signature";
    assert_eq!(verify(&verifier(), &forged(r#"{"alg":"RS256"}"#)).unwrap_err(), signature);
    assert_eq!(verify(&verifier(), &forged(r#"{"alg":"ES256","kid":"k"}"#)).unwrap_err(), signature);
}

#[test]
fn an_hmac_with_the_public_key_is_refused() {
    use aws_lc_rs::hmac;
    let payload = claims(&json!({})).to_string();
    for header in [r#"{"alg":"HS256","kid":"k"}"#, r#"{"alg":"RS256","kid":"k"}"#] {
        let token = token(header, &payload, |input| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &SIGNER.public_key()), input).as_ref().to_vec()
        });
        assert!(verify(&verifier(), &token).is_err(), "{header}");
    }
}

#[test]
fn malformed_tokens_are_refused_without_quoting_them() {
    let header = r#"{"alg":"RS256","kid":"k"}"#;
    let nested = format!(r#"{{"iss":"{ISSUER}","secret":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    for (token, part) in [
        ("secret".to_owned(), "three parts"),
        ("secret".repeat(1 << 18), "longer than"),
        (
            SIGNER.sign_text(header, &format!(r#"{{"iss":"{ISSUER}","iss":"secret"}}"#)),
            "duplicate member name",
        ),
        (SIGNER.sign_text(header, r#"{"aud":"aud","\u0061ud":"secret"}"#), "duplicate member name"),
        (SIGNER.sign_text(header, &nested), "nested too deeply"),
        (SIGNER.sign_text(header, r#""secret""#), "not an object"),
        (SIGNER.sign_text(header, "secret"), "expected value"),
        (SIGNER.sign_text(r#"{"alg":"RS256","crit":["exp"]}"#, "{}"), "critical"),
    ] {
        let error = verify(&verifier(), &token).unwrap_err();
        assert!(error.starts_with("oidc: malformed jwt: ") && error.contains(part), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn the_issuer_of_a_malformed_token_is_known_if_its_payload_is_json() {
    for (token, expected) in [
        (format!("!.{}.!", SIGNER.sign(&claims(&json!({}))).split('.').nth(1).unwrap()), Some(ISSUER)),
        (SIGNER.sign_text("", r#"{"iss":"a"}"#), Some("a")),
        (SIGNER.sign_text("", r#"{"iss":"a","aud":1,"aud":2}"#), Some("a")),
        (SIGNER.sign_text("", r#"{"iss":"a","iss":"b"}"#), None),
        (SIGNER.sign_text("", r#"{"iss":1}"#), None),
        (SIGNER.sign_text("", r#"["a"]"#), None),
        (SIGNER.sign_text("", r#"{"ISS":"a"}"#), None),
        ("a.b".to_owned(), None),
        ("a.b.c.d".to_owned(), None),
        ("opaque".to_owned(), None),
        ("a".repeat(1 << 20), None),
    ] {
        assert_eq!(unverified_issuer(&token).as_deref(), expected, "{}", &token[..token.len().min(80)]);
    }
}

#[test]
fn sources_of_distributed_claims_are_returned_and_not_printed() {
    let token = verify_claims(&json!({
        "_claim_names": {"groups": "src1", "other": "src2"},
        "_claim_sources": {
            "src1": {"endpoint": "https://e.example", "access_token": "secret"},
            "src2": {"JWT": "a.b.c"},
            "src3": {},
        },
    }))
    .unwrap();
    let groups = &token.claim_sources["groups"];
    assert_eq!((groups.endpoint.as_str(), groups.access_token.expose()), ("https://e.example", "secret"));
    assert_eq!(token.claim_sources["other"].endpoint, "");
    assert_eq!(token.claim_sources.len(), 2);
    assert!(!format!("{token:?} {groups:?}").contains("secret"));
}

#[test]
fn access_tokens_and_nonces_are_compared() {
    use crate::id_token::AccessTokenHashError as Error;
    let token = verify_claims(&json!({"nonce": "n", "at_hash": at_hash_sha256("access")})).unwrap();
    assert_eq!(token.verify_access_token("access"), Ok(()));
    assert_eq!(token.verify_access_token("other"), Err(Error::Mismatch));
    assert_eq!(token.verify_nonce("n"), Ok(()));
    let error = token.verify_nonce("m").unwrap_err().to_string();
    assert_eq!(error, r#"invalid nonce (expected "m", got "n")"#);
    let token = verify_claims(&json!({})).unwrap();
    assert_eq!(token.verify_access_token("access"), Err(Error::Missing));
    assert!(token.verify_nonce("").is_err());
}
