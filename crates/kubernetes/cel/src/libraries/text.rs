//! Functions of text: cel-go's strings library, version 2.

use super::{Function, bool, int, interpolation, no_overload};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::Value;

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "charAt" => |_, arguments| match arguments {
            [Value::String(text), Value::Int(index)] => char_at(text, *index),
            _ => Err(no_overload("charAt", arguments)),
        },
        "contains" => |_, arguments| two(arguments, |text, part| bool(text.contains(part))),
        "startsWith" => |_, arguments| two(arguments, |text, part| bool(text.starts_with(part))),
        "endsWith" => |_, arguments| two(arguments, |text, part| bool(text.ends_with(part))),
        "join" => |usage, arguments| join(usage, arguments),
        "lowerAscii" => |usage, arguments| map("lowerAscii", usage, arguments, str::to_ascii_lowercase),
        "upperAscii" => |usage, arguments| map("upperAscii", usage, arguments, str::to_ascii_uppercase),
        "trim" => |usage, arguments| map("trim", usage, arguments, |text| text.trim().to_owned()),
        "strings.quote" => |usage, arguments| map("strings.quote", usage, arguments, quote),
        "replace" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(old), Value::String(new)] => {
                replace(usage, text, old, new, usize::MAX)
            }
            [Value::String(text), Value::String(old), Value::String(new), Value::Int(count)] => {
                replace(usage, text, old, new, limit(*count))
            }
            _ => Err(no_overload("replace", arguments)),
        },
        "split" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(by)] => split(usage, text, by, usize::MAX),
            [Value::String(text), Value::String(by), Value::Int(count)] => {
                split(usage, text, by, limit(*count))
            }
            _ => Err(no_overload("split", arguments)),
        },
        "substring" => |usage, arguments| match arguments {
            [Value::String(text), Value::Int(start)] => substring(usage, text, *start, None),
            [Value::String(text), Value::Int(start), Value::Int(end)] => {
                substring(usage, text, *start, Some(*end))
            }
            _ => Err(no_overload("substring", arguments)),
        },
        "format" => |usage, arguments| match arguments {
            [Value::String(text), Value::List(values)] => interpolation::format(usage, text, values),
            _ => Err(no_overload("format", arguments)),
        },
        _ => return None,
    })
}

fn two(arguments: &[Value], f: fn(&str, &str) -> Evaluation) -> Evaluation {
    match arguments {
        [Value::String(text), Value::String(part)] => f(text, part),
        _ => Err(EvaluationError::no_overload()),
    }
}

fn map(name: &str, usage: &mut Usage, arguments: &[Value], f: fn(&str) -> String) -> Evaluation {
    match arguments {
        [Value::String(text)] => {
            usage.allocate(text.len())?;
            Ok(f(text).into())
        }
        _ => Err(no_overload(name, arguments)),
    }
}

fn limit(count: i64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Puts a text in quotes, and escapes the characters that CEL has escape sequences for.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn out_of_range(index: i64) -> EvaluationError {
    EvaluationError::failed(format!("index out of range: {index}"))
}

fn char_at(text: &str, index: i64) -> Evaluation {
    let position = usize::try_from(index).map_err(|_| out_of_range(index))?;
    match text.chars().nth(position) {
        Some(c) => Ok(c.to_string().into()),
        None if text.chars().count() == position => Ok("".into()),
        None => Err(out_of_range(index)),
    }
}

/// Returns the byte offset of a code point, or of the end.
fn byte_offset(text: &str, index: usize) -> Option<usize> {
    let mut offsets = text.char_indices().map(|(offset, _)| offset).chain([text.len()]);
    offsets.nth(index)
}

fn substring(usage: &mut Usage, text: &str, start: i64, end: Option<i64>) -> Evaluation {
    if let Some(end) = end
        && start > end
    {
        let text = format!("invalid substring range. start: {start}, end: {end}");
        return Err(EvaluationError::failed(text));
    }
    let offset = |index: i64| {
        usize::try_from(index)
            .ok()
            .and_then(|index| byte_offset(text, index))
            .ok_or_else(|| out_of_range(index))
    };
    let from = offset(start)?;
    let to = end.map_or(Ok(text.len()), offset)?;
    usage.allocate(to - from)?;
    Ok(text[from..to].into())
}

/// Returns the index of a part of a text, in code points, from an index on.
pub(crate) fn index_of(text: &str, part: &str, from: i64) -> Evaluation {
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let position = usize::try_from(from).map_err(|_| out_of_range(from))?;
    let Some(offset) = byte_offset(text, position) else { return Ok(Value::Int(-1)) };
    match text[offset..].find(part) {
        Some(found) => int(position + text[offset..offset + found].chars().count()),
        None => Ok(Value::Int(-1)),
    }
}

/// Returns the index of the last occurrence of a part that begins at or before an index.
pub(crate) fn last_index_of(text: &str, part: &str, from: Option<i64>) -> Evaluation {
    let length = text.chars().count();
    let Some(from) = from else {
        if part.is_empty() {
            return int(length);
        }
        return Ok(text.rfind(part).map_or(Value::Int(-1), |offset| position(text, offset)));
    };
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let start = usize::try_from(from).map_err(|_| out_of_range(from))?;
    if start >= length {
        return Ok(Value::Int(-1));
    }
    let offset = byte_offset(text, start).unwrap_or(text.len());
    let mut end = (offset + part.len()).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Ok(text[..end].rfind(part).map_or(Value::Int(-1), |offset| position(text, offset)))
}

fn position(text: &str, offset: usize) -> Value {
    Value::Int(i64::try_from(text[..offset].chars().count()).unwrap_or(i64::MAX))
}

fn replace(usage: &mut Usage, text: &str, old: &str, new: &str, count: usize) -> Evaluation {
    let found = text.matches(old).take(count).count();
    usage.allocate(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count).into())
}

fn split(usage: &mut Usage, text: &str, by: &str, count: usize) -> Evaluation {
    if count == 0 {
        return Ok(Value::list(Vec::new()));
    }
    let parts: Vec<&str> = if by.is_empty() {
        // Rust also yields the empty texts at both ends.
        let mut parts: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if parts.len() + 1 == count {
                break;
            }
            let (first, after) = rest.split_at(c.len_utf8());
            parts.push(first);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(rest);
        }
        parts
    } else {
        text.splitn(count, by).collect()
    };
    usage.allocate(parts.len() * ELEMENT_SIZE + text.len())?;
    Ok(Value::list(parts.into_iter().map(Value::from).collect()))
}

fn join(usage: &mut Usage, arguments: &[Value]) -> Evaluation {
    let (elements, separator) = match arguments {
        [Value::List(elements)] => (elements, ""),
        [Value::List(elements), Value::String(separator)] => (elements, &**separator),
        _ => return Err(no_overload("join", arguments)),
    };
    let mut joined = String::new();
    for (index, element) in elements.iter().enumerate() {
        let Value::String(text) = element else { return Err(no_overload("join", arguments)) };
        usage.allocate(text.len() + separator.len())?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(text);
    }
    Ok(joined.into())
}
