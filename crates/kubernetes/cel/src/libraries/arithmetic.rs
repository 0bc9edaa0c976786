//! Operators: arithmetic, comparison, membership, and sizes.

use std::cmp::Ordering;

use super::{Function, bool, int, opaque, timestamp};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::value::{OpaqueValue, Value, compare, equal};

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "_+_" => |usage, arguments| binary(arguments, |a, b| add(usage, a, b)),
        "_-_" => |_, arguments| binary(arguments, subtract),
        "_*_" => |_, arguments| binary(arguments, multiply),
        "_/_" => |_, arguments| binary(arguments, divide),
        "_%_" => |_, arguments| binary(arguments, modulo),
        "-_" => |_, arguments| negate(arguments),
        "!_" => |_, arguments| match arguments {
            [Value::Bool(value)] => bool(!value),
            _ => Err(EvaluationError::no_overload()),
        },
        "_==_" => |usage, arguments| binary(arguments, |a, b| Ok(Value::Bool(equal(usage, a, b)?))),
        "_!=_" => |usage, arguments| binary(arguments, |a, b| Ok(Value::Bool(!equal(usage, a, b)?))),
        "_<_" => |_, arguments| order(arguments, Ordering::is_lt),
        "_<=_" => |_, arguments| order(arguments, Ordering::is_le),
        "_>_" => |_, arguments| order(arguments, Ordering::is_gt),
        "_>=_" => |_, arguments| order(arguments, Ordering::is_ge),
        "@in" => |usage, arguments| binary(arguments, |a, b| contains(usage, a, b)),
        "size" => |_, arguments| match arguments {
            [Value::Opaque(_)] | [] => Err(EvaluationError::NoSuchOverload(": size".into())),
            [value, ..] => match value.size() {
                Some(size) => int(size),
                None => Err(EvaluationError::NoSuchOverload(": size".into())),
            },
        },
        _ => return None,
    })
}

fn binary(arguments: &[Value], f: impl FnOnce(&Value, &Value) -> Evaluation) -> Evaluation {
    match arguments {
        [a, b] => f(a, b),
        _ => Err(EvaluationError::no_overload()),
    }
}

fn order(arguments: &[Value], accepts: fn(Ordering) -> bool) -> Evaluation {
    binary(arguments, |a, b| Ok(Value::Bool(accepts(compare(a, b)?))))
}

fn overflow(kind: &str) -> EvaluationError {
    EvaluationError::failed(format!("{kind} overflow"))
}

fn signed(value: Option<i64>) -> Evaluation {
    value.map(Value::Int).ok_or_else(|| overflow("integer"))
}

fn unsigned(value: Option<u64>) -> Evaluation {
    value.map(Value::Uint).ok_or_else(|| overflow("unsigned integer"))
}

fn span(value: Option<i64>) -> Evaluation {
    value.map(Value::duration).ok_or_else(|| overflow("integer"))
}

fn point(value: Option<timestamp::Timestamp>) -> Evaluation {
    let value = value.ok_or_else(|| overflow("timestamp"))?;
    Ok(OpaqueValue::Timestamp(value).into())
}

fn add(usage: &mut Usage, a: &Value, b: &Value) -> Evaluation {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => signed(a.checked_add(*b)),
        (Value::Uint(a), Value::Uint(b)) => unsigned(a.checked_add(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => {
            usage.allocate(a.len() + b.len())?;
            Ok([&**a, &**b].concat().into())
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            usage.allocate(a.len() + b.len())?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        _ => match (opaque(a), opaque(b)) {
            (Some(OpaqueValue::Duration(a)), Some(OpaqueValue::Duration(b))) => span(a.checked_add(*b)),
            (Some(OpaqueValue::Timestamp(t)), Some(OpaqueValue::Duration(d)))
            | (Some(OpaqueValue::Duration(d)), Some(OpaqueValue::Timestamp(t))) => point(t.add(*d)),
            _ => Err(EvaluationError::no_overload()),
        },
    }
}

fn subtract(a: &Value, b: &Value) -> Evaluation {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => signed(a.checked_sub(*b)),
        (Value::Uint(a), Value::Uint(b)) => unsigned(a.checked_sub(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        _ => match (opaque(a), opaque(b)) {
            (Some(OpaqueValue::Duration(a)), Some(OpaqueValue::Duration(b))) => span(a.checked_sub(*b)),
            (Some(OpaqueValue::Timestamp(t)), Some(OpaqueValue::Duration(d))) => {
                point(d.checked_neg().and_then(|d| t.add(d)))
            }
            (Some(OpaqueValue::Timestamp(a)), Some(OpaqueValue::Timestamp(b))) => span(a.since(b)),
            _ => Err(EvaluationError::no_overload()),
        },
    }
}

fn multiply(a: &Value, b: &Value) -> Evaluation {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => signed(a.checked_mul(*b)),
        (Value::Uint(a), Value::Uint(b)) => unsigned(a.checked_mul(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        _ => Err(EvaluationError::no_overload()),
    }
}

fn divide(a: &Value, b: &Value) -> Evaluation {
    match (a, b) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            Err(EvaluationError::failed("division by zero"))
        }
        (Value::Int(a), Value::Int(b)) => signed(a.checked_div(*b)),
        (Value::Uint(a), Value::Uint(b)) => unsigned(a.checked_div(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        _ => Err(EvaluationError::no_overload()),
    }
}

fn modulo(a: &Value, b: &Value) -> Evaluation {
    match (a, b) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            Err(EvaluationError::failed("modulus by zero"))
        }
        (Value::Int(a), Value::Int(b)) => signed(a.checked_rem(*b)),
        (Value::Uint(a), Value::Uint(b)) => unsigned(a.checked_rem(*b)),
        (Value::Int(_) | Value::Uint(_), _) => Err(EvaluationError::no_overload()),
        _ => Err(EvaluationError::NoSuchOverload(": _%_".into())),
    }
}

fn negate(arguments: &[Value]) -> Evaluation {
    match arguments {
        [Value::Int(value)] => signed(value.checked_neg()),
        [Value::Double(value)] => Ok(Value::Double(-value)),
        _ => Err(EvaluationError::no_overload()),
    }
}

/// Evaluates `element in container`.
pub(crate) fn contains(usage: &mut Usage, element: &Value, container: &Value) -> Evaluation {
    match container {
        Value::List(elements) => {
            for other in elements.iter() {
                if equal(usage, element, other)? {
                    return bool(true);
                }
            }
            bool(false)
        }
        Value::Map(map) if map.object_name().is_none() => bool(map.get(element).is_some()),
        _ => Err(EvaluationError::no_overload()),
    }
}
