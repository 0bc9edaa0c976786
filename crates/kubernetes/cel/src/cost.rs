//! The cost of functions, in Kubernetes' cost model: cel-go's `interpreter/runtimecost.go`, and
//! `pkg/cel/library/cost.go` of the API server.

use crate::value::{Opaque, OpaqueValue, Value};

pub(crate) const CREATE_LIST: u64 = 10;
pub(crate) const CREATE_MAP: u64 = 30;
pub(crate) const CREATE_OBJECT: u64 = 40;

/// The cost of reading a text once, for each code point.
const TRAVERSAL: f64 = 0.1;
/// The cost of a regular expression, for each code point of it.
const PATTERN: f64 = 0.25;

/// Returns the cost of a call that its arguments determine.
pub(crate) fn before(name: &str, overload: Option<&str>, arguments: &[Value]) -> u64 {
    let size = |index: usize| arguments.get(index).map_or(0, Value::cost_size);
    let first = size(0);
    match overload {
        Some("list_flatten") => return list_call(1.0, first),
        Some("list_flatten_int") => {
            let depth = match arguments.get(1) {
                Some(Value::Int(depth)) => scale(1, *depth as f64),
                _ => 0,
            };
            return list_call(depth as f64, first);
        }
        Some("list_slice" | "lists_range" | "list_reverse") => return 0,
        Some("list_distinct") => return self_compare(arguments.first()),
        Some("list_sets_contains_list" | "list_sets_intersects_list") => {
            return 1 + first.saturating_mul(size(1));
        }
        Some("list_sets_equivalent_list") => return 1 + first.saturating_mul(size(1)).saturating_mul(2),
        Some(id) if id.ends_with("_sort") => return self_compare(arguments.first()),
        Some(id) if id.ends_with("_sortByAssociatedKeys") => return self_compare(arguments.get(1)),
        _ => {}
    }
    match name {
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            let mut fuel = MAX_TRAVERSAL;
            return arguments.first().map_or(0, |value| traversal(value, &mut fuel));
        }
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "cidr" | "isIP" | "isCIDR"
        | "quantity" | "isQuantity" | "semver" | "isSemver" => return text(first),
        "ip" if overload == Some("cidr_ip") => return 1,
        "ip" => return text(first),
        "replace" | "split" | "ip.isCanonical" => return scale_up(first, 2.0 * TRAVERSAL),
        "join" => return 0,
        "find" | "findAll" => return pattern(first, size(1)),
        "containsIP" | "containsCIDR" => return contains(name, overload, first, size(1)),
        "validate" => {
            if let Some(Value::Opaque(Opaque(OpaqueValue::Format(format)))) = arguments.first() {
                return pattern(size(1), format.pattern_size());
            }
        }
        "_==_" if matches!(arguments.first(), Some(Value::Opaque(Opaque(opaque))) if is_kubernetes(opaque)) =>
        {
            return 1;
        }
        "_==_" | "_!=_" => return text(first.min(size(1))),
        _ => {}
    }
    match overload {
        Some("starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string")
        | Some("strings_quote" | "string_format") => text(first),
        Some("in_list") => size(1),
        Some(
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes",
        ) => text(first.min(size(1))),
        Some("add_string" | "add_bytes") => text(first.saturating_add(size(1))),
        Some("matches_string") => pattern(first, size(1)),
        Some("contains_string") => text(first).saturating_mul(text(size(1))),
        _ => 1,
    }
}

/// Returns the cost of a call that its result determines.
pub(crate) fn after(overload: Option<&str>, name: &str, result: &Value) -> u64 {
    match (overload, name) {
        (Some("list_slice" | "lists_range" | "list_reverse"), _) => list_call(1.0, result.cost_size()),
        (_, "join") => scale_up(result.cost_size(), 2.0 * TRAVERSAL),
        _ => 0,
    }
}

fn is_kubernetes(opaque: &OpaqueValue) -> bool {
    !matches!(opaque, OpaqueValue::Duration(_) | OpaqueValue::Timestamp(_) | OpaqueValue::Type(_))
}

/// The largest number of values that the cost of a traversal counts one by one.
const MAX_TRAVERSAL: usize = 1_000_000;

fn traversal(value: &Value, fuel: &mut usize) -> u64 {
    if *fuel == 0 {
        return u64::MAX;
    }
    *fuel -= 1;
    match value {
        Value::String(text) => scale(text.len() as u64, TRAVERSAL),
        Value::Bytes(bytes) => scale(bytes.len() as u64, TRAVERSAL),
        Value::List(elements) => {
            elements.iter().fold(0, |sum: u64, element| sum.saturating_add(traversal(element, fuel)))
        }
        Value::Map(map) => map.entries().iter().fold(0, |sum: u64, (key, value)| {
            sum.saturating_add(traversal(&key.value(), fuel)).saturating_add(traversal(value, fuel))
        }),
        _ => 1,
    }
}

fn text(size: u64) -> u64 {
    scale_up(size, TRAVERSAL)
}

fn pattern(text_size: u64, pattern_size: u64) -> u64 {
    scale_up(text_size.saturating_add(1), TRAVERSAL).saturating_mul(scale_up(pattern_size, PATTERN))
}

fn contains(name: &str, overload: Option<&str>, network: u64, other: u64) -> u64 {
    let mut cost = scale_up(network * 2, TRAVERSAL);
    if name == "containsCIDR" {
        cost += text(network) + 1;
    }
    if overload.is_some_and(|id| id.ends_with("_string")) {
        cost += text(other);
    }
    cost
}

/// Returns the cost of a comparison of each element of a list with each other.
fn self_compare(list: Option<&Value>) -> u64 {
    let Some(Value::List(elements)) = list else { return 1 };
    let factor = match elements.first() {
        Some(Value::String(_) | Value::Bytes(_)) => 2.0 + TRAVERSAL,
        _ => 2.0,
    };
    let size = elements.len() as u64;
    list_call(factor, size.saturating_mul(size))
}

fn list_call(factor: f64, size: u64) -> u64 {
    scale(size, factor).saturating_add(1 + CREATE_LIST)
}

fn scale(size: u64, factor: f64) -> u64 {
    (size as f64 * factor) as u64
}

fn scale_up(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}
