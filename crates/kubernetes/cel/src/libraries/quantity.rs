//! Quantities of Kubernetes, such as `1.5Gi` or `100m`.
//!
//! Amounts beyond 10²⁹ become the largest amount.

use std::cmp::Ordering;

use super::{Function, bool, no_overload, opaque};
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::value::{OpaqueValue, Value};

/// The power of ten of the smallest amount.
const NANO: i32 = -9;
/// The number of decimal digits that always fit into 64 bits.
const DIGITS: i32 = 18;

/// An amount. As in Kubernetes, only an amount in the first form can be an integer.
#[derive(Clone, Copy)]
pub(crate) enum Quantity {
    /// A value and a power of ten.
    Scaled(i64, i32),
    /// A number of billionths.
    Nano(i128),
}

impl Quantity {
    fn nano(self) -> i128 {
        match self {
            Self::Nano(nano) => nano,
            Self::Scaled(value, scale) => scale_up(i128::from(value), scale - NANO),
        }
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.nano().cmp(&other.nano())
    }

    fn int(self) -> Option<i64> {
        match self {
            Self::Scaled(value, 0) => Some(value),
            Self::Scaled(value, scale) if scale > 0 => {
                value.checked_mul(10_i64.checked_pow(scale.unsigned_abs())?)
            }
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Scaled(value, scale) if scale < 0 => value as f64 * 10_f64.powi(scale),
            Self::Scaled(value, scale) => value as f64 * 10_f64.powi(scale),
            Self::Nano(nano) => nano as f64 / 1e9,
        }
    }

    fn add(self, other: Self) -> Self {
        let scaled = match (self, other) {
            (Self::Scaled(0, _), Self::Scaled(..)) => return other,
            (Self::Scaled(..), Self::Scaled(0, _)) => return self,
            (Self::Scaled(a, a_scale), Self::Scaled(b, b_scale)) => {
                let scale = a_scale.min(b_scale);
                let up = |value: i64, from: i32| {
                    value.checked_mul(10_i64.checked_pow((from - scale).unsigned_abs())?)
                };
                up(a, a_scale).zip(up(b, b_scale)).and_then(|(a, b)| a.checked_add(b)).map(|sum| (sum, scale))
            }
            _ => None,
        };
        match scaled {
            Some((value, scale)) => Self::Scaled(value, scale),
            None => Self::Nano(self.nano().saturating_add(other.nano())),
        }
    }

    fn negated(self) -> Self {
        match self {
            Self::Scaled(value, scale) => match value.checked_neg() {
                Some(value) => Self::Scaled(value, scale),
                None => Self::Nano(self.nano().saturating_neg()),
            },
            Self::Nano(nano) => Self::Nano(nano.saturating_neg()),
        }
    }
}

/// Multiplies by a power of ten; a negative power rounds away from zero.
fn scale_up(value: i128, power: i32) -> i128 {
    let factor = 10_i128.checked_pow(power.unsigned_abs());
    match factor {
        Some(factor) if power >= 0 => value.saturating_mul(factor),
        Some(factor) => {
            let rest = value % factor;
            value / factor + rest.signum()
        }
        None if power >= 0 => value.saturating_mul(i128::MAX),
        None => value.signum(),
    }
}

fn parse(text: &str) -> Result<Quantity, EvaluationError> {
    const FORMAT: &str =
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let format = || EvaluationError::failed(FORMAT);
    if text.is_empty() {
        return Err(format());
    }
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits_end = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = unsigned.split_at(digits_end(unsigned));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits_end(rest)),
        None => ("", rest),
    };
    let letters = suffix.bytes().take_while(|byte| b"eEinumkKMGTP".contains(byte)).count();
    let tail = &suffix[letters..];
    let tail = tail.strip_prefix(['+', '-']).unwrap_or(tail);
    if !tail.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format());
    }
    let (base, exponent) =
        interpret(suffix).ok_or_else(|| EvaluationError::failed("unable to parse quantity's suffix"))?;
    let numeric = || EvaluationError::failed("unable to parse numeric part of quantity");
    let whole = whole.trim_start_matches('0');
    let places = i32::try_from(fraction.len()).map_err(|_| numeric())?;
    let length = i32::try_from(whole.len().max(1)).map_err(|_| numeric())? + places;
    let fast = match base {
        10 => DIGITS - length >= 0,
        _ => places == 0 && 15 - length - exponent * 3 / 10 > 0,
    };
    let digits = format!("0{whole}{fraction}");
    let scale = if base == 10 { exponent.saturating_sub(places) } else { -places };
    if fast && scale >= NANO {
        let value: i64 = digits.parse().map_err(|_| numeric())?;
        let value = if base == 2 { value.checked_mul(1 << exponent) } else { Some(value) };
        if let Some(value) = value {
            return Ok(Quantity::Scaled(if negative { -value } else { value }, scale));
        }
    }
    let value: i128 =
        digits.get(..digits.len().min(60)).and_then(|text| text.parse().ok()).unwrap_or(i128::MAX);
    let value = if base == 2 { value.saturating_mul(1 << exponent) } else { value };
    let mut nano = scale_up(value, scale.saturating_sub(NANO));
    if base == 2 {
        nano = nano.min(i128::from(i64::MAX) * 1_000_000_000);
    }
    Ok(Quantity::Nano(if negative { -nano } else { nano }))
}

/// Returns the base and the exponent that a suffix stands for.
fn interpret(suffix: &str) -> Option<(u8, i32)> {
    Some(match suffix {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i64 = exponent.parse().ok()?;
            (10, i32::try_from(exponent.clamp(-1_000, 1_000)).ok()?)
        }
    })
}

fn quantity(value: &Value) -> Option<Quantity> {
    match opaque(value) {
        Some(OpaqueValue::Quantity(quantity)) => Some(**quantity),
        _ => None,
    }
}

fn result(quantity: Quantity) -> Evaluation {
    Ok(OpaqueValue::Quantity(quantity.into()).into())
}

fn one(name: &str, arguments: &[Value], f: fn(Quantity) -> Evaluation) -> Evaluation {
    match arguments {
        [value] if let Some(value) = quantity(value) => f(value),
        _ => Err(no_overload(name, arguments)),
    }
}

/// Calls a function with two quantities. The second can be an integer.
fn two(name: &str, arguments: &[Value], f: fn(Quantity, Quantity) -> Quantity) -> Evaluation {
    let second = match arguments.get(1) {
        Some(Value::Int(value)) => Some(Quantity::Scaled(*value, 0)),
        other => other.and_then(quantity),
    };
    match arguments.first().and_then(quantity).zip(second) {
        Some((a, b)) => result(f(a, b)),
        None => Err(no_overload(name, arguments)),
    }
}

/// Compares two quantities or two versions.
fn order(name: &str, arguments: &[Value], f: fn(Ordering) -> Value) -> Evaluation {
    let [a, b] = arguments else { return Err(no_overload(name, arguments)) };
    match (opaque(a), opaque(b)) {
        (Some(OpaqueValue::Quantity(a)), Some(OpaqueValue::Quantity(b))) => Ok(f(a.compare(b))),
        (Some(OpaqueValue::Version(a)), Some(OpaqueValue::Version(b))) => Ok(f(a.compare(b))),
        _ => Err(no_overload(name, arguments)),
    }
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "quantity" => |_, arguments| match arguments {
            [Value::String(text)] => parse(text).and_then(result),
            _ => Err(no_overload("quantity", arguments)),
        },
        "isQuantity" => |_, arguments| match arguments {
            [Value::String(text)] => bool(parse(text).is_ok()),
            _ => Err(no_overload("isQuantity", arguments)),
        },
        "sign" => |_, arguments| {
            one("sign", arguments, |q| Ok(Value::Int(i64::try_from(q.nano().signum()).unwrap_or(0))))
        },
        "isInteger" => |_, arguments| one("isInteger", arguments, |q| bool(q.int().is_some())),
        "asInteger" => |_, arguments| {
            one("asInteger", arguments, |q| {
                let failed = || EvaluationError::failed("cannot convert value to integer");
                q.int().map(Value::Int).ok_or_else(failed)
            })
        },
        "asApproximateFloat" => {
            |_, arguments| one("asApproximateFloat", arguments, |q| Ok(Value::Double(q.float())))
        }
        "add" => |_, arguments| two("add", arguments, Quantity::add),
        "sub" => |_, arguments| two("sub", arguments, |a, b| a.add(b.negated())),
        "compareTo" => {
            |_, arguments| order("compareTo", arguments, |order| Value::Int(i64::from(order as i8)))
        }
        "isGreaterThan" => {
            |_, arguments| order("isGreaterThan", arguments, |order| Value::Bool(order.is_gt()))
        }
        "isLessThan" => |_, arguments| order("isLessThan", arguments, |order| Value::Bool(order.is_lt())),
        _ => return None,
    })
}
