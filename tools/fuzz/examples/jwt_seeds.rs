//! Writes the seeds of the targets `jwt` and `jwks`, with new keys. Run it in `tools/fuzz`.

use std::path::Path;

use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, base64url, key_set, token};
use serde_json::{Value, json};

/// The validity of the seeds; `jwt::now` is between the two.
const TIMES: (i64, i64) = (1_795_521_000, 1_795_600_000);

fn main() {
    let (rsa, ec) = (Signer::generate(Algorithm::Rs256, "rsa"), Signer::generate(Algorithm::Es256, "ec"));
    let keys = key_set([&rsa, &ec]);
    write("src/jwt/keys.json", format!("{keys:#}\n"));
    jwt(&rsa, &ec);
    jwks(&keys);
}

fn claims(more: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://issuer.example", "sub": "alice", "aud": "aud", "nbf": TIMES.0, "exp": TIMES.1,
        "groups": ["a", "b"],
    });
    for (name, value) in more.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

fn jwt(rsa: &Signer, ec: &Signer) {
    let header = r#"{"alg":"ES256","kid":"ec"}"#;
    let plain = claims(&json!({})).to_string();
    let secret = rsa.public_key();
    let hmac = |input: &[u8]| {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
        aws_lc_rs::hmac::sign(&key, input).as_ref().to_vec()
    };
    let nested = format!("{{\"iss\":\"https://issuer.example\",\"x\":{}{}}}", "[".repeat(80), "]".repeat(80));
    let brought =
        json!({"alg": "ES256", "kid": "ec", "jwk": ec.jwk(), "jku": "https://a.example", "x5c": ["AA"]});
    for (name, token) in [
        ("accepted-es256", ec.sign(&claims(&json!({})))),
        ("accepted-rs256", rsa.sign(&claims(&json!({"email": "a@example.com", "email_verified": true})))),
        ("accepted-audiences", ec.sign(&claims(&json!({"aud": ["other", "aud"]})))),
        ("none", format!("{}.{}.", base64url(r#"{"alg":"none"}"#), base64url(&plain))),
        ("hmac", token(r#"{"alg":"HS256","kid":"rsa"}"#, &plain, hmac)),
        ("hmac-as-rs256", token(r#"{"alg":"RS256","kid":"rsa"}"#, &plain, hmac)),
        ("critical", ec.sign_text(r#"{"alg":"ES256","kid":"ec","crit":["exp"]}"#, &plain)),
        ("brought-keys", ec.sign_text(&brought.to_string(), r#"{"iss":"https://issuer.example"}"#)),
        ("duplicate-header", ec.sign_text(r#"{"alg":"none","alg":"ES256"}"#, &plain)),
        ("duplicate-claim", ec.sign_text(header, r#"{"iss":"https://issuer.example","aud":"aud","aud":"x"}"#)),
        ("nested", ec.sign_text(header, &nested)),
        ("expired", ec.sign(&claims(&json!({"exp": TIMES.0})))),
        ("not-yet-valid", ec.sign(&claims(&json!({"nbf": TIMES.1})))),
        ("other-audience", ec.sign(&claims(&json!({"aud": "other"})))),
        ("other-issuer", ec.sign(&claims(&json!({"iss": "https://other.example"})))),
        ("wrong-types", ec.sign(&claims(&json!({"exp": "soon", "aud": {}})))),
        ("distributed", ec.sign(&claims(&json!({
            "_claim_names": {"roles": "s"}, "_claim_sources": {"s": {"endpoint": "https://e.example"}}, "aud": "x",
        })))),
        ("opaque", "some-other-token".to_owned()),
    ] {
        write(&format!("seeds/jwt/{name}"), token);
    }
}

fn jwks(keys: &Value) {
    write("seeds/jwks/two", keys.to_string());
    write("seeds/jwks/empty", "{}".to_owned());
    write("seeds/jwks/null", r#"{"keys":null}"#.to_owned());
    let (rsa, ec) = (&keys["keys"][0], &keys["keys"][1]);
    let with = |key: &Value, name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        key
    };
    let all = json!({"keys": [
        with(rsa, "use", "enc".into()), with(rsa, "alg", "PS512".into()), with(rsa, "e", "Ag".into()),
        with(rsa, "n", "AQAB".into()), with(rsa, "key_ops", json!(["verify"])), with(rsa, "d", "AQ".into()),
        with(ec, "crv", "P-384".into()), with(ec, "y", ec["x"].clone()), with(ec, "kid", Value::Null),
        with(ec, "x5c", json!(["AA"])), {"kty": "oct", "k": "AA"}, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}, 1,
    ]});
    write("seeds/jwks/odd", all.to_string());
}

fn write(path: &str, text: String) {
    std::fs::write(Path::new(path), text).expect("the file can be written");
}
