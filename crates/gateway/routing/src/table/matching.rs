//! The match conditions of routes.

use std::{
    borrow::Cow,
    hash::{Hash, Hasher},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, Method};
use regex::bytes::Regex;

/// The parts of a request that select a route.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    /// The method.
    pub method: &'a Method,
    /// `:authority` or the `Host` header, including the port if there is one.
    pub authority: &'a str,
    /// The path, normalized by [`prepare`](super::prepare).
    pub path: &'a str,
    /// The query, without the `?`.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
}

/// An expression that must match a complete text. Two patterns are equal if they have the same
/// source and the same prefix.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Arc<str>,
    whole: Regex,
    /// The prefix that a text must have, regardless of the expression.
    below: Arc<str>,
    /// The length that determines the order of expressions.
    length: usize,
}

impl Pattern {
    pub(crate) fn new(source: Arc<str>, whole: Regex) -> Self {
        let length = source.len();
        Self { source, whole, below: Arc::from(""), length }
    }

    /// Restricts the expression to texts that start with `below`, and sets its length for the
    /// order.
    pub(crate) fn restricted(self, below: &str, length: usize) -> Self {
        Self { below: Arc::from(below), length, ..self }
    }

    /// Returns the source of the expression.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Returns the length that determines the order of expressions: that of prefix and expression
    /// as Contour joins them, without the group that separates them here.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns whether the expression matches the complete `text`.
    pub fn matches(&self, text: &[u8]) -> bool {
        text.starts_with(self.below.as_bytes()) && self.whole.is_match(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.below == other.below
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

/// A condition for the path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// Exactly this path.
    Exact(Box<str>),
    /// The expression matches the path.
    Regex(Pattern),
    /// The path starts with this string, possibly within a segment: `/blog` matches `/blogger`.
    Prefix(Box<str>),
    /// The path starts with these segments: `/foo` matches `/foo/bar` but not `/foobar`. Without a
    /// trailing slash.
    Segments(Box<str>),
}

impl PathMatch {
    /// Returns whether a path satisfies the condition.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == &**exact,
            Self::Regex(pattern) => pattern.matches(path.as_bytes()),
            Self::Prefix(prefix) => path.starts_with(&**prefix),
            Self::Segments(prefix) => {
                path.strip_prefix(&**prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

/// The name of a header. Routes can also match the pseudo-headers `:method` and `:authority`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// A header.
    Header(HeaderName),
    /// `:method`.
    Method,
    /// `:authority`.
    Authority,
}

impl Field {
    /// Parses a name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            ":method" => Some(Self::Method),
            ":authority" => Some(Self::Authority),
            _ => HeaderName::from_bytes(name.as_bytes()).ok().map(Self::Header),
        }
    }

    /// Returns the value in a request; several values of one header are joined by commas.
    fn value<'a>(&self, request: &RequestParts<'a>) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Method => Some(Cow::Borrowed(request.method.as_str().as_bytes())),
            Self::Authority => Some(Cow::Borrowed(request.authority.as_bytes())),
            Self::Header(name) => {
                let mut values = request.headers.get_all(name).iter();
                let first = values.next()?.as_bytes();
                let mut joined = Cow::Borrowed(first);
                for value in values {
                    let joined = joined.to_mut();
                    joined.push(b',');
                    joined.extend_from_slice(value.as_bytes());
                }
                Some(joined)
            }
        }
    }
}

/// A condition for the value of a header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeaderTest {
    /// The header is present.
    Present,
    /// The value is equal.
    Exact {
        /// The expected value.
        value: Box<str>,
        /// Ignores the case.
        ignore_case: bool,
    },
    /// The value contains this text.
    Contains {
        /// The expected text.
        value: Box<str>,
        /// Ignores the case.
        ignore_case: bool,
    },
    /// The expression matches the value.
    Regex(Pattern),
}

/// A condition for a header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// The header.
    pub field: Field,
    /// The condition for its value.
    pub test: HeaderTest,
    /// Negates the condition.
    pub negated: bool,
    /// Treats a missing header as empty. Otherwise a request without the header only satisfies the
    /// negated `Present` condition and no other, not even negated ones.
    pub missing_as_empty: bool,
}

impl HeaderMatch {
    /// Returns whether a request satisfies the condition.
    pub fn matches(&self, request: &RequestParts<'_>) -> bool {
        let value = self.field.value(request);
        if self.test == HeaderTest::Present {
            return value.is_some() != self.negated;
        }
        let value = match value {
            Some(value) => value,
            None if self.missing_as_empty => Cow::Borrowed(&b""[..]),
            None => return false,
        };
        let passes = match &self.test {
            HeaderTest::Present => true,
            HeaderTest::Exact { value: wanted, ignore_case } => {
                equals(&value, wanted.as_bytes(), *ignore_case)
            }
            HeaderTest::Contains { value: wanted, ignore_case } => {
                contains(&value, wanted.as_bytes(), *ignore_case)
            }
            HeaderTest::Regex(pattern) => pattern.matches(&value),
        };
        passes != self.negated
    }
}

/// A condition for the value of a query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QueryTest {
    /// The parameter is present.
    Present,
    /// The value is equal.
    Exact(Box<str>),
    /// The value starts with this text.
    Prefix(Box<str>),
    /// The value ends with this text.
    Suffix(Box<str>),
    /// The value contains this text.
    Contains(Box<str>),
    /// The expression matches the value.
    Regex(Pattern),
}

/// A condition for a query parameter. Name and value are compared as received, without decoding
/// escapes; if several parameters have the name, the first one counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueryMatch {
    /// The parameter.
    pub name: Box<str>,
    /// The condition for its value.
    pub test: QueryTest,
    /// Ignores the case of the value.
    pub ignore_case: bool,
}

impl QueryMatch {
    /// Returns whether a request satisfies the condition.
    pub fn matches(&self, request: &RequestParts<'_>) -> bool {
        let mut pairs = request
            .query
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let Some((_, value)) = pairs.find(|(name, _)| *name == &*self.name) else { return false };
        let value = value.as_bytes();
        match &self.test {
            QueryTest::Present => true,
            QueryTest::Exact(wanted) => equals(value, wanted.as_bytes(), self.ignore_case),
            QueryTest::Prefix(wanted) => value
                .get(..wanted.len())
                .is_some_and(|start| equals(start, wanted.as_bytes(), self.ignore_case)),
            QueryTest::Suffix(wanted) => value
                .len()
                .checked_sub(wanted.len())
                .is_some_and(|start| equals(&value[start..], wanted.as_bytes(), self.ignore_case)),
            QueryTest::Contains(wanted) => contains(value, wanted.as_bytes(), self.ignore_case),
            QueryTest::Regex(pattern) => pattern.matches(value),
        }
    }
}

fn equals(value: &[u8], wanted: &[u8], ignore_case: bool) -> bool {
    if ignore_case { value.eq_ignore_ascii_case(wanted) } else { value == wanted }
}

fn contains(value: &[u8], wanted: &[u8], ignore_case: bool) -> bool {
    wanted.is_empty() || value.windows(wanted.len()).any(|part| equals(part, wanted, ignore_case))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn request<'a>(headers: &'a HeaderMap, query: Option<&'a str>) -> RequestParts<'a> {
        RequestParts { method: &Method::POST, authority: "a.b:80", path: "/", query, headers }
    }

    #[test]
    fn a_path_is_matched_exactly_by_string_prefix_or_by_segments() {
        for (path_match, path, wanted) in [
            (PathMatch::Exact("/a".into()), "/a", true),
            (PathMatch::Exact("/a".into()), "/a/", false),
            (PathMatch::Prefix("/blog".into()), "/blogger", true),
            (PathMatch::Prefix("/blog".into()), "/blo", false),
            (PathMatch::Segments("/foo".into()), "/foo", true),
            (PathMatch::Segments("/foo".into()), "/foo/", true),
            (PathMatch::Segments("/foo".into()), "/foo/bar", true),
            (PathMatch::Segments("/foo".into()), "/foobar", false),
        ] {
            assert_eq!(path_match.matches(path), wanted, "{path_match:?} {path}");
        }
    }

    #[test]
    fn header_conditions_match_and_negate() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("One"));
        headers.append("x-a", HeaderValue::from_static("two"));
        headers.append("x-empty", HeaderValue::from_static(""));
        let exact = |value: &str, ignore_case| HeaderTest::Exact { value: value.into(), ignore_case };
        let contains = |value: &str, ignore_case| HeaderTest::Contains { value: value.into(), ignore_case };
        // The columns are name, test, negated, missing as empty, expected result.
        let table = [
            ("x-a", HeaderTest::Present, false, false, true),
            ("x-a", HeaderTest::Present, true, false, false),
            ("x-none", HeaderTest::Present, false, false, false),
            ("x-none", HeaderTest::Present, true, false, true),
            ("X-A", exact("One,two", false), false, false, true),
            ("x-a", exact("One", false), false, false, false),
            ("x-a", exact("one,TWO", true), false, false, true),
            ("x-a", exact("one,TWO", false), true, false, true),
            ("x-a", contains("TW", true), false, false, true),
            ("x-a", contains("TW", false), false, false, false),
            ("x-none", exact("a", false), true, false, false),
            ("x-none", exact("a", false), true, true, true),
            ("x-none", contains("a", false), true, false, false),
            ("x-none", contains("a", false), false, true, false),
            ("x-empty", exact("a", false), true, false, true),
            (":method", exact("POST", false), false, false, true),
            (":authority", exact("a.b:80", false), false, false, true),
        ];
        for (name, test, negated, missing_as_empty, wanted) in table {
            let field = Field::parse(name).unwrap();
            let header = HeaderMatch { field, test, negated, missing_as_empty };
            assert_eq!(header.matches(&request(&headers, None)), wanted, "{header:?}");
        }
        assert_eq!(Field::parse(":scheme"), None);
        assert_eq!(Field::parse("a b"), None);
    }

    #[test]
    fn query_parameter_conditions_match() {
        let headers = HeaderMap::new();
        for (query, test, ignore_case, wanted) in [
            (Some("a=1&b=Two"), QueryTest::Present, false, true),
            (Some("a=1&B=Two"), QueryTest::Present, false, false),
            (Some("b"), QueryTest::Exact("".into()), false, true),
            (Some("b=Two"), QueryTest::Exact("two".into()), false, false),
            (Some("b=Two"), QueryTest::Exact("two".into()), true, true),
            (Some("b=Two&b=x"), QueryTest::Exact("x".into()), false, false),
            (Some("b=Two"), QueryTest::Prefix("Tw".into()), false, true),
            (Some("b=T"), QueryTest::Prefix("Tw".into()), false, false),
            (Some("b=Two"), QueryTest::Suffix("WO".into()), true, true),
            (Some("b=o"), QueryTest::Suffix("wo".into()), false, false),
            (Some("b=Two"), QueryTest::Contains("w".into()), false, true),
            (Some("b=Two"), QueryTest::Contains("x".into()), false, false),
            (None, QueryTest::Present, false, false),
        ] {
            let query_match = QueryMatch { name: "b".into(), test, ignore_case };
            assert_eq!(query_match.matches(&request(&headers, query)), wanted, "{query:?} {query_match:?}");
        }
    }
}
