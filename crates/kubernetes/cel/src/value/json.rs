//! The conversion from JSON.

use super::{Key, Map, Value};

/// JSON as Kubernetes shows it to expressions: all numbers are doubles.
impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(number) => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => Self::String(text.as_str().into()),
            serde_json::Value::Array(elements) => Self::list(elements.iter().map(Self::from).collect()),
            serde_json::Value::Object(members) => {
                let entries = members.iter();
                let entries = entries.map(|(name, value)| (Key::String(name.as_str().into()), value.into()));
                Self::Map(Map::json(entries.collect()).into())
            }
        }
    }
}
