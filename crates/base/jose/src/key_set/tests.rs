use serde_json::{Value, json};

use super::*;
use crate::test_util::{self, Signer, key_set};

fn set(json: &Value) -> KeySet {
    KeySet::parse(json.to_string().as_bytes()).unwrap()
}

fn verify(keys: &KeySet, token: &str) -> Result<Algorithm, SignatureError> {
    keys.verify(&Jws::parse(token).unwrap(), &Algorithm::ALL)
}

#[test]
fn all_nine_algorithms_verify_their_own_signatures_only() {
    for algorithm in Algorithm::ALL {
        let signer = Signer::generate(algorithm, "k");
        let keys = set(&key_set([&signer]));
        let token = signer.sign(&json!({"sub": "alice"}));
        assert_eq!(verify(&keys, &token), Ok(algorithm));
        let jws = Jws::parse(&token).unwrap();
        for other in Algorithm::ALL.into_iter().filter(|other| *other != algorithm) {
            assert!(matches!(keys.verify(&jws, &[other]), Err(SignatureError::Algorithm(_))), "{other}");
            let header = format!(r#"{{"alg":"{other}","kid":"k"}}"#);
            let relabelled = signer.sign_text(&header, r#"{"sub":"alice"}"#);
            assert_eq!(verify(&keys, &relabelled), Err(SignatureError::NoKey), "{algorithm} as {other}");
        }
        // Another payload, a cut and an extended signature, and none.
        let (input, signature) = token.rsplit_once('.').unwrap();
        let forged =
            format!("{}.{}.{signature}", input.split_once('.').unwrap().0, test_util::base64url("{}"));
        for bad in [
            forged,
            format!("{input}.{}", &signature[..signature.len() - 4]),
            format!("{input}.{signature}AAAA"),
            format!("{input}."),
        ] {
            match Jws::parse(&bad) {
                Ok(jws) => assert_eq!(keys.verify(&jws, &[algorithm]), Err(SignatureError::NoKey), "{bad}"),
                Err(error) => assert!(matches!(error, crate::JwsError::Base64("signature")), "{error}"),
            }
        }
    }
}

#[test]
fn the_examples_of_the_rfc_are_verified() {
    // RFC 7515, appendices A.2 and A.3.
    let keys = set(&json!({"keys": [
        {
            "kty": "RSA", "e": "AQAB",
            "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL\
                  -yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-\
                  KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h\
                  9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
        },
        {
            "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        },
    ]}));
    let payload =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let rs256 = format!(
        "eyJhbGciOiJSUzI1NiJ9.{payload}.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Q\
         c_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHl\
         b1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6Lb\
         gGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
    );
    let es256 = format!(
        "eyJhbGciOiJFUzI1NiJ9.{payload}.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqP\
         P3-Kg6NU1Q"
    );
    assert_eq!(verify(&keys, &rs256), Ok(Algorithm::Rs256));
    assert_eq!(verify(&keys, &es256), Ok(Algorithm::Es256));
    // Appendix A.1: HS256, and A.5: none.
    let hs256 = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly\
                 9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let none = format!("eyJhbGciOiJub25lIn0.{payload}.");
    for token in [hs256, &none] {
        assert!(matches!(verify(&keys, token), Err(SignatureError::Algorithm(_))));
    }
}

#[test]
fn an_hmac_with_the_public_key_as_its_secret_is_no_signature() {
    let signer = Signer::generate(Algorithm::Rs256, "k");
    let jwk = signer.jwk();
    let symmetric = json!({"kty": "oct", "kid": "k", "k": test_util::base64url(signer.public_key())});
    let keys = set(&json!({"keys": [jwk, symmetric]}));
    let secrets = [signer.public_key(), jwk["n"].as_str().unwrap().into(), jwk.to_string().into_bytes()];
    for secret in secrets {
        for header in [r#"{"alg":"HS256","kid":"k"}"#, r#"{"alg":"RS256","kid":"k"}"#] {
            let token = test_util::token(header, "{}", |input| {
                let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
                aws_lc_rs::hmac::sign(&key, input).as_ref().to_vec()
            });
            assert!(verify(&keys, &token).is_err());
        }
    }
}

#[test]
fn keys_that_the_token_brings_are_not_used() {
    let (signer, attacker) =
        (Signer::generate(Algorithm::Es256, "k"), Signer::generate(Algorithm::Es256, "k"));
    let keys = set(&key_set([&signer]));
    let header = json!({
        "alg": "ES256", "kid": "k", "jwk": attacker.jwk(),
        "jku": "https://attacker.example/keys", "x5u": "https://attacker.example/certificate", "x5c": ["AAAA"],
    });
    assert_eq!(verify(&keys, &attacker.sign_text(&header.to_string(), "{}")), Err(SignatureError::NoKey));
    // They have no effect on a token with the right key.
    assert_eq!(verify(&keys, &signer.sign_text(&header.to_string(), "{}")), Ok(Algorithm::Es256));
}

#[test]
fn the_id_selects_the_keys_that_are_tried() {
    let signers: Vec<_> =
        ["b", "a", "b", "c"].iter().map(|id| Signer::generate(Algorithm::Es256, id)).collect();
    let mut json = key_set(&signers);
    // Without an ID.
    json["keys"][3].as_object_mut().unwrap().remove("kid");
    let keys = set(&json);
    for (index, signer) in signers.iter().enumerate() {
        let with = |header: &str| verify(&keys, &signer.sign_text(header, "{}"));
        assert_eq!(with(r#"{"alg":"ES256"}"#), Ok(Algorithm::Es256), "{index}");
        assert_eq!(with(r#"{"alg":"ES256","kid":""}"#), Ok(Algorithm::Es256), "{index}");
        assert_eq!(with(r#"{"alg":"ES256","kid":"x"}"#), Err(SignatureError::NoKey), "{index}");
        // As in Go, a key without ID is not tried for a token with one.
        let own = with(&format!(r#"{{"alg":"ES256","kid":"{}"}}"#, signer.id()));
        assert_eq!(own.is_ok(), index != 3, "{index}");
    }
}

#[test]
fn keys_that_cannot_be_used_are_skipped() {
    let signer = Signer::generate(Algorithm::Es256, "k");
    let keys = set(&json!({"keys": [
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": "k"},
        {"kty": "oct", "k": "AAAA"},
        {"kty": "EC", "crv": "secp256k1", "alg": "ES256K", "x": "AA", "y": "AA"},
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "k"},
        1, null, "x", [], {},
        signer.jwk(),
    ], "other": {}}));
    assert_eq!((keys.len(), keys.skipped()), (1, 10));
    assert_eq!(verify(&keys, &signer.sign(&json!({}))), Ok(Algorithm::Es256));
    for empty in ["{}", r#"{"keys": null}"#, r#"{"keys": []}"#] {
        assert!(KeySet::parse(empty.as_bytes()).unwrap().is_empty(), "{empty}");
    }
}

#[test]
fn text_that_is_no_set_is_refused() {
    for text in [
        "",
        "null",
        "[]",
        "<html>",
        r#"{"keys": {}}"#,
        r#"{"keys": 1}"#,
        r#"{"keys": [], "keys": []}"#,
        "{}x",
    ] {
        assert!(matches!(KeySet::parse(text.as_bytes()), Err(KeySetError::Json(_))), "{text}");
    }
    let deep = format!(r#"{{"keys": [{}]}}"#, "[".repeat(1_000_000));
    assert!(KeySet::parse(deep.as_bytes()).is_err());
}

#[test]
fn the_number_and_the_size_of_keys_are_limited() {
    let signer = Signer::generate(Algorithm::Rs256, "key-9999");
    let jwk = |id: usize| {
        let mut jwk = signer.jwk();
        jwk["kid"] = format!("key-{id:04}").into();
        jwk
    };
    let all = json!({"keys": (0..MAX_KEYS).map(jwk).collect::<Vec<_>>()}).to_string();
    assert!(all.len() > 3 << 20);
    let keys = KeySet::parse(all.as_bytes()).unwrap();
    assert_eq!(keys.len(), MAX_KEYS);
    assert_eq!(verify(&keys, &signer.sign(&json!({}))), Ok(Algorithm::Rs256));

    let one_more = format!(r#"{{"keys": [{}1]}}"#, "1,".repeat(MAX_KEYS));
    assert!(KeySet::parse(one_more.as_bytes()).unwrap_err().to_string().contains("more than 10000 keys"));
    let large = format!(r#"{{"keys": [], "x": "{}"}}"#, "x".repeat(MAX_KEY_SET_SIZE));
    assert!(matches!(KeySet::parse(large.as_bytes()), Err(KeySetError::TooLarge)));
}

#[test]
fn one_token_tries_a_limited_number_of_keys() {
    let signers: Vec<_> = (0..=MAX_TRIED_KEYS).map(|_| Signer::generate(Algorithm::Es256, "k")).collect();
    let keys = set(&key_set(&signers));
    let tried: Vec<_> =
        signers.iter().map(|signer| verify(&keys, &signer.sign(&json!({}))).is_ok()).collect();
    assert!(tried[..MAX_TRIED_KEYS].iter().all(|verified| *verified));
    assert!(!tried[MAX_TRIED_KEYS]);
}
