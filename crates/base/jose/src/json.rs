//! JSON without ambiguity: a member name occurs once in its object, and values are nested to a
//! limited depth.
//!
//! Parsers disagree about duplicate names. `encoding/json` of Go takes the last value, others take
//! the first; therefore a token with duplicates can mean different things to two programs that
//! verify it. RFC 7519, section 4, allows to reject such a token, and this module does, at every
//! depth. For the header, Go's libraries reject duplicates as well.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum depth of nested arrays and objects. Go's limit is 10,000.
pub const MAX_DEPTH: usize = 64;

/// The error for text that is not an object of unambiguous JSON. It quotes nothing of the text.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct JsonError(#[from] serde_json::Error);

/// Parses an object.
///
/// ```
/// use pinniped_jose::json::parse_object;
///
/// assert_eq!(parse_object(br#"{"sub": "alice"}"#).unwrap()["sub"], "alice");
/// assert!(parse_object(br#"{"sub": "alice", "sub": "bob"}"#).is_err());
/// assert!(parse_object(b"[]").is_err());
/// ```
///
/// # Errors
/// Returns an error for text that is not JSON, is not an object, has a duplicate member name, or is
/// nested more than [`MAX_DEPTH`] levels deep.
pub fn parse_object(text: &[u8]) -> Result<Map<String, Value>, JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Tree { depth: MAX_DEPTH }.deserialize(&mut reader)?;
    reader.end()?;
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(serde_json::Error::custom("the value is not an object").into()),
    }
}

/// Reads a typed value from an object. Unlike `serde_json`, it does not read the fields of a struct
/// from an array.
///
/// # Errors
/// Returns an error for text that is not JSON, is not an object, or does not fit the type. It may
/// quote values.
pub fn from_object<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T, serde_json::Error> {
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return serde_json::from_slice(text);
    }
    // An error in the syntax takes precedence.
    let _: IgnoredAny = serde_json::from_slice(text)?;
    Err(serde_json::Error::custom("the value is not an object"))
}

/// Reads a value with at most `depth` levels.
#[derive(Clone, Copy)]
struct Tree {
    depth: usize,
}

impl Tree {
    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| E::custom("the value is nested too deeply"))?;
        Ok(Self { depth })
    }
}

impl<'de> DeserializeSeed<'de> for Tree {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(inner)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut values = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if values.insert(name, members.next_value_seed(inner)?).is_some() {
                return Err(A::Error::custom("duplicate member name"));
            }
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_objects_are_read_as_serde_reads_them() {
        let text = r#" {"a": [1, -2, 2.5, 1e3, true, null, "x\n\u00e9"], "b": {"a": {}}, "": 18446744073709551615} "#;
        let expected: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(parse_object(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn ambiguous_and_malformed_text_is_refused_without_quoting_it() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse_object(nested(MAX_DEPTH - 1).as_bytes()).is_ok());
        for (text, part) in [
            (r#"{"secret": 1, "secret": 1}"#.to_owned(), "duplicate member name"),
            (r#"{"a": {"secret": 1, "s\u0065cret": 2}}"#.to_owned(), "duplicate member name"),
            (r#"{"a": [{"secret": 1, "secret": 1}]}"#.to_owned(), "duplicate member name"),
            (nested(MAX_DEPTH), "nested too deeply"),
            (nested(200), "nested too deeply"),
            (format!("{{\"a\":{}", "[".repeat(1_000_000)), "nested too deeply"),
            ("\"secret\"".to_owned(), "not an object"),
            ("[]".to_owned(), "not an object"),
            ("null".to_owned(), "not an object"),
            (String::new(), "EOF"),
            (r#"{"a": 1e999}"#.to_owned(), "out of range"),
            (r#"{"a": 1} {"#.to_owned(), "trailing"),
            (r#"{"a": 1,}"#.to_owned(), "trailing comma"),
            (r#"{"a": 'secret'}"#.to_owned(), "expected value"),
            ("{\"a\": \"\u{1}\"}".to_owned(), "control character"),
            (r#"{"a": "\ud800"}"#.to_owned(), ""),
        ] {
            let error = parse_object(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
        assert!(parse_object(b"{\"a\": \"\xff\"}").is_err());
    }
}
