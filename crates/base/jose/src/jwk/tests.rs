use serde_json::{Value, json};

use super::*;
use crate::test_util::{Signer, base64url};

fn parse(jwk: &Value) -> Result<PublicKey, String> {
    PublicKey::parse(&jwk.to_string()).map_err(|error| error.to_string())
}

fn with(jwk: &Value, name: &str, value: impl Into<Value>) -> Value {
    let mut jwk = jwk.clone();
    jwk[name] = value.into();
    jwk
}

fn without(jwk: &Value, name: &str) -> Value {
    let mut jwk = jwk.clone();
    jwk.as_object_mut().unwrap().remove(name);
    jwk
}

/// An RSA key whose modulus is not a product of primes: enough for the parser.
fn rsa_of(bits: usize) -> Value {
    let mut modulus = vec![0xff; bits.div_ceil(8)];
    if !bits.is_multiple_of(8) {
        modulus[0] = (1 << (bits % 8)) - 1;
    }
    json!({"kty": "RSA", "n": base64url(modulus), "e": "AQAB"})
}

#[test]
fn a_key_is_for_the_algorithms_that_fit_it() {
    let rsa = Signer::generate(Algorithm::Rs256, "a").jwk();
    let for_all = |jwk: &Value| -> Vec<Algorithm> {
        let key = parse(jwk).unwrap();
        Algorithm::ALL.into_iter().filter(|algorithm| key.is_for(*algorithm)).collect()
    };
    assert_eq!(for_all(&rsa), [Algorithm::Rs256]);
    let mut all = for_all(&without(&rsa, "alg"));
    all.sort();
    let mut expected = Algorithm::RSA;
    expected.sort();
    assert_eq!(all, expected);
    assert_eq!(for_all(&with(&rsa, "alg", "")).len(), 6);
    assert_eq!(for_all(&with(&rsa, "alg", "PS512")), [Algorithm::Ps512]);
    for algorithm in [Algorithm::Es256, Algorithm::Es384, Algorithm::Es512] {
        let ec = Signer::generate(algorithm, "a").jwk();
        assert_eq!(for_all(&ec), [algorithm]);
        assert_eq!(for_all(&without(&ec, "alg")), [algorithm]);
        assert!(parse(&with(&ec, "alg", "RS256")).unwrap_err().contains("does not fit"));
    }
    for name in ["ES256", "HS256", "none", "RSA-OAEP"] {
        assert!(parse(&with(&rsa, "alg", name)).unwrap_err().contains("does not fit"), "{name}");
    }
}

#[test]
fn keys_for_other_purposes_and_private_keys_are_refused() {
    let rsa = Signer::generate(Algorithm::Rs256, "a").jwk();
    assert!(parse(&without(&rsa, "use")).is_ok());
    assert!(parse(&with(&rsa, "key_ops", json!(["verify"]))).is_ok());
    for jwk in [
        with(&rsa, "use", "enc"),
        with(&rsa, "use", "tls"),
        with(&rsa, "key_ops", json!(["encrypt", "wrapKey"])),
        with(&rsa, "key_ops", json!([])),
    ] {
        assert!(parse(&jwk).unwrap_err().contains("not for the verification"), "{jwk}");
    }
    assert!(parse(&with(&rsa, "d", "AQ")).unwrap_err().contains("private"));
    for kty in ["oct", "OKP", "rsa", ""] {
        assert!(parse(&with(&rsa, "kty", kty)).unwrap_err().contains("type"), "{kty}");
    }
}

#[test]
fn rsa_keys_have_2048_to_8192_bits() {
    for (bits, good) in [
        (512, false),
        (1024, false),
        (2047, false),
        (2048, true),
        (3072, true),
        (4095, true),
        (8192, true),
        (8193, false),
        (16384, false),
    ] {
        let key = parse(&rsa_of(bits));
        assert_eq!(key.is_ok(), good, "{bits}");
        if let Err(error) = key {
            assert_eq!(error, format!("the RSA key has {bits} bits"));
        }
    }
}

#[test]
fn malformed_numbers_are_refused() {
    let rsa = rsa_of(2048);
    let ec = Signer::generate(Algorithm::Es256, "a").jwk();
    let short = base64url([1; 31]);
    let long = base64url([1; 33]);
    for jwk in [
        without(&rsa, "n"),
        without(&rsa, "e"),
        with(&rsa, "n", "not base64url!"),
        with(&rsa, "n", Value::Null),
        with(&rsa, "n", base64url([0xfe; 256])),
        with(&rsa, "e", ""),
        with(&rsa, "e", "AA"),
        with(&rsa, "e", "AQ"),
        with(&rsa, "e", "Ag"),
        with(&rsa, "e", base64url([0xff; 5])),
        without(&ec, "x"),
        without(&ec, "y"),
        with(&ec, "x", short.as_str()),
        with(&ec, "y", long.as_str()),
        with(&ec, "x", "A+/A"),
    ] {
        assert!(parse(&jwk).unwrap_err().contains("is not valid"), "{jwk}");
    }
    for jwk in
        [json!([]), json!("RSA"), json!({}), json!({"kty": 1}), with(&rsa, "kid", 1), with(&rsa, "n", 1)]
    {
        assert_eq!(parse(&jwk).unwrap_err(), "not a JSON Web Key", "{jwk}");
    }
    assert!(PublicKey::parse(r#"{"kty": "RSA", "kty": "EC"}"#).is_err());
    for curve in ["P-224", "secp256k1", "p-256", ""] {
        assert!(parse(&with(&ec, "crv", curve)).unwrap_err().contains("type"), "{curve}");
    }
}

#[test]
fn a_sign_byte_and_padding_are_dropped() {
    let signer = Signer::generate(Algorithm::Rs256, "a");
    let jwk = signer.jwk();
    let modulus = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
    let padded = base64::engine::general_purpose::URL_SAFE.encode([&[0], &modulus[..]].concat());
    assert!(padded.ends_with('='));
    let key = parse(&with(&with(&jwk, "n", padded), "e", "AAEAAQ==")).unwrap();
    let token = signer.sign(&json!({}));
    assert!(key.has_signed(&Jws::parse(&token).unwrap(), Algorithm::Rs256));
}

#[test]
fn a_point_that_is_not_on_the_curve_verifies_nothing() {
    let signer = Signer::generate(Algorithm::Es256, "a");
    let key = parse(&with(&signer.jwk(), "y", base64url([1; 32]))).unwrap();
    let token = signer.sign(&json!({}));
    assert!(!key.has_signed(&Jws::parse(&token).unwrap(), Algorithm::Es256));
}

#[test]
fn keys_differ_in_their_ids_numbers_and_algorithms() {
    let jwk = Signer::generate(Algorithm::Rs256, "a").jwk();
    let same = |other: &Value| parse(&jwk).unwrap().identity() == parse(other).unwrap().identity();
    assert!(same(&jwk) && same(&with(&jwk, "x5t", "AA")));
    for other in [
        with(&jwk, "kid", "b"),
        with(&jwk, "alg", "RS512"),
        with(&jwk, "e", "Aw"),
        Signer::generate(Algorithm::Rs256, "a").jwk(),
        Signer::generate(Algorithm::Es256, "a").jwk(),
        without(&jwk, "kid"),
    ] {
        assert!(!same(&other), "{other}");
    }
}
