//! The match conditions of an `HTTPProxy` along a chain of includes.

use std::collections::HashSet;

use pinniped_gateway_api::http_proxy::{HeaderMatchCondition, MatchCondition, QueryParameterMatchCondition};

use super::Patterns;
use crate::table::{Field, HeaderMatch, HeaderTest, PathMatch, QueryMatch, QueryTest};

/// Conditions that are invalid, with the texts of Contour.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConditionError {
    #[error("{kind} conditions must start with /, {path} was supplied")]
    NoSlash { kind: &'static str, path: String },
    #[error("supplied regex: {written} invalid. error: {source}")]
    PathRegex { written: String, source: regex::Error },
    #[error("more than one prefix, exact or regex is not allowed in a condition block")]
    SeveralPaths,
    #[error("exact conditions are not allowed in includes block")]
    ExactInclude,
    #[error("regex conditions are not allowed in includes block")]
    RegexInclude,
    /// An expression that is invalid together with the prefix of the includes.
    #[error(transparent)]
    MergedRegex(#[from] regex::Error),
    #[error("invalid header name {0:?} specified for a header condition")]
    HeaderName(String),
    /// An expression for a header or a query parameter.
    #[error("invalid regular expression specified for 'regex' condition")]
    Regex,
    #[error("cannot specify duplicate header 'exact match' conditions in the same route")]
    DuplicateHeader,
    #[error("cannot specify contradictory '{0}' and 'not{0}' conditions for the same route and header")]
    ContradictoryHeader(&'static str),
    #[error("must specify at least one query parameter condition")]
    NoQuery,
    #[error("cannot specify more than one condition in the same match condition branch")]
    SeveralQueries,
    #[error("cannot specify duplicate query parameter 'exact match' conditions in the same route")]
    DuplicateQuery,
}

/// Validates the path conditions of one block of an include or a route.
pub(super) fn check_path(block: &[MatchCondition], patterns: &mut Patterns) -> Result<(), ConditionError> {
    let mut paths = 0;
    for condition in block {
        for (kind, path) in
            [("prefix", &condition.prefix), ("exact", &condition.exact), ("regex", &condition.regex)]
        {
            if path.is_empty() {
                continue;
            }
            paths += 1;
            if !path.starts_with('/') {
                return Err(ConditionError::NoSlash { kind, path: path.clone() });
            }
        }
        if !condition.regex.is_empty() {
            patterns
                .compile(&condition.regex)
                .map_err(|source| ConditionError::PathRegex { written: condition.regex.clone(), source })?;
        }
    }
    if paths > 1 {
        return Err(ConditionError::SeveralPaths);
    }
    Ok(())
}

/// Validates the path conditions of an include, in addition to [`check_path`].
pub(super) fn check_include_path(block: &[MatchCondition]) -> Result<(), ConditionError> {
    for condition in block {
        if !condition.exact.is_empty() {
            return Err(ConditionError::ExactInclude);
        }
        if !condition.regex.is_empty() {
            return Err(ConditionError::RegexInclude);
        }
    }
    Ok(())
}

/// Returns the path of a chain of blocks, from the root to the route: the parts concatenated,
/// without double slashes. The route's own block determines the kind of match.
pub(super) fn merge_path(
    chain: &[&MatchCondition],
    patterns: &mut Patterns,
) -> Result<PathMatch, ConditionError> {
    let mut literal = literal(chain);
    if let Some(condition) = chain.iter().rfind(|condition| !condition.regex.is_empty()) {
        return Ok(PathMatch::Regex(patterns.compile_below(&literal, &condition.regex)?));
    }
    if literal.is_empty() {
        literal.push('/');
    }
    let exact = chain.iter().any(|condition| !condition.exact.is_empty());
    Ok(if exact { PathMatch::Exact(literal.into()) } else { PathMatch::Prefix(literal.into()) })
}

/// Returns the common prefix of the paths of a chain of blocks.
pub(super) fn literal(chain: &[&MatchCondition]) -> String {
    let mut literal = String::new();
    for condition in chain {
        let part = if condition.prefix.is_empty() { &condition.exact } else { &condition.prefix };
        push_collapsed(&mut literal, part);
    }
    literal
}

/// Appends to a path without double slashes.
fn push_collapsed(path: &mut String, part: &str) {
    for letter in part.chars() {
        if letter != '/' || !path.ends_with('/') {
            path.push(letter);
        }
    }
}

/// Validates the header conditions of a chain: refuses conditions that exclude each other.
pub(super) fn check_headers(
    chain: &[&MatchCondition],
    patterns: &mut Patterns,
) -> Result<(), ConditionError> {
    let mut seen: HashSet<(String, &'static str, &str)> = HashSet::new();
    for header in chain.iter().filter_map(|condition| condition.header.as_ref()) {
        let name = header.name.to_ascii_lowercase();
        if Field::parse(&name).is_none() {
            return Err(ConditionError::HeaderName(header.name.clone()));
        }
        let (operator, value, opposite) = match operator(header) {
            Some(Operator::Present) => ("present", "", "notpresent"),
            Some(Operator::NotPresent) => ("notpresent", "", "present"),
            Some(Operator::Contains(value)) => ("contains", value, "notcontains"),
            Some(Operator::NotContains(value)) => ("notcontains", value, "contains"),
            Some(Operator::Exact(value)) => ("exact", value, "notexact"),
            Some(Operator::NotExact(value)) => ("notexact", value, "exact"),
            Some(Operator::Regex(value)) => {
                patterns.compile(value).map_err(|_| ConditionError::Regex)?;
                continue;
            }
            None => continue,
        };
        if operator == "exact" && seen.iter().any(|(other, known, _)| *known == "exact" && *other == name) {
            return Err(ConditionError::DuplicateHeader);
        }
        if seen.contains(&(name.clone(), opposite, value)) {
            let positive = operator.strip_prefix("not").unwrap_or(operator);
            return Err(ConditionError::ContradictoryHeader(positive));
        }
        seen.insert((name, operator, value));
    }
    Ok(())
}

/// Validates the query parameter conditions of a chain.
pub(super) fn check_query(chain: &[&MatchCondition], patterns: &mut Patterns) -> Result<(), ConditionError> {
    let mut exact: HashSet<String> = HashSet::new();
    for query in chain.iter().filter_map(|condition| condition.query_parameter.as_ref()) {
        let values = [&query.exact, &query.prefix, &query.suffix, &query.regex, &query.contains];
        let operators = values.iter().filter(|value| !value.is_empty()).count() + usize::from(query.present);
        if operators == 0 {
            return Err(ConditionError::NoQuery);
        }
        if operators > 1 {
            return Err(ConditionError::SeveralQueries);
        }
        if !query.exact.is_empty() && !exact.insert(query.name.to_ascii_lowercase()) {
            return Err(ConditionError::DuplicateQuery);
        }
        if !query.regex.is_empty() {
            patterns.compile(&query.regex).map_err(|_| ConditionError::Regex)?;
        }
    }
    Ok(())
}

/// The operator of a header condition; of several, the first in this order applies.
enum Operator<'a> {
    Present,
    NotPresent,
    Contains(&'a str),
    NotContains(&'a str),
    Exact(&'a str),
    NotExact(&'a str),
    Regex(&'a str),
}

fn operator(header: &HeaderMatchCondition) -> Option<Operator<'_>> {
    if header.present {
        return Some(Operator::Present);
    }
    if header.not_present {
        return Some(Operator::NotPresent);
    }
    let is_set = |value: &String| !value.is_empty();
    if is_set(&header.contains) {
        Some(Operator::Contains(&header.contains))
    } else if is_set(&header.not_contains) {
        Some(Operator::NotContains(&header.not_contains))
    } else if is_set(&header.exact) {
        Some(Operator::Exact(&header.exact))
    } else if is_set(&header.not_exact) {
        Some(Operator::NotExact(&header.not_exact))
    } else if is_set(&header.regex) {
        Some(Operator::Regex(&header.regex))
    } else {
        None
    }
}

/// Returns the header conditions of a validated chain.
pub(super) fn headers(chain: &[&MatchCondition], patterns: &mut Patterns) -> Box<[HeaderMatch]> {
    let headers = chain.iter().filter_map(|condition| condition.header.as_ref());
    headers.filter_map(|header| header_match(header, patterns)).collect()
}

fn header_match(header: &HeaderMatchCondition, patterns: &mut Patterns) -> Option<HeaderMatch> {
    let field = Field::parse(&header.name.to_ascii_lowercase())?;
    let ignore_case = header.ignore_case;
    let (test, negated) = match operator(header)? {
        Operator::Present => (HeaderTest::Present, false),
        Operator::NotPresent => (HeaderTest::Present, true),
        Operator::Contains(value) => (HeaderTest::Contains { value: value.into(), ignore_case }, false),
        Operator::NotContains(value) => (HeaderTest::Contains { value: value.into(), ignore_case }, true),
        Operator::Exact(value) => (HeaderTest::Exact { value: value.into(), ignore_case }, false),
        Operator::NotExact(value) => (HeaderTest::Exact { value: value.into(), ignore_case }, true),
        Operator::Regex(value) => (HeaderTest::Regex(patterns.compile(value).ok()?), false),
    };
    let missing_as_empty = negated && header.treat_missing_as_empty && test != HeaderTest::Present;
    Some(HeaderMatch { field, test, negated, missing_as_empty })
}

/// Returns the query parameter conditions of a validated chain.
pub(super) fn query(chain: &[&MatchCondition], patterns: &mut Patterns) -> Box<[QueryMatch]> {
    let parameters = chain.iter().filter_map(|condition| condition.query_parameter.as_ref());
    parameters.filter_map(|parameter| query_match(parameter, patterns)).collect()
}

fn query_match(query: &QueryParameterMatchCondition, patterns: &mut Patterns) -> Option<QueryMatch> {
    let test = if !query.exact.is_empty() {
        QueryTest::Exact(query.exact.as_str().into())
    } else if !query.prefix.is_empty() {
        QueryTest::Prefix(query.prefix.as_str().into())
    } else if !query.suffix.is_empty() {
        QueryTest::Suffix(query.suffix.as_str().into())
    } else if !query.regex.is_empty() {
        QueryTest::Regex(patterns.compile(&query.regex).ok()?)
    } else if !query.contains.is_empty() {
        QueryTest::Contains(query.contains.as_str().into())
    } else {
        QueryTest::Present
    };
    Some(QueryMatch { name: query.name.as_str().into(), test, ignore_case: query.ignore_case })
}

#[cfg(test)]
#[path = "conditions/tests.rs"]
mod tests;
