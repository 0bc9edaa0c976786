//! What a request must be like to take a route.

use std::{
    borrow::Cow,
    hash::{Hash, Hasher},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, Method};
use regex::bytes::Regex;

/// What routes are chosen by.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// The method.
    pub method: &'a Method,
    /// `:authority` or the `Host` header, with its port if it has one.
    pub authority: &'a str,
    /// The path, as [`prepare`](super::prepare) gives it.
    pub path: &'a str,
    /// What follows the `?`.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
}

/// An expression that must match the whole of a text. Two are equal when they are written alike and stand below the
/// same prefix.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Arc<str>,
    whole: Regex,
    /// The beginning that a text must have, whatever the expression says.
    below: Arc<str>,
    /// The length by which expressions are ordered.
    length: usize,
}

impl Pattern {
    pub(crate) fn new(source: Arc<str>, whole: Regex) -> Self {
        let length = source.len();
        Self { source, whole, below: Arc::from(""), length }
    }

    /// The same expression for texts that begin with `below` alone, ordered by this length.
    pub(crate) fn restricted(self, below: &str, length: usize) -> Self {
        Self { below: Arc::from(below), length, ..self }
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// The length by which expressions are ordered: that of the prefix and the expression as Contour joins them, without
    /// the group that holds them apart here.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether it matches all of `text`.
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

/// What the path must be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// This one.
    Exact(Box<str>),
    /// The expression matches it.
    Regex(Pattern),
    /// It starts so, also in the middle of a segment: `/blog` and `/blogger`.
    Prefix(Box<str>),
    /// It starts with these segments: `/foo` and `/foo/bar`, not `/foobar`. Without a slash at the end.
    Segments(Box<str>),
}

impl PathMatch {
    /// Whether it is so for a path.
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

/// What a header is called; routes can be chosen by two things of a request that are headers in HTTP/2 only.
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
    /// Reads a name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            ":method" => Some(Self::Method),
            ":authority" => Some(Self::Authority),
            _ => HeaderName::from_bytes(name.as_bytes()).ok().map(Self::Header),
        }
    }

    /// The value in a request; several of one header are joined by commas.
    fn value<'a>(&self, request: &RequestFacts<'a>) -> Option<Cow<'a, [u8]>> {
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

/// What a header's value must be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeaderTest {
    /// There is one.
    Present,
    /// It is this.
    Exact {
        /// This.
        value: Box<str>,
        /// Upper and lower case are the same.
        ignore_case: bool,
    },
    /// It has this in it.
    Contains {
        /// This.
        value: Box<str>,
        /// Upper and lower case are the same.
        ignore_case: bool,
    },
    /// The expression matches it.
    Regex(Pattern),
}

/// What a header must be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// Which one.
    pub field: Field,
    /// What it must be like,
    pub test: HeaderTest,
    /// or must not.
    pub negated: bool,
    /// None is as good as an empty one. Otherwise a request without the header passes nothing but "it is not
    /// present": not even what is negated.
    pub missing_as_empty: bool,
}

impl HeaderMatch {
    /// Whether it is so for a request.
    pub fn matches(&self, request: &RequestFacts<'_>) -> bool {
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

/// What a query parameter's value must be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QueryTest {
    /// There is one.
    Present,
    /// It is this.
    Exact(Box<str>),
    /// It starts so.
    Prefix(Box<str>),
    /// It ends so.
    Suffix(Box<str>),
    /// It has this in it.
    Contains(Box<str>),
    /// The expression matches it.
    Regex(Pattern),
}

/// What a query parameter must be like. Name and value are compared as they are written, with their escapes; of
/// several with the name, the first one counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueryMatch {
    /// Which one.
    pub name: Box<str>,
    /// What it must be like.
    pub test: QueryTest,
    /// Upper and lower case of the value are the same.
    pub ignore_case: bool,
}

impl QueryMatch {
    /// Whether it is so for a request.
    pub fn matches(&self, request: &RequestFacts<'_>) -> bool {
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

    fn request<'a>(headers: &'a HeaderMap, query: Option<&'a str>) -> RequestFacts<'a> {
        RequestFacts { method: &Method::POST, authority: "a.b:80", path: "/", query, headers }
    }

    #[test]
    fn a_path_is_matched_whole_by_string_or_by_segment() {
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
    fn a_header_is_tested_as_its_condition_says() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("One"));
        headers.append("x-a", HeaderValue::from_static("two"));
        headers.append("x-empty", HeaderValue::from_static(""));
        let exact = |value: &str, ignore_case| HeaderTest::Exact { value: value.into(), ignore_case };
        let contains = |value: &str, ignore_case| HeaderTest::Contains { value: value.into(), ignore_case };
        // Name, test, negated, missing as empty, wanted.
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
    fn a_query_parameter_is_tested_as_its_condition_says() {
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
