use super::*;
use crate::test_util::base64url;

fn token(header: &str) -> String {
    format!("{}.{}.{}", base64url(header), base64url("{}"), base64url("signature"))
}

#[test]
fn the_parts_of_a_token_are_decoded() {
    let token = token(r#"{"alg":"RS256","kid":"a","typ":"JWT","other":{"x":[1]}}"#);
    let jws = Jws::parse(&token).unwrap();
    assert_eq!((jws.algorithm_name(), jws.key_id(), jws.type_name()), ("RS256", Some("a"), Some("JWT")));
    assert_eq!((jws.unverified_payload(), jws.signature()), (&b"{}"[..], &b"signature"[..]));
    assert_eq!(jws.signing_input(), token.rsplit_once('.').unwrap().0.as_bytes());
    assert_eq!(jws.algorithm(&[Algorithm::Es256, Algorithm::Rs256]), Ok(Algorithm::Rs256));
}

#[test]
fn an_empty_key_id_selects_no_key() {
    assert_eq!(Jws::parse(&token(r#"{"alg":"RS256","kid":""}"#)).unwrap().key_id(), None);
}

#[test]
fn text_that_is_no_token_is_refused() {
    let good = token(r#"{"alg":"RS256"}"#);
    let (header, payload) = (base64url(r#"{"alg":"RS256"}"#), base64url("{}"));
    for (text, part) in [
        (String::new(), "three parts"),
        ("webhook-token".to_owned(), "three parts"),
        ("a.b".to_owned(), "three parts"),
        (format!("{good}.x"), "three parts"),
        (".".repeat(MAX_TOKEN_SIZE), "three parts"),
        ("a".repeat(MAX_TOKEN_SIZE + 1), "longer than"),
        (format!("{good}{}", "A".repeat(1 << 20)), "longer than"),
        (format!("{header}=.{payload}.AA"), "the header is not valid base64url"),
        (format!("{header}.{payload}==.AA"), "the payload is not valid base64url"),
        (format!("{header}.{payload}.AA=="), "the signature is not valid base64url"),
        // Other bits in the last character decode to the same byte.
        (format!("{header}.{payload}.AB"), "the signature is not valid base64url"),
        (format!("{header}.{payload}.A+A/"), "the signature is not valid base64url"),
        (format!("{header}.{payload}.A\nA"), "the signature is not valid base64url"),
        (format!(" {good}"), "the header is not valid base64url"),
        (format!("{good}\n"), "the signature is not valid base64url"),
        (format!("..{payload}"), "the header is not valid"),
        (r#"{"payload":"a.b.c"}"#.to_owned(), "the header is not valid base64url"),
    ] {
        let error = Jws::parse(&text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}: {}", &text[..text.len().min(100)]);
    }
}

#[test]
fn headers_that_could_be_misread_are_refused() {
    for (header, part) in [
        (r#"{"alg":"none","alg":"RS256"}"#, "duplicate member name"),
        (r#"{"alg":"RS256","\u0061lg":"none"}"#, "duplicate member name"),
        (r#"{"alg":"RS256","jwk":{"kty":"a","kty":"b"}}"#, "duplicate member name"),
        (r#"{"alg":"RS256","crit":["b64"],"b64":false}"#, "critical"),
        (r#"{"alg":"RS256","crit":["exp"]}"#, "critical"),
        (r#"{"alg":"RS256","crit":[]}"#, "critical"),
        (r#"{"alg":"RS256","crit":null}"#, "critical"),
        (r#"{"kid":"a"}"#, "\"alg\" is not a string"),
        (r#"{"alg":null}"#, "\"alg\" is not a string"),
        (r#"{"alg":["RS256"]}"#, "\"alg\" is not a string"),
        (r#"{"alg":"RS256","kid":1}"#, "\"kid\" is not a string"),
        (r#"{"alg":"RS256","typ":{}}"#, "\"typ\" is not a string"),
        (r#"["alg"]"#, "not an object"),
        ("", "the header is not valid"),
    ] {
        let error = Jws::parse(&token(header)).unwrap_err().to_string();
        assert!(error.contains(part), "{header}: {error}");
    }
    let nested = format!("{{\"alg\":\"RS256\",\"x\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    assert!(Jws::parse(&token(&nested)).unwrap_err().to_string().contains("nested too deeply"));
}

#[test]
fn algorithms_that_are_not_allowed_are_named_as_in_go() {
    let allowed = [Algorithm::Rs256, Algorithm::Es256];
    for name in ["none", "None", "HS256", "ES384", "rs256", "a\\\"b"] {
        let token = token(&format!(r#"{{"alg":"{name}"}}"#));
        let error = Jws::parse(&token).unwrap().algorithm(&allowed).unwrap_err().to_string();
        assert_eq!(error, format!("unsupported algorithm, expected [\"RS256\" \"ES256\"] got \"{name}\""));
    }
    assert!(Jws::parse(&token(r#"{"alg":"RS256"}"#)).unwrap().algorithm(&[]).is_err());
}

#[test]
fn debug_prints_nothing_of_the_token() {
    let token = token(r#"{"alg":"RS256","kid":"some-key"}"#);
    assert_eq!(format!("{:?}", Jws::parse(&token).unwrap()), "Jws { algorithm: \"RS256\", .. }");
}
