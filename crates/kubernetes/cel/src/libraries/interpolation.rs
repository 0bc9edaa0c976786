//! The interpolation of values into a text: `'%d of %s'.format([1, 'a'])`.

use pinniped_go_compat::json::quote;

use super::{convert, opaque};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::value::{Key, OpaqueValue, Value};

/// The number of digits after the point, if the clause does not specify it.
const DEFAULT_PRECISION: usize = 6;
/// The largest number of digits after the point.
const MAX_PRECISION: usize = 1_000;

/// The kind of a clause, such as `%s`.
#[derive(Clone, Copy)]
pub(crate) enum Clause {
    String,
    Decimal,
    Fixed(usize),
    Scientific(usize),
    Binary,
    Hexadecimal { upper: bool },
    Octal,
}

/// A part of a text with clauses.
pub(crate) enum Part<'t> {
    Text(&'t str),
    Clause(Clause),
}

/// Formats values with the clauses of a text.
pub(crate) fn format(usage: &mut Usage, text: &str, values: &[Value]) -> Evaluation {
    let mut output = String::new();
    let mut index = 0;
    walk(text, |part| match part {
        Part::Text(text) => {
            usage.allocate(text.len()).map_err(Failure::Evaluation)?;
            output.push_str(text);
            Ok(())
        }
        Part::Clause(clause) => {
            let value = values.get(index).ok_or(Failure::Text(format!("index {index} out of range")))?;
            index += 1;
            let formatted = clause.format(usage, value)?;
            output.push_str(&formatted);
            Ok(())
        }
    })
    .map_err(|failure| match failure {
        Failure::Evaluation(error) => error,
        Failure::Text(text) => EvaluationError::Failed(text),
    })?;
    Ok(output.into())
}

/// The reason for which a text cannot be formatted.
pub(crate) enum Failure {
    Evaluation(EvaluationError),
    Text(String),
}

impl From<EvaluationError> for Failure {
    fn from(error: EvaluationError) -> Self {
        Self::Evaluation(error)
    }
}

/// Visits the parts of a text.
pub(crate) fn walk(
    text: &str,
    mut visit: impl FnMut(Part<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut rest = text;
    while let Some(start) = rest.find('%') {
        if start > 0 {
            visit(Part::Text(&rest[..start]))?;
        }
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            visit(Part::Text("%"))?;
            rest = after;
            continue;
        }
        let (clause, after) = clause(rest)?;
        visit(Part::Clause(clause))?;
        rest = after;
    }
    if !rest.is_empty() {
        visit(Part::Text(rest))?;
    }
    Ok(())
}

fn clause(text: &str) -> Result<(Clause, &str), Failure> {
    let unparsed = |reason: String| Failure::Text(format!("could not parse formatting clause: {reason}"));
    if text.is_empty() {
        return Err(Failure::Text("unexpected end of string".into()));
    }
    let (precision, rest) = match text.strip_prefix('.') {
        Some(after) => {
            let length = after.bytes().take_while(u8::is_ascii_digit).count();
            let (digits, rest) = after.split_at(length);
            let reason = |reason: String| unparsed(format!("error while parsing precision: {reason}"));
            if rest.is_empty() {
                return Err(reason("could not find end of precision specifier".into()));
            }
            let precision: usize = digits.parse().map_err(|_| {
                let what = format!("strconv.Atoi: parsing {}: invalid syntax", quote(digits));
                reason(format!("error while converting precision to integer: {what}"))
            })?;
            (precision.min(MAX_PRECISION), rest)
        }
        None => (DEFAULT_PRECISION, text),
    };
    let Some(kind) = rest.chars().next() else {
        return Err(Failure::Text("unexpected end of string".into()));
    };
    let clause = match kind {
        's' => Clause::String,
        'd' => Clause::Decimal,
        'f' => Clause::Fixed(precision),
        'e' => Clause::Scientific(precision),
        'b' => Clause::Binary,
        'x' => Clause::Hexadecimal { upper: false },
        'X' => Clause::Hexadecimal { upper: true },
        'o' => Clause::Octal,
        other => return Err(unparsed(format!("unrecognized formatting clause \"{other}\""))),
    };
    Ok((clause, &rest[kind.len_utf8()..]))
}

impl Clause {
    /// Returns the error of a value whose type the clause does not accept.
    pub(crate) fn refusal(self, type_name: &str) -> String {
        let reason = match self {
            Self::String => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
            }
            Self::Decimal => "decimal clause can only be used on integers",
            Self::Fixed(_) => "fixed-point clause can only be used on doubles",
            Self::Scientific(_) => "scientific clause can only be used on doubles",
            Self::Binary => "only integers and bools can be formatted as binary",
            Self::Hexadecimal { .. } => "only integers, byte buffers, and strings can be formatted as hex",
            Self::Octal => "octal clause can only be used on integers",
        };
        format!("error during formatting: {reason}, was given {type_name}")
    }

    fn format(self, usage: &mut Usage, value: &Value) -> Result<String, Failure> {
        let refused = || Failure::Text(self.refusal(value.type_name()));
        let text = match (self, value) {
            (Self::String, _) => return string(usage, value),
            (Self::Decimal, Value::Int(value)) => value.to_string(),
            (Self::Decimal, Value::Uint(value)) => value.to_string(),
            (Self::Fixed(precision), _) => fixed(number(value).ok_or_else(refused)?, precision),
            (Self::Scientific(precision), _) => scientific(number(value).ok_or_else(refused)?, precision),
            (Self::Binary, Value::Int(value)) => signed(*value, format!("{:b}", value.unsigned_abs())),
            (Self::Binary, Value::Uint(value)) => format!("{value:b}"),
            (Self::Binary, Value::Bool(value)) => u8::from(*value).to_string(),
            (Self::Octal, Value::Int(value)) => signed(*value, format!("{:o}", value.unsigned_abs())),
            (Self::Octal, Value::Uint(value)) => format!("{value:o}"),
            (Self::Hexadecimal { upper }, _) => {
                let text = match value {
                    Value::Int(value) => signed(*value, format!("{:x}", value.unsigned_abs())),
                    Value::Uint(value) => format!("{value:x}"),
                    Value::String(text) => hexadecimal(text.as_bytes()),
                    Value::Bytes(bytes) => hexadecimal(bytes),
                    _ => return Err(refused()),
                };
                if upper { text.to_uppercase() } else { text }
            }
            _ => return Err(refused()),
        };
        usage.allocate(text.len())?;
        Ok(text)
    }
}

fn signed(value: i64, digits: String) -> String {
    if value < 0 { format!("-{digits}") } else { digits }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Double(value) => Some(*value),
        Value::String(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a number with a fixed number of digits after the point, grouped by three before it, as
/// in English text.
fn fixed(value: f64, precision: usize) -> String {
    if let Some(special) = special(value) {
        return special;
    }
    let text = format!("{value:.precision$}");
    let (sign, text) = text.strip_prefix('-').map_or(("", &*text), |text| ("-", text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut grouped = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !fraction.is_empty() {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

fn special(value: f64) -> Option<String> {
    match value {
        _ if value.is_nan() => Some("NaN".into()),
        f64::INFINITY => Some("∞".into()),
        f64::NEG_INFINITY => Some("-∞".into()),
        _ => None,
    }
}

/// Returns a number such as `1.500000×10⁰³`. As in cel-go, the precision of the clause is a width.
fn scientific(value: f64, width: usize) -> String {
    if let Some(special) = special(value) {
        return special;
    }
    let text = format!("{value:.DEFAULT_PRECISION$e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("", exponent), |exponent| ("⁻", exponent));
    let superscript = |digit: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit.to_digit(10).unwrap_or(0) as usize);
    let exponent: String = format!("{exponent:0>2}").chars().filter_map(superscript).collect();
    format!("{:>width$}", format!("{digits}×10{sign}{exponent}"))
}

fn string(usage: &mut Usage, value: &Value) -> Result<String, Failure> {
    usage.work(1)?;
    let text = match value {
        Value::Null => "null".into(),
        Value::List(elements) => {
            let mut parts = Vec::new();
            for element in elements.iter() {
                parts.push(member(usage, element)?);
            }
            format!("[{}]", parts.join(", "))
        }
        Value::Map(map) => {
            let mut parts = Vec::new();
            for (key, value) in map.entries() {
                if matches!(key, Key::Null | Key::Double(_)) {
                    let name = key.value().type_name().to_owned();
                    return Err(Failure::Text(format!(
                        "error during formatting: no formatting function for map key of type {name}"
                    )));
                }
                parts.push((member(usage, &key.value())?, member(usage, value)?));
            }
            parts.sort();
            let parts: Vec<String> = parts.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", parts.join(", "))
        }
        other => match (opaque(other), convert::to_string(other)) {
            (Some(OpaqueValue::Type(ty)), _) => ty.name().to_owned(),
            (None | Some(OpaqueValue::Duration(_) | OpaqueValue::Timestamp(_)), Some(text)) => match text? {
                Value::String(text) => text.to_string(),
                _ => String::new(),
            },
            _ => return Err(Failure::Text(Clause::String.refusal(other.type_name()))),
        },
    };
    usage.allocate(text.len())?;
    Ok(text)
}

/// Formats an element of a list or a map.
fn member(usage: &mut Usage, value: &Value) -> Result<String, Failure> {
    Ok(match value {
        Value::String(text) => quote(text),
        Value::Bytes(_) => format!("b{}", quote(&string(usage, value)?)),
        Value::Double(value) => match special(*value) {
            Some(_) => quote(&convert::double_text(*value)),
            None => format!("{value:.DEFAULT_PRECISION$}"),
        },
        other => match opaque(other) {
            Some(OpaqueValue::Duration(_)) => format!("duration({})", quote(&string(usage, value)?)),
            Some(OpaqueValue::Timestamp(_)) => format!("timestamp({})", quote(&string(usage, value)?)),
            _ => string(usage, value)?,
        },
    })
}
