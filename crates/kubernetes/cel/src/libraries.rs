//! The implementations of functions. Their signatures are in `declarations.rs`.
//!
//! An implementation checks the types of its arguments, because an argument of type `dyn` or `any`
//! can be of any type at run time.

pub(crate) mod arithmetic;
pub(crate) mod cidr;
pub(crate) mod convert;
pub(crate) mod duration;
pub(crate) mod format;
pub(crate) mod interpolation;
pub(crate) mod ip;
mod lists;
mod optional;
pub(crate) mod quantity;
pub(crate) mod regular_expression;
pub(crate) mod semver;
mod sort;
mod text;
pub(crate) mod time_parts;
pub(crate) mod timestamp;
pub(crate) mod url;

use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
pub(crate) use crate::libraries::optional::insert;
use crate::value::{Opaque, OpaqueValue, Value};

/// An implementation. The first argument is the target, if the call has one.
pub(crate) type Function = fn(&mut Usage, &[Value]) -> Evaluation;

/// Returns the implementation of a function.
pub(crate) fn function(name: &str) -> Option<Function> {
    arithmetic::function(name)
        .or_else(|| convert::function(name))
        .or_else(|| text::function(name))
        .or_else(|| regular_expression::function(name))
        .or_else(|| lists::function(name))
        .or_else(|| optional::function(name))
        .or_else(|| time_parts::function(name))
        .or_else(|| url::function(name))
        .or_else(|| ip::function(name))
        .or_else(|| cidr::function(name))
        .or_else(|| quantity::function(name))
        .or_else(|| semver::function(name))
        .or_else(|| format::function(name))
}

/// Returns the error of a call whose arguments have types that the function does not accept.
pub(crate) fn no_overload(name: &str, arguments: &[Value]) -> EvaluationError {
    let types: Vec<&str> = arguments.iter().map(Value::type_name).collect();
    EvaluationError::NoSuchOverload(format!(": {name}({})", types.join(", ")))
}

/// Returns a boolean result.
pub(crate) fn bool(value: bool) -> Evaluation {
    Ok(Value::Bool(value))
}

/// Returns an integer result from an index or a size.
pub(crate) fn int(value: usize) -> Evaluation {
    Ok(Value::Int(i64::try_from(value).unwrap_or(i64::MAX)))
}

/// Matches the value of an opaque type.
pub(crate) fn opaque(value: &Value) -> Option<&OpaqueValue> {
    match value {
        Value::Opaque(Opaque(value)) => Some(value),
        _ => None,
    }
}
