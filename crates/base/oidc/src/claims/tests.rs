use serde_json::json;

use super::*;

fn of(claims: Value) -> Result<RegisteredClaims, String> {
    let Value::Object(claims) = claims else { panic!("claims are an object") };
    RegisteredClaims::of(&claims).map_err(|error| error.to_string())
}

#[test]
fn missing_claims_are_empty() {
    for claims in [
        json!({}),
        json!({"iss": null, "sub": null, "aud": null, "exp": null, "iat": null, "nbf": null, "nonce": null,
               "at_hash": null, "_claim_names": null, "_claim_sources": null}),
    ] {
        let read = of(claims).unwrap();
        assert_eq!((read.issuer.as_str(), read.subject.as_str(), read.audience.len()), ("", "", 0));
        assert_eq!((read.expiry, read.issued_at, read.not_before), (None, None, None));
        assert!(read.claim_names.is_empty() && read.claim_sources.is_empty());
    }
}

#[test]
fn audiences_are_one_string_or_a_list() {
    for (audience, expected) in [
        (json!("a"), &["a"][..]),
        (json!(["a", "b"]), &["a", "b"]),
        (json!([]), &[]),
        (json!(["a", null]), &["a", ""]),
    ] {
        assert_eq!(of(json!({"aud": audience})).unwrap().audience, expected);
    }
}

#[test]
fn times_are_numbers_as_in_go() {
    let at = |second| Timestamp::from_second(second).unwrap();
    for (time, expected) in [
        (json!(0), at(0)),
        (json!(1_700_000_000), at(1_700_000_000)),
        (json!(1_700_000_000.9), at(1_700_000_000)),
        (json!(1.7e9), at(1_700_000_000)),
        (json!("1700000000"), at(1_700_000_000)),
        (json!(-5), at(-5)),
        (json!(i64::MAX), Timestamp::MAX),
        (json!(u64::MAX), Timestamp::MAX),
        (json!(i64::MIN), Timestamp::MIN),
        // The conversion of Go gives the earliest time.
        (json!(1e30), Timestamp::MIN),
        (json!(-1e30), Timestamp::MIN),
    ] {
        assert_eq!(of(json!({"exp": time.clone()})).unwrap().expiry, Some(expected), "{time}");
    }
}

#[test]
fn a_claim_of_another_type_is_an_error_without_its_value() {
    for (claims, problem) in [
        (json!({"iss": 1}), "number into Go struct field idToken.iss of type string"),
        (json!({"sub": {"secret": 1}}), "object into Go struct field idToken.sub of type string"),
        (json!({"nonce": true}), "bool into Go struct field idToken.nonce of type string"),
        (json!({"at_hash": ["secret"]}), "array into Go struct field idToken.at_hash of type string"),
        (json!({"aud": 1}), "number into Go struct field idToken.aud of type []string"),
        (json!({"aud": ["a", 1]}), "number into Go struct field idToken.aud of type string"),
        (json!({"exp": "secret"}), "string into Go struct field idToken.exp of type json.Number"),
        (json!({"exp": ""}), "string into Go struct field idToken.exp of type json.Number"),
        (json!({"nbf": []}), "array into Go struct field idToken.nbf of type json.Number"),
        (json!({"iat": {}}), "object into Go struct field idToken.iat of type json.Number"),
        (json!({"_claim_names": []}), "array into Go struct field idToken._claim_names of type map"),
        (
            json!({"_claim_names": {"a": 1}}),
            "number into Go struct field idToken._claim_names of type string",
        ),
        (
            json!({"_claim_sources": {"a": "secret"}}),
            "string into Go struct field idToken._claim_sources of type oidc.claimSource",
        ),
        (
            json!({"_claim_sources": {"a": {"endpoint": 1}}}),
            "number into Go struct field idToken._claim_sources of type string",
        ),
    ] {
        assert_eq!(of(claims).unwrap_err(), format!("json: cannot unmarshal {problem}"));
    }
}
