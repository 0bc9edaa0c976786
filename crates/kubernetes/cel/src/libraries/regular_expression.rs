//! Regular expressions, with the syntax and the meaning of Go's `regexp`.
//!
//! The `regex` crate runs them in linear time, as Go does. Its syntax is a superset with other
//! defaults: `regular_expression/translate.rs` translates an expression, and finds its errors.

mod translate;

use regex::{Regex, RegexBuilder};

use super::{Function, bool, no_overload};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::Value;

/// The largest memory of a compiled expression, in bytes.
const MAX_PROGRAM: usize = 1 << 20;
/// The largest memory of the cache that a search uses, in bytes.
const MAX_CACHE: usize = 1 << 20;
/// The largest nesting of groups, as in Go.
const MAX_NESTING: u32 = 250;

/// A compiled regular expression.
pub(crate) struct Pattern(Regex);

/// Compiles a regular expression. The error has the text of Go.
pub(crate) fn compile(pattern: &str) -> Result<Pattern, String> {
    let translated =
        translate::translate(pattern).map_err(|error| format!("error parsing regexp: {error}"))?;
    let compiled = RegexBuilder::new(&translated)
        .size_limit(MAX_PROGRAM)
        .dfa_size_limit(MAX_CACHE)
        .nest_limit(MAX_NESTING)
        .build();
    compiled.map(Pattern).map_err(|error| {
        let reason = match error {
            regex::Error::CompiledTooBig(_) => "expression too large",
            _ => "invalid or unsupported syntax",
        };
        format!("error parsing regexp: {reason}: `{pattern}`")
    })
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "matches" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(pattern)] => bool(usage.pattern(pattern)?.0.is_match(text)),
            _ => Err(EvaluationError::no_overload()),
        },
        "find" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(pattern)] => {
                let pattern = find_pattern(usage, pattern)?;
                let found = pattern.0.find(text).map_or("", |found| found.as_str());
                usage.allocate(found.len())?;
                Ok(found.into())
            }
            _ => Err(EvaluationError::no_overload()),
        },
        "findAll" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(pattern)] => find_all(usage, text, pattern, -1),
            [Value::String(text), Value::String(pattern), Value::Int(count)] => {
                find_all(usage, text, pattern, *count)
            }
            _ => Err(no_overload("findAll", arguments)),
        },
        _ => return None,
    })
}

fn find_pattern(
    usage: &mut Usage,
    pattern: &std::sync::Arc<str>,
) -> Result<std::sync::Arc<Pattern>, EvaluationError> {
    usage.pattern(pattern).map_err(|error| match error {
        EvaluationError::Failed(text) => EvaluationError::Failed(format!("Illegal regex: {text}")),
        other => other,
    })
}

fn find_all(usage: &mut Usage, text: &str, pattern: &std::sync::Arc<str>, count: i64) -> Evaluation {
    let pattern = find_pattern(usage, pattern)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    for part in pattern.0.find_iter(text).take(count) {
        usage.allocate(ELEMENT_SIZE + part.len())?;
        found.push(Value::from(part.as_str()));
    }
    Ok(Value::list(found))
}
