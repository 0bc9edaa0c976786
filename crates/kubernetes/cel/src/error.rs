//! Errors of compilation and of evaluation.

use std::fmt;

use thiserror::Error;

use crate::source::{Location, Source};
use crate::types::Type;

/// The largest number of issues that one error lists, as in cel-go.
const MAX_ISSUES: usize = 100;
/// Longer lines are not quoted, as in cel-go.
const MAX_QUOTED_LINE: usize = 16_384;

/// The reasons for which an expression is not valid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The expression has syntax errors or type errors. The text is that of cel-go.
    #[error("compilation failed: {0}")]
    Issues(Issues),
    /// A literal cannot be used as its function requires. The API server reports it as an internal
    /// error of the field, unlike the other issues.
    #[error("program instantiation failed: {error}")]
    Literal {
        /// The failure of the function.
        error: EvaluationError,
        /// The static type of the result. A caller that requires a type checks it first, as the API
        /// server does.
        output_type: Type,
    },
}

/// The issues of an expression in the order of their positions, each with the line it is in.
#[derive(Debug)]
pub struct Issues(String);

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One error with its position.
#[derive(Debug)]
pub(crate) struct Issue {
    pub(crate) location: Location,
    pub(crate) message: String,
}

impl Issues {
    /// Formats issues as cel-go does.
    pub(crate) fn new(source: &Source, mut issues: Vec<Issue>) -> Self {
        let truncated = issues.len().saturating_sub(MAX_ISSUES);
        issues.truncate(MAX_ISSUES);
        // `NONE` sorts first: its line is 0.
        issues.sort_by_key(|issue| issue.location);
        let mut parts: Vec<String> = issues.iter().map(|issue| quote(source, issue)).collect();
        if truncated > 0 {
            parts.push(format!("{truncated} more errors were truncated"));
        }
        Self(parts.join("\n"))
    }
}

fn quote(source: &Source, issue: &Issue) -> String {
    let Location { line, column } = issue.location;
    let mut text = if issue.location == Location::NONE {
        format!("ERROR: <input>:-1:0: {}", issue.message)
    } else {
        format!("ERROR: <input>:{line}:{}: {}", column + 1, issue.message)
    };
    let Some(quoted) = source.line(line) else { return text };
    if quoted.iter().map(|c| c.len_utf8()).sum::<usize>() > MAX_QUOTED_LINE {
        return text;
    }
    text.push_str("\n | ");
    text.extend(quoted.iter().map(|c| if *c == '\t' { ' ' } else { *c }));
    text.push_str("\n | ");
    let column = column as usize;
    let before = quoted.iter().take(column);
    text.extend(before.map(|c| if c.is_ascii() { '.' } else { '\u{ff0e}' }));
    let wide = quoted.get(column).is_some_and(|c| !c.is_ascii());
    text.push(if wide { '\u{ff3e}' } else { '^' });
    text
}

/// The reasons for which an evaluation has no result.
///
/// The texts are those of cel-go. A text can name a key or an index that the expression computed,
/// but no other value: `Debug` prints the variant alone.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum EvaluationError {
    /// A map has no entry for the key, or an object no field.
    #[error("no such key: {0}")]
    NoSuchKey(String),
    /// The function does not accept values of these types.
    #[error("no such overload{0}")]
    NoSuchOverload(String),
    /// The evaluation exceeded its budget.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// The evaluation would build values above the size limit.
    #[error("operation cancelled: result size limit exceeded")]
    SizeLimit,
    /// Any other failure, with the text of cel-go.
    #[error("{0}")]
    Failed(String),
}

impl fmt::Debug for EvaluationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchKey(_) => "NoSuchKey",
            Self::NoSuchOverload(_) => "NoSuchOverload",
            Self::CostLimit => "CostLimit",
            Self::SizeLimit => "SizeLimit",
            Self::Failed(_) => "Failed",
        })
    }
}

impl EvaluationError {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(crate) fn no_overload() -> Self {
        Self::NoSuchOverload(String::new())
    }

    /// Reports whether `&&` and `||` must not absorb the error.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::CostLimit | Self::SizeLimit)
    }
}
