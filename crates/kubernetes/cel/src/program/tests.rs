//! Compares compilation and evaluation with the results of kube-apiserver, and tests the limits.
#![cfg(test)]

use std::fmt::Write as _;

use serde::Deserialize;

use super::{Program, compile};
use crate::budget::Budget;
use crate::environment::Environment;
use crate::error::EvaluationError;
use crate::types::Type;
use crate::value::{Map, Opaque, OpaqueValue, Value};

const TABLE: &str = include_str!("../../../../../testdata/cel/expressions.jsonl");
const CLAIMS: &str = include_str!("../../../../../testdata/cel/claims.json");
const USER: &str = include_str!("../../../../../testdata/cel/user.json");

#[derive(Deserialize)]
struct Row {
    expression: String,
    #[serde(default)]
    variable: Option<String>,
    compile_error: Option<String>,
    r#type: Option<String>,
    value: Option<String>,
    error: Option<String>,
    cost: Option<u64>,
}

fn environment(variable: &str) -> Environment {
    if variable == "claims" {
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

fn object(variable: &str) -> Value {
    let json: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(if variable == "claims" { CLAIMS } else { USER }).unwrap();
    let fields = json.iter().map(|(name, value)| (name.clone(), Value::from(value)));
    Value::Map(Map::object(&format!("kubernetes.{variable}"), fields).into())
}

/// Returns a number as Go's `strconv.FormatFloat(value, 'g', -1, 64)` writes it.
fn double(value: f64) -> String {
    crate::libraries::convert::double_text(value)
}

/// Returns the form that the table has for a value.
fn dump(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => format!("{value}u"),
        Value::Double(value) => format!("d{}", double(*value)),
        Value::String(text) => serde_json::to_string(&**text).unwrap(),
        Value::Bytes(bytes) => bytes.iter().fold("b".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
        Value::List(elements) => {
            format!("[{}]", elements.iter().map(dump).collect::<Vec<String>>().join(","))
        }
        Value::Map(map) => {
            let entries = map.entries().iter();
            let mut entries: Vec<String> =
                entries.map(|(key, value)| format!("{}:{}", dump(&key.value()), dump(value))).collect();
            entries.sort();
            format!("{{{}}}", entries.join(","))
        }
        Value::Optional(None) => "none".into(),
        Value::Optional(Some(value)) => format!("some({})", dump(value)),
        Value::Opaque(Opaque(opaque)) => match opaque {
            OpaqueValue::Duration(nanoseconds) => format!("dur{nanoseconds}"),
            OpaqueValue::Timestamp(time) => format!("ts{}", time.in_utc().text()),
            OpaqueValue::Type(ty) => format!("type({})", ty.name()),
            _ => value.type_name().to_owned(),
        },
    }
}

/// Compares one row. Returns the differences.
fn differences(row: &Row) -> Vec<String> {
    let variable = row.variable.as_deref().unwrap_or("claims");
    let mut differences = Vec::new();
    let mut compare = |what: &str, expected: Option<&str>, found: Option<&str>| {
        if expected != found {
            differences.push(format!("{what} of {}: {expected:?}, but is {found:?}", row.expression));
        }
    };
    match compile(&environment(variable), &row.expression) {
        Err(error) => compare("compile error", row.compile_error.as_deref(), Some(&error.to_string())),
        Ok(program) => {
            compare("compile error", row.compile_error.as_deref(), None);
            compare("type", row.r#type.as_deref(), Some(&program.output_type().to_string()));
            let (result, cost) =
                program.evaluate_with_cost(&[(variable, object(variable))], Budget::default());
            let value = result.as_ref().ok().map(|value| format!("{}:{}", value.type_name(), dump(value)));
            compare("value", row.value.as_deref(), value.as_deref());
            compare("error", row.error.as_deref(), result.err().map(|error| error.to_string()).as_deref());
            compare("cost", row.cost.map(|cost| cost.to_string()).as_deref(), Some(&cost.to_string()));
        }
    }
    differences
}

#[test]
fn expressions_compile_and_evaluate_as_in_kubernetes() {
    let rows: Vec<Row> = TABLE.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() > 900);
    let found: Vec<String> = rows.iter().flat_map(differences).collect();
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

fn compiled(expression: &str) -> Program {
    compile(&environment("claims"), expression).unwrap()
}

fn evaluated(expression: &str) -> Result<Value, EvaluationError> {
    compiled(expression).evaluate(&[("claims", object("claims"))], Budget::default())
}

#[test]
fn loops_that_do_not_end_in_time_exceed_the_cost() {
    let digits = "[0,1,2,3,4,5,6,7,8,9]";
    let mut nested = "true".to_owned();
    for depth in 0..30 {
        nested = format!("{digits}.all(x{depth}, {nested})");
    }
    for expression in [
        nested.as_str(),
        "lists.range(999999).all(x, lists.range(999999).all(y, true))",
        "lists.range(500).all(x, lists.range(500).exists(y, y < 0) == false)",
        &format!("optional.of(1){}", ".optMap(x, x)".repeat(100)),
    ] {
        assert!(matches!(evaluated(expression), Err(EvaluationError::CostLimit)), "{expression:.60}");
    }
}

#[test]
fn values_that_grow_without_bound_exceed_a_limit() {
    let exponential = format!("'aaaaaaaaaa'{}", ".replace('a', 'aaaaaaaaaa')".repeat(12));
    let lists = format!("[[1]]{}", ".map(x, x + x)".repeat(60));
    let joined = format!("lists.range(9999).map(x, '{}').join('{}')", "a".repeat(100), "b".repeat(9000));
    for expression in [exponential, lists, joined] {
        let error = evaluated(&expression).unwrap_err();
        assert!(
            matches!(error, EvaluationError::CostLimit | EvaluationError::SizeLimit),
            "{expression:.60}: {error}"
        );
    }
}

#[test]
fn shared_values_do_not_multiply_the_work_of_a_comparison() {
    let doubled = format!("[1]{}", ".map(x, [x, x])".repeat(60));
    let error = evaluated(&format!("{doubled} == {doubled}")).unwrap_err();
    assert!(matches!(error, EvaluationError::CostLimit));
}

#[test]
fn numbers_without_an_order_are_not_sorted() {
    for count in [2, 12, 13, 50, 200] {
        let numbers = format!("lists.range({count}).map(x, x % 3 == 1 ? 0.0 / 0.0 : double(x * 7919 % 101))");
        for sorted in [format!("{numbers}.sort()"), format!("{numbers}.sortBy(x, x)")] {
            let error = evaluated(&sorted).unwrap_err();
            assert_eq!(error.to_string(), "NaN values cannot be ordered", "{sorted}");
        }
    }
}

/// Returns an expression whose value is a text of this length.
fn long_text(length: usize) -> String {
    format!("lists.range({}).map(x, '{}').join()", length / 50, "a".repeat(50))
}

#[test]
fn literals_of_regular_expressions_are_compiled_with_the_program() {
    let program = compiled("'a'.matches('^a$') && 'a'.find('a') == 'a' && matches('a', '^a$')");
    let mut literals: Vec<_> = program.plan.literals.keys().map(|text| &**text).collect();
    literals.sort_unstable();
    assert_eq!(literals, ["^a$", "a"]);
    // Their number is not limited.
    let many: Vec<_> = (0..200).map(|number| format!("!'b'.matches('^a{number}$')")).collect();
    assert!(matches!(evaluated(&many.join(" && ")), Ok(Value::Bool(true))));
}

#[test]
fn regular_expressions_that_are_computed_have_narrower_limits() {
    assert!(matches!(evaluated("'a'.find('.{1000}') == ''"), Ok(Value::Bool(true))));
    let error = evaluated("'a'.matches('.{100' + '0}')").unwrap_err();
    assert_eq!(error.to_string(), "error parsing regexp: expression too large: `.{1000}`");
    let longest = long_text(1_000);
    assert!(matches!(evaluated(&format!("'a'.matches({longest})")), Ok(Value::Bool(false))));
    let quoted = "a".repeat(1_000);
    for (call, prefix) in [("'a'.matches", ""), ("'a'.find", "Illegal regex: ")] {
        let error = evaluated(&format!("{call}({longest} + 'b')")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{prefix}error parsing regexp: expression too large: `{quoted}`")
        );
    }
    let invalid = "lists.range(1000).exists(x, 'a'.matches('(' + string(x)))";
    assert!(matches!(evaluated(invalid), Err(EvaluationError::CostLimit)));
}

#[test]
fn a_search_for_a_computed_regular_expression_counts_more_work() {
    let text = long_text(50_000);
    let literal = evaluated(&format!("{text}.matches('.{{99}}b')"));
    assert!(matches!(literal, Ok(Value::Bool(false))));
    let computed = evaluated(&format!("{text}.matches('.{{9' + '9}}b')"));
    assert!(matches!(computed, Err(EvaluationError::CostLimit)));
}

#[test]
fn searches_whose_work_grows_faster_than_their_cost_exceed_a_limit() {
    let text = long_text(50_000);
    for call in [
        // Each search reads the whole rest of the text.
        "findAll('a.*b|a').size()",
        "findAll('a.*' + 'b|a').size()",
        // The automaton is large.
        "find('.{999}b')",
        "matches('(a|aa){1000}b')",
    ] {
        let result = evaluated(&format!("{text}.{call}"));
        assert!(matches!(result, Err(EvaluationError::CostLimit)), "{call}");
    }
    for (text, call, expected) in
        [(long_text(5_000), "findAll('a{50}').size()", 100), (text, "find('a+').size()", 50_000)]
    {
        let result = evaluated(&format!("{text}.{call}"));
        assert!(matches!(result, Ok(Value::Int(found)) if found == expected), "{call}");
    }
}

#[test]
fn regular_expressions_have_a_bound() {
    assert!(compile(&environment("claims"), r"'a'.matches('((a{100}){100}){100}')").is_err());
    let many = "lists.range(1000).exists(x, 'a'.matches('b' + string(x)))";
    assert!(matches!(evaluated(many), Err(EvaluationError::CostLimit)));
    let long = format!("'{}'.matches('(a*)*(a*)*(a*)*b')", "a".repeat(20_000));
    assert!(matches!(evaluated(&long), Ok(Value::Bool(false)) | Err(EvaluationError::CostLimit)));
}

#[test]
fn deep_expressions_are_evaluated_or_refused() {
    let shapes: [(&str, &str, &str); 14] = [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{'a': ", "1", "}"),
        ("dyn(", "1", ")"),
        ("-(", "1", ")"),
        ("(1 + ", "1", ")"),
        ("true ? 1 : ", "1", ""),
        ("claims[", "'a'", "]"),
        ("[1].map(x, ", "1", ")"),
        ("-dyn([1].map(x, ", "1", "))[0]"),
        ("[1].all(x, claims.b && ", "true", ")"),
        ("[?optional.of({'a': -dyn([1].map(x, ", "1", "))[0]}.?a.orValue(dyn(1)))][0]"),
        ("[1].transformMap(x, y, ", "1", ")"),
        ("optional.of(1).optMap(x, ", "1", ")"),
    ];
    for (open, inner, close) in shapes {
        for depth in [10, 100, 124, 165, 200, 249, 300, 5_000] {
            let expression = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
            if let Ok(program) = compile(&environment("claims"), &expression) {
                let _ = program.evaluate(&[("claims", object("claims"))], Budget::default());
            }
        }
    }
    for text in ["(", "[", "{", ")", "-", "!", "1 1 ", ",", "'", "a.", "?", "[1].map(x,", "{?", "a{b:"] {
        for count in [10, 249, 5_000] {
            assert!(compile(&environment("claims"), &text.repeat(count)).is_err(), "{text}");
        }
    }
}

#[test]
fn an_expression_of_more_than_a_hundred_thousand_code_points_is_refused() {
    let error = compile(&environment("claims"), &format!("'{}'", "ä".repeat(100_000))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "compilation failed: ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100002, limit 100000"
    );
}

#[test]
fn a_path_is_selected_by_field_and_by_optional_field_only() {
    for (expression, selected) in [
        ("claims.email", true),
        ("claims.?email.orValue('')", true),
        ("has(claims.email)", true),
        ("'x' + claims.email.lowerAscii()", true),
        ("claims.email.nested == 1", true),
        ("claims['email']", false),
        ("claims.other.email", false),
        ("claims.sub == 'claims.email'", false),
        ("[{'email': 1}].all(claims, claims.email == 1)", false),
    ] {
        assert_eq!(compiled(expression).selects("claims", &["email"]), selected, "{expression}");
    }
    assert!(compiled("claims.a.b.c").selects("claims", &["a", "b"]));
}

#[test]
fn urls_are_equal_if_they_are_written_alike() {
    for (one, other, equal) in [
        ("HTTPS://x/a", "https://x/a", true),
        ("https://x/a", "https://x/%61", false),
        ("https://x/#a", "https://x/#%61", false),
        ("https://u@x/", "https://x/", false),
        ("mailto:a", "mailto:b", false),
    ] {
        let value = evaluated(&format!("url('{one}') == url('{other}')")).unwrap();
        assert!(matches!(value, Value::Bool(found) if found == equal), "{one} {other}");
    }
}

#[test]
fn debug_output_shows_no_value() {
    let value = evaluated("claims.sub").unwrap();
    assert_eq!(format!("{value:?}"), "Value(string)");
    let error = evaluated("claims[claims.sub]").unwrap_err();
    assert_eq!(format!("{error:?}"), "NoSuchKey");
    let claims = object("claims");
    assert!(!format!("{claims:?}").contains("jane"));
}
