//! Regular expressions, with the syntax and the meaning of Go's `regexp`.
//!
//! The engine of the `regex` crate runs a search in linear time, as Go does. Its syntax is a
//! superset with other defaults: `regular_expression/translate.rs` translates an expression, and
//! finds its errors.
//!
//! Literals are compiled with the program (`plan.rs`). Other expressions can come from a claim: an
//! evaluation compiles a limited number of them, with narrower [`Limits`]. The work of a search
//! depends on the text and on the size of the automaton.

mod translate;

use std::collections::HashMap;
use std::sync::Arc;

use regex_automata::meta;
use regex_automata::nfa::thompson::{self, WhichCaptures};

use super::{Function, bool, no_overload};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::Value;

/// The largest memory of the cache that a search uses, in bytes.
const MAX_CACHE: usize = 1 << 20;
/// The largest nesting of groups, as in Go.
const MAX_NESTING: u32 = 250;

/// The limits of a regular expression.
pub(crate) struct Limits {
    /// The largest number of code points.
    length: usize,
    /// The largest memory of the compiled expression, in bytes.
    program: usize,
    /// The number of steps of the automaton that count as one unit of work.
    steps_per_work: usize,
}

impl Limits {
    /// For a literal of an expression. Its author is an administrator, it is compiled once, and the
    /// length of the expression limits its length.
    pub(crate) const LITERAL: Self = Self { length: usize::MAX, program: 1 << 20, steps_per_work: 8 };
    /// For a text that an evaluation computes, for example from a claim: its author can be any
    /// user, and it is compiled in each evaluation. Such a user can select the expression whose
    /// steps take the longest time.
    pub(crate) const COMPUTED: Self = Self { length: 1_000, program: 1 << 17, steps_per_work: 1 };
}

/// The compiled regular expressions that are literals, by their texts.
pub(crate) type Literals = HashMap<Arc<str>, Arc<Pattern>>;

/// A compiled regular expression.
pub(crate) struct Pattern {
    regex: meta::Regex,
    /// The number of states of the automaton: a search makes at most that many steps for each byte.
    states: usize,
    /// See [`Limits`].
    steps_per_work: usize,
}

/// Compiles a regular expression. The error has the text of Go.
pub(crate) fn compile(pattern: &str, limits: &Limits) -> Result<Pattern, String> {
    let failed = |reason: &str, pattern: &str| format!("error parsing regexp: {reason}: `{pattern}`");
    let too_large = "expression too large";
    if let Some((end, _)) = pattern.char_indices().nth(limits.length) {
        // The rest may be megabytes.
        return Err(failed(too_large, &pattern[..end]));
    }
    let translated =
        translate::translate(pattern).map_err(|error| format!("error parsing regexp: {error}"))?;
    let unsupported = || failed("invalid or unsupported syntax", pattern);
    let mut parser = regex_syntax::ParserBuilder::new().nest_limit(MAX_NESTING).build();
    let parsed = parser.parse(&translated).map_err(|_| unsupported())?;
    let size_or_syntax =
        |limit: Option<usize>| if limit.is_some() { failed(too_large, pattern) } else { unsupported() };
    let config =
        thompson::Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(limits.program));
    let automaton = thompson::Compiler::new().configure(config).build_from_hir(&parsed);
    let automaton = automaton.map_err(|error| size_or_syntax(error.size_limit()))?;
    let config = meta::Config::new()
        .which_captures(WhichCaptures::Implicit)
        .nfa_size_limit(Some(limits.program))
        .hybrid_cache_capacity(MAX_CACHE);
    let regex = meta::Builder::new().configure(config).build_from_hir(&parsed);
    let regex = regex.map_err(|error| size_or_syntax(error.size_limit()))?;
    Ok(Pattern { regex, states: automaton.states().len(), steps_per_work: limits.steps_per_work })
}

impl Pattern {
    /// Counts the work of a search in this number of bytes. Kubernetes' cost counts the length of
    /// the expression alone, which does not limit the size of its automaton: `.{1000}` has 7 code
    /// points.
    fn charge(&self, usage: &mut Usage, length: usize) -> Result<(), EvaluationError> {
        usage.work(1 + length.saturating_mul(self.states) / self.steps_per_work)
    }

    fn is_match(&self, usage: &mut Usage, text: &str) -> Result<bool, EvaluationError> {
        self.charge(usage, text.len())?;
        Ok(self.regex.is_match(text))
    }

    fn find<'t>(&self, usage: &mut Usage, text: &'t str) -> Result<&'t str, EvaluationError> {
        self.charge(usage, text.len())?;
        Ok(self.regex.find(text).map_or("", |found| &text[found.range()]))
    }

    /// Returns the first matches, at most `count`.
    fn find_all<'t>(
        &self,
        usage: &mut Usage,
        text: &'t str,
        count: usize,
    ) -> Result<Vec<&'t str>, EvaluationError> {
        let mut found = Vec::new();
        let mut searches = self.regex.find_iter(text);
        let mut end = 0;
        while found.len() < count {
            // Each search may read the whole rest of the text.
            self.charge(usage, text.len() - end)?;
            let Some(part) = searches.next() else { break };
            usage.allocate(ELEMENT_SIZE + part.len())?;
            end = part.end();
            found.push(&text[part.range()]);
        }
        Ok(found)
    }
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "matches" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(pattern)] => {
                bool(usage.pattern(pattern)?.is_match(usage, text)?)
            }
            _ => Err(EvaluationError::no_overload()),
        },
        "find" => |usage, arguments| match arguments {
            [Value::String(text), Value::String(pattern)] => {
                let found = find_pattern(usage, pattern)?.find(usage, text)?;
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

fn find_pattern(usage: &mut Usage, pattern: &Arc<str>) -> Result<Arc<Pattern>, EvaluationError> {
    usage.pattern(pattern).map_err(|error| match error {
        EvaluationError::Failed(text) => EvaluationError::Failed(format!("Illegal regex: {text}")),
        other => other,
    })
}

fn find_all(usage: &mut Usage, text: &str, pattern: &Arc<str>, count: i64) -> Evaluation {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = find_pattern(usage, pattern)?.find_all(usage, text, count)?;
    Ok(Value::list(found.into_iter().map(Value::from).collect()))
}
