//! Compares whether an object contains another one, like `equality.Semantic.DeepDerivative` of
//! Kubernetes' API machinery.

use serde_json::{Map, Value};

use super::quantity;

/// Members that are plain booleans in Go, where "not set" equals `false`.
const PLAIN_BOOLEANS: [&str; 8] =
    ["hostIPC", "hostNetwork", "hostPID", "paused", "readOnly", "stdin", "stdinOnce", "tty"];

/// Returns whether `existing` contains all of `wanted`: members that are not set are ignored, lists
/// are compared item by item from the start, quantities by value. A value that cannot be serialized
/// is never contained.
pub(super) fn contains(existing: serde_json::Result<Value>, wanted: serde_json::Result<Value>) -> bool {
    match (existing, wanted) {
        (Ok(existing), Ok(wanted)) => covers(&existing, &wanted, ""),
        _ => false,
    }
}

/// Returns the value without members that are not set, for an exact comparison.
pub(super) fn normal(value: &Value) -> Value {
    let mut value = value.clone();
    strip(&mut value);
    value
}

fn strip(value: &mut Value) {
    if let Value::Object(members) = value {
        members.values_mut().for_each(strip);
        members.retain(|_, member| !is_unset(member));
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// `within` is the name of the member that contains both values.
fn covers(existing: &Value, wanted: &Value, within: &str) -> bool {
    if is_unset(wanted) {
        return true;
    }
    match (existing, wanted) {
        (Value::Object(existing), Value::Object(wanted)) => {
            let amounts = matches!(within, "limits" | "requests");
            let all = wanted.iter().all(|(name, wanted)| {
                let existing = existing.get(name).unwrap_or(&Value::Null);
                if amounts || name == "sizeLimit" {
                    return same_amount(existing, wanted);
                }
                covers(existing, wanted, name)
            });
            let on = |members: &Map<String, Value>, name: &str| members.get(name) == Some(&Value::Bool(true));
            all && !PLAIN_BOOLEANS.iter().any(|name| on(existing, name) && !on(wanted, name))
        }
        (Value::Null, Value::Bool(false)) => PLAIN_BOOLEANS.contains(&within),
        (Value::Array(existing), Value::Array(wanted)) => {
            existing.len() >= wanted.len() && wanted.iter().zip(existing).all(|(w, e)| covers(e, w, ""))
        }
        // The wanted member is set, but has only members that are not set.
        (Value::Null, Value::Object(wanted)) => wanted.values().all(is_unset),
        (existing, wanted) => existing == wanted,
    }
}

fn same_amount(existing: &Value, wanted: &Value) -> bool {
    if is_unset(wanted) || existing == wanted {
        return true;
    }
    match (existing.as_str().and_then(quantity::nanos), wanted.as_str().and_then(quantity::nanos)) {
        (Some(existing), Some(wanted)) => existing == wanted,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_wanted_members_must_exist_and_others_may() {
        let existing = json!({
            "replicas": 1, "name": "a", "list": [{"x": 1, "y": 2}, {"x": 3}], "map": {"k": "v", "l": "w"},
            "resources": {"limits": {"memory": "32Mi", "cpu": "20m"}}, "readOnly": true, "empty": "",
        });
        let same = [
            json!({}),
            json!({"name": "", "list": [], "map": {}, "other": null, "gone": "", "readOnly": true}),
            json!({"list": [{"x": 1}], "readOnly": true}),
            json!({"list": [{"y": 2}, {"x": 3}], "map": {"l": "w"}, "readOnly": true}),
            json!({"resources": {"limits": {"memory": "33554432", "cpu": "0.02"}}, "readOnly": true}),
            json!({"deep": {"er": ""}, "hostNetwork": false, "readOnly": true}),
        ];
        for wanted in &same[1..] {
            assert!(covers(&existing, wanted, ""), "{wanted}");
        }
        assert!(covers(&json!({"a": 1}), &same[0], ""));
        let different = [
            json!({"readOnly": true, "name": "b"}),
            json!({"readOnly": true, "replicas": 0}),
            json!({"readOnly": true, "gone": "x"}),
            json!({"readOnly": true, "automount": false}),
            json!({"readOnly": true, "list": [{"x": 3}]}),
            json!({"readOnly": true, "list": [{}, {}, {}]}),
            json!({"readOnly": true, "map": {"k": "w"}}),
            json!({"readOnly": true, "map": "k"}),
            json!({"readOnly": true, "resources": {"limits": {"memory": "33Mi"}}}),
            json!({"readOnly": true, "resources": {"requests": {"cpu": "0"}}}),
            json!({"readOnly": true, "hostNetwork": true}),
            // "Not set" equals `false` for plain booleans in Go.
            json!({"readOnly": false}),
            json!({"name": "a"}),
        ];
        for wanted in &different {
            assert!(!covers(&existing, wanted, ""), "{wanted}");
        }
    }

    #[test]
    fn members_that_are_not_set_do_not_affect_an_exact_comparison() {
        let d = normal(&json!({"d": 1}));
        assert_eq!(normal(&json!({"a": {"b": null, "c": []}, "d": 1})), d);
        assert_ne!(normal(&json!({"d": 1, "e": false})), d);
    }
}
