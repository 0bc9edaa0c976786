//! The token of a client that is not authenticated yet, as an authenticator for ID tokens reads it.
//! Input: the token.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_jose::{Algorithm, KeySet, MAX_TOKEN_SIZE};
use pinniped_oidc::{IdTokenVerifier, UnverifiedIdToken, unverified_issuer};
use serde_json::{Map, Value};

/// The public keys of the seeds. `examples/jwt_seeds.rs` writes them and forgets the private ones.
pub const KEYS: &str = include_str!("jwt/keys.json");

/// The seeds that are accepted.
pub const ACCEPTED: [&str; 3] = [
    include_str!("../seeds/jwt/accepted-es256"),
    include_str!("../seeds/jwt/accepted-rs256"),
    include_str!("../seeds/jwt/accepted-audiences"),
];

/// The time of all checks, at which the seeds are valid.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_795_521_600).expect("a time of this century")
}

/// The requirements of all checks.
pub fn verifier() -> IdTokenVerifier {
    IdTokenVerifier {
        issuer: "https://issuer.example".to_owned(),
        audience: "aud".to_owned(),
        algorithms: vec![Algorithm::Rs256, Algorithm::Es256],
        not_before_leeway: Duration::from_secs(60),
    }
}

thread_local! {
    static KEY_SET: KeySet = KeySet::parse(KEYS.as_bytes()).expect("the keys of the seeds");
}

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let issuer = unverified_issuer(text);
    let token = match UnverifiedIdToken::parse(text) {
        Ok(token) => token,
        Err(error) => {
            // An error quotes nothing of the token.
            assert!(error.to_string().len() < 200, "{error}");
            return;
        }
    };
    assert!(text.len() <= MAX_TOKEN_SIZE);
    assert_eq!(token.issuer(), issuer.as_deref());
    let signing_input = |token: &str| token.trim_end().rsplit_once('.').map(|(input, _)| input.to_owned());
    match KEY_SET.with(|keys| verifier().verify_with(token, keys, now())) {
        Err(error) => drop(error.to_string()),
        Ok(token) => {
            // The private keys were discarded, so the signed text must be that of a seed.
            let signed = signing_input(text);
            assert!(ACCEPTED.iter().any(|seed| signing_input(seed) == signed), "{text}");
            let payload = text.split('.').nth(1).expect("a payload");
            let payload = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, payload);
            let claims: Map<String, Value> =
                serde_json::from_slice(&payload.expect("base64url")).expect("an object");
            assert_eq!(token.claims, claims);
        }
    }
}
