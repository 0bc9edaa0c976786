//! The key set of a provider. Input: the set.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pinniped_jose::{Algorithm, Jws, KeySet, MAX_KEYS};
use serde_json::Value;

use crate::jwt::{ACCEPTED, KEYS};

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let Ok(keys) = KeySet::parse(data) else { return };
    // Members that are not read may have text or numbers that a `Value` cannot hold.
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let listed = value["keys"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(keys.len() + keys.skipped(), listed.len());
    assert!(listed.len() <= MAX_KEYS);
    assert!(keys.keys().is_sorted_by_key(|key| key.id().map(str::to_owned)));
    for key in keys.keys() {
        assert!(Algorithm::ALL.into_iter().any(|algorithm| key.is_for(algorithm)));
    }
    // A token is accepted only if the set has the numbers of its key.
    let owners: Value = serde_json::from_str(KEYS).expect("the keys of the seeds");
    for token in ACCEPTED {
        let jws = Jws::parse(token.trim_end()).expect("a token");
        if keys.verify(&jws, &Algorithm::ALL).is_ok() {
            let owned = |key: &Value| {
                owners["keys"].as_array().expect("a list").iter().any(|owner| equal(key, owner))
            };
            assert!(listed.iter().any(owned), "{value}");
        }
    }
}

/// Returns whether two keys have the same numbers.
fn equal(one: &Value, other: &Value) -> bool {
    let names: &[&str] = if other["kty"] == "RSA" { &["n", "e"] } else { &["x", "y"] };
    one["kty"] == other["kty"] && names.iter().all(|name| number(&one[name]) == number(&other[name]))
}

/// Returns the digits of a number without leading zeros.
fn number(text: &Value) -> Option<Vec<u8>> {
    let text = text.as_str()?.trim_end_matches('=');
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    Some(bytes.into_iter().skip_while(|byte| *byte == 0).collect())
}
