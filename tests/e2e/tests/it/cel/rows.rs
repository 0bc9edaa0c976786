//! The table of expressions, and the forms in which results are compared.

use pinniped_cel::{Environment, Map, Type, Value};
use serde::Deserialize;

const TABLE: &str = include_str!("../../../../../testdata/cel/expressions.jsonl");
const CLAIMS: &str = include_str!("../../../../../testdata/cel/claims.json");

/// An expression of the table. The expected results are for the unit tests of `pinniped-cel`.
#[derive(Deserialize)]
pub(super) struct Row {
    pub(super) expression: String,
    variable: Option<String>,
}

impl Row {
    /// Whether the expression uses the variable `user` instead of `claims`.
    pub(super) fn user(&self) -> bool {
        self.variable.is_some()
    }
}

pub(super) fn rows() -> Vec<Row> {
    TABLE.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn claims() -> serde_json::Map<String, serde_json::Value> {
    serde_json::from_str(CLAIMS).unwrap()
}

pub(super) fn object(claims: &serde_json::Map<String, serde_json::Value>) -> Value {
    let fields = claims.iter().map(|(name, value)| (name.clone(), Value::from(value)));
    Value::Map(Map::object("kubernetes.claims", fields).into())
}

pub(super) fn environment(user: bool) -> Environment {
    if !user {
        return Environment::new().variable("claims", Type::map(Type::String, Type::Any));
    }
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", Type::list(Type::String)),
        ("extra", Type::map(Type::String, Type::list(Type::String))),
    ];
    Environment::new()
        .object("kubernetes.UserInfo", fields)
        .variable("user", Type::object("kubernetes.UserInfo"))
}

/// Returns an expression whose result is a text or a list of texts, none of which is empty, because
/// the API server drops empty texts.
pub(super) fn comparable(expression: &str, ty: &Type) -> String {
    let text = |value: &str| format!("'=' + string({value})");
    match ty {
        Type::Any | Type::Dyn => format!("'=' + string(dyn({expression}))"),
        Type::List(element) => match **element {
            Type::String | Type::Int | Type::Uint | Type::Double | Type::Bool | Type::Bytes => {
                format!("({expression}).map(x, {})", text("x"))
            }
            _ => format!("'=' + string(({expression}).size())"),
        },
        Type::Map(entry) if matches!(entry.0, Type::String | Type::Int) => {
            format!("({expression}).map(x, {}).sort()", text("x"))
        }
        Type::Null => format!("({expression}) == null ? 'null' : 'other'"),
        Type::Type(_) => format!("'%s'.format([{expression}])"),
        Type::Opaque(name, _) if &**name == "optional_type" => {
            format!("({expression}).hasValue() ? 'some' : 'none'")
        }
        _ => text(expression),
    }
}

/// Returns the values of an extra field.
pub(super) fn result_text(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.to_string()],
        Value::List(elements) => elements.iter().flat_map(result_text).collect(),
        _ => vec!["not a text".into()],
    }
}
