//! Equality and order of values.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Opaque, OpaqueValue, Value};
use crate::budget::Usage;
use crate::error::EvaluationError;

/// Reports whether two values are equal. Numbers of different types are equal if their values
/// are; other values of different types are not.
pub(crate) fn equal(usage: &mut Usage, a: &Value, b: &Value) -> Result<bool, EvaluationError> {
    usage.work(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b.iter()) {
                if !equal(usage, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(a), Value::Map(b)) => {
            if a.object_name().is_some() || b.object_name().is_some() {
                return Ok(Arc::ptr_eq(a, b));
            }
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, value) in a.entries() {
                match b.get(&key.value()) {
                    Some(other) if equal(usage, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => equal(usage, a, b)?,
        (Value::Optional(a), Value::Optional(b)) => a.is_none() && b.is_none(),
        (Value::Opaque(Opaque(a)), Value::Opaque(Opaque(b))) => equal_opaque(a, b),
        _ => compare_numbers(a, b) == Some(Some(Ordering::Equal)),
    })
}

fn equal_opaque(a: &OpaqueValue, b: &OpaqueValue) -> bool {
    match (a, b) {
        (OpaqueValue::Duration(a), OpaqueValue::Duration(b)) => a == b,
        (OpaqueValue::Timestamp(a), OpaqueValue::Timestamp(b)) => a.compare(b).is_eq(),
        (OpaqueValue::Type(a), OpaqueValue::Type(b)) => a.name() == b.name(),
        (OpaqueValue::Url(a), OpaqueValue::Url(b)) => a == b,
        (OpaqueValue::Quantity(a), OpaqueValue::Quantity(b)) => a.compare(b).is_eq(),
        (OpaqueValue::Ip(a), OpaqueValue::Ip(b)) => a == b,
        (OpaqueValue::Cidr(a), OpaqueValue::Cidr(b)) => a == b,
        (OpaqueValue::Version(a), OpaqueValue::Version(b)) => a.compare(b).is_eq(),
        (OpaqueValue::Format(a), OpaqueValue::Format(b)) => a.name() == b.name(),
        _ => false,
    }
}

/// Compares two values, if values of these types have an order.
pub(crate) fn compare(a: &Value, b: &Value) -> Result<Ordering, EvaluationError> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (
            Value::Opaque(Opaque(OpaqueValue::Duration(a))),
            Value::Opaque(Opaque(OpaqueValue::Duration(b))),
        ) => Ok(a.cmp(b)),
        (
            Value::Opaque(Opaque(OpaqueValue::Timestamp(a))),
            Value::Opaque(Opaque(OpaqueValue::Timestamp(b))),
        ) => Ok(a.compare(b)),
        _ => match compare_numbers(a, b) {
            Some(Some(order)) => Ok(order),
            Some(None) => Err(EvaluationError::failed("NaN values cannot be ordered")),
            None => Err(EvaluationError::no_overload()),
        },
    }
}

/// Compares two numbers. Returns `None` for other values, and `Some(None)` for NaN.
fn compare_numbers(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    Some(match (a, b) {
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), _) => compare_double(*a, integer(b)?),
        (_, Value::Double(b)) => compare_double(*b, integer(a)?).map(Ordering::reverse),
        _ => Some(integer(a)?.cmp(&integer(b)?)),
    })
}

fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Int(value) => Some(i128::from(*value)),
        Value::Uint(value) => Some(i128::from(*value)),
        _ => None,
    }
}

/// Compares a double with an integer as doubles, as cel-go does.
fn compare_double(double: f64, integer: i128) -> Option<Ordering> {
    double.partial_cmp(&(integer as f64))
}
