//! Conversion of claims to the types that they must have, with the error texts of Go's
//! `encoding/json`.

use pinniped_go_compat::json::type_name;
use serde_json::{Map, Value};

/// The claims of a token by name.
pub type Claims = Map<String, Value>;

/// The reason why a claim cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The token does not have the claim.
    #[error("claim not present")]
    NotPresent,
    /// The claim has another type.
    #[error("json: cannot unmarshal {found} into Go value of type {wanted}")]
    Type {
        /// Go's name of the type that the claim has.
        found: &'static str,
        /// Go's name of the wanted type.
        wanted: &'static str,
    },
}

impl ClaimError {
    pub(super) fn type_(found: &Value, wanted: &'static str) -> Self {
        let found = type_name(found);
        Self::Type { found, wanted }
    }
}

/// Returns a claim as text. Null is the empty text, as in Go.
pub(super) fn string(value: &Value) -> Result<&str, ClaimError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => Ok(""),
        other => Err(ClaimError::type_(other, "string")),
    }
}

/// Returns a claim as truth value. Null is false, as in Go.
pub(super) fn boolean(value: &Value) -> Result<bool, ClaimError> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Null => Ok(false),
        other => Err(ClaimError::type_(other, "bool")),
    }
}

/// Returns a claim that is one text or a list of texts. A null in a list is the empty text.
pub(super) fn strings(value: &Value) -> Result<Vec<String>, ClaimError> {
    let list: Result<Vec<String>, ClaimError> = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items.iter().map(|item| string(item).map(str::to_owned)).collect(),
        other => return Ok(vec![string(other)?.to_owned()]),
    };
    // Go tries a list first, and reports why the claim is not a text.
    list.map_err(|_| ClaimError::type_(value, "string"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conversions_and_their_errors_are_those_of_go() {
        fn type_error<T>(found: &str, wanted: &str) -> Result<T, String> {
            Err(format!("json: cannot unmarshal {found} into Go value of type {wanted}"))
        }
        for (value, text, truth, list) in [
            (json!("x"), Ok("x"), type_error("string", "bool"), Ok(vec!["x"])),
            (json!(""), Ok(""), type_error("string", "bool"), Ok(vec![""])),
            (json!(null), Ok(""), Ok(false), Ok(vec![])),
            (json!(true), type_error("bool", "string"), Ok(true), type_error("bool", "string")),
            (
                json!(1.5),
                type_error("number", "string"),
                type_error("number", "bool"),
                type_error("number", "string"),
            ),
            (
                json!({"a": 1}),
                type_error("object", "string"),
                type_error("object", "bool"),
                type_error("object", "string"),
            ),
            (
                json!(["a", null, ""]),
                type_error("array", "string"),
                type_error("array", "bool"),
                Ok(vec!["a", "", ""]),
            ),
            (
                json!(["a", 1]),
                type_error("array", "string"),
                type_error("array", "bool"),
                type_error("array", "string"),
            ),
        ] {
            assert_eq!(string(&value).map_err(|e| e.to_string()), text, "{value}");
            assert_eq!(boolean(&value).map_err(|e| e.to_string()), truth, "{value}");
            let list: Result<Vec<String>, _> = list.map(|l| l.into_iter().map(str::to_owned).collect());
            assert_eq!(strings(&value).map_err(|e| e.to_string()), list, "{value}");
        }
    }
}
