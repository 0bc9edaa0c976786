//! Conversions between types.

use super::{Function, duration, no_overload, opaque, timestamp};
use crate::environment::type_of_name;
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::types::Type;
use crate::value::{OpaqueValue, Value};

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "bool" => |_, arguments| to_bool(arguments),
        "bytes" => |_, arguments| to_bytes(arguments),
        "double" => |_, arguments| to_double(arguments),
        "duration" => |_, arguments| to_duration(arguments),
        "dyn" => |_, arguments| match arguments {
            [value] => Ok(value.clone()),
            _ => Err(no_overload("dyn", arguments)),
        },
        "int" => |_, arguments| to_int(arguments),
        "string" => |_, arguments| match arguments {
            [value] => to_string(value).unwrap_or_else(|| Err(no_overload("string", arguments))),
            _ => Err(no_overload("string", arguments)),
        },
        "timestamp" => |_, arguments| to_timestamp(arguments),
        "type" => |_, arguments| match arguments {
            [value] => Ok(OpaqueValue::Type(type_of(value)).into()),
            _ => Err(no_overload("type", arguments)),
        },
        "uint" => |_, arguments| to_uint(arguments),
        _ => return None,
    })
}

fn type_of(value: &Value) -> Type {
    let name = value.type_name();
    type_of_name(name).unwrap_or_else(|| Type::Opaque(name.into(), [].into()))
}

/// Returns the error of a text that is not a value of a type.
fn invalid(to: &str) -> EvaluationError {
    EvaluationError::failed(format!("type conversion error from 'string' to '{to}'"))
}

fn to_bool(arguments: &[Value]) -> Evaluation {
    match arguments {
        [Value::Bool(value)] => Ok(Value::Bool(*value)),
        [Value::String(text)] => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => Err(invalid("bool")),
        },
        _ => Err(no_overload("bool", arguments)),
    }
}

fn to_bytes(arguments: &[Value]) -> Evaluation {
    match arguments {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
        [Value::String(text)] => Ok(Value::Bytes(text.as_bytes().into())),
        _ => Err(no_overload("bytes", arguments)),
    }
}

fn to_double(arguments: &[Value]) -> Evaluation {
    match arguments {
        [Value::Double(value)] => Ok(Value::Double(*value)),
        [Value::Int(value)] => Ok(Value::Double(*value as f64)),
        [Value::Uint(value)] => Ok(Value::Double(*value as f64)),
        [Value::String(text)] => parse_double(text).map(Value::Double).ok_or_else(|| invalid("double")),
        _ => Err(no_overload("double", arguments)),
    }
}

/// Parses a number as Go does, without hexadecimal numbers and without `_`.
fn parse_double(text: &str) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    (value.is_finite() || !digits).then_some(value)
}

fn to_int(arguments: &[Value]) -> Evaluation {
    let overflow = || EvaluationError::failed("integer overflow");
    match arguments {
        [Value::Int(value)] => Ok(Value::Int(*value)),
        [Value::Uint(value)] => i64::try_from(*value).map(Value::Int).map_err(|_| overflow()),
        [Value::Double(value)] if *value > i64::MIN as f64 && *value < i64::MAX as f64 => {
            Ok(Value::Int(*value as i64))
        }
        [Value::Double(_)] => Err(overflow()),
        [Value::String(text)] => text.parse().map(Value::Int).map_err(|_| invalid("int")),
        [value] => match opaque(value) {
            Some(OpaqueValue::Duration(nanoseconds)) => Ok(Value::Int(*nanoseconds)),
            Some(OpaqueValue::Timestamp(time)) => Ok(Value::Int(time.seconds())),
            _ => Err(no_overload("int", arguments)),
        },
        _ => Err(no_overload("int", arguments)),
    }
}

fn to_uint(arguments: &[Value]) -> Evaluation {
    let overflow = || EvaluationError::failed("unsigned integer overflow");
    match arguments {
        [Value::Uint(value)] => Ok(Value::Uint(*value)),
        [Value::Int(value)] => u64::try_from(*value).map(Value::Uint).map_err(|_| overflow()),
        [Value::Double(value)] if *value >= 0.0 && *value < u64::MAX as f64 => Ok(Value::Uint(*value as u64)),
        [Value::Double(_)] => Err(overflow()),
        // Go accepts no sign here.
        [Value::String(text)] if text.starts_with('+') => Err(invalid("uint")),
        [Value::String(text)] => text.parse().map(Value::Uint).map_err(|_| invalid("uint")),
        _ => Err(no_overload("uint", arguments)),
    }
}

/// Converts a value to text. Returns `None` for values that have no text.
pub(crate) fn to_string(value: &Value) -> Option<Evaluation> {
    Some(Ok(match value {
        Value::String(text) => Value::String(text.clone()),
        Value::Bool(value) => value.to_string().into(),
        Value::Int(value) => value.to_string().into(),
        Value::Uint(value) => value.to_string().into(),
        Value::Double(value) => double_text(*value).into(),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => {
                let text = "invalid UTF-8 in bytes, cannot convert to string";
                return Some(Err(EvaluationError::failed(text)));
            }
        },
        Value::Opaque(_) => match opaque(value)? {
            OpaqueValue::Duration(nanoseconds) => duration::text(*nanoseconds).into(),
            OpaqueValue::Timestamp(time) => time.text().into(),
            OpaqueValue::Ip(ip) => ip.to_string().into(),
            OpaqueValue::Cidr(cidr) => cidr.to_string().into(),
            _ => return None,
        },
        _ => return None,
    }))
}

/// Returns the text of a number as Go's `%g` writes it.
pub(crate) fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..21).contains(&exponent) && (value == 0.0 || exponent < 21) && !(6..21).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn to_duration(arguments: &[Value]) -> Evaluation {
    match arguments {
        [Value::String(text)] => {
            duration::parse(text).map(Value::duration).ok_or_else(|| invalid("google.protobuf.Duration"))
        }
        [Value::Int(_)] => {
            Err(EvaluationError::failed("type conversion error from 'int' to 'google.protobuf.Duration'"))
        }
        [value] if matches!(opaque(value), Some(OpaqueValue::Duration(_))) => Ok(value.clone()),
        _ => Err(no_overload("duration", arguments)),
    }
}

fn to_timestamp(arguments: &[Value]) -> Evaluation {
    let overflow = || EvaluationError::failed("timestamp overflow");
    let time = match arguments {
        [Value::String(text)] => {
            timestamp::parse(text).ok_or_else(|| invalid("google.protobuf.Timestamp"))?
        }
        [Value::Int(seconds)] => timestamp::from_seconds(*seconds).ok_or_else(overflow)?,
        [value] if matches!(opaque(value), Some(OpaqueValue::Timestamp(_))) => return Ok(value.clone()),
        _ => return Err(no_overload("timestamp", arguments)),
    };
    Ok(OpaqueValue::Timestamp(time).into())
}
