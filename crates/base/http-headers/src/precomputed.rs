//! Header fields that go with many requests, made ready once.

use std::fmt;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, MaxSizeReached};

/// Fields of a request, and the same as HTTP/1.1 writes them.
pub struct PrecomputedHeaders {
    fields: Vec<(HeaderName, HeaderValue)>,
    text: Vec<u8>,
    list_size: usize,
    exact_in_http1: bool,
}

impl fmt::Debug for PrecomputedHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither names nor values: there may be a credential among them.
        f.debug_struct("PrecomputedHeaders").field("fields", &self.fields.len()).finish_non_exhaustive()
    }
}

/// No field at all.
pub static NO_FIELDS: PrecomputedHeaders =
    PrecomputedHeaders { fields: Vec::new(), text: Vec::new(), list_size: 0, exact_in_http1: true };

impl PrecomputedHeaders {
    /// Makes them ready, in this order.
    pub fn new(fields: Vec<(HeaderName, HeaderValue)>) -> Self {
        let mut text = Vec::new();
        for (name, value) in &fields {
            write_field(name, value, &mut text);
        }
        let space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        let is_exact =
            |value: &HeaderValue| !space(value.as_bytes().first()) && !space(value.as_bytes().last());
        let exact_in_http1 = fields.iter().all(|(_, value)| is_exact(value));
        let list_size = fields.iter().map(|(name, value)| field_size(name, value)).sum();
        Self { fields, text, list_size, exact_in_http1 }
    }

    /// Adds them to those that are there.
    ///
    /// # Errors
    /// When the map has no room for so many names.
    pub fn append_to(&self, headers: &mut HeaderMap) -> Result<(), MaxSizeReached> {
        self.fields.iter().try_for_each(|(name, value)| headers.try_append(name, value.clone()).map(drop))
    }

    /// Each field.
    pub fn fields(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.fields.iter().map(|(name, value)| (name, value))
    }

    /// Each field in a line of its own.
    pub fn as_http1(&self) -> &[u8] {
        &self.text
    }

    /// Their size in a header list, see [`field_size`].
    pub fn list_size(&self) -> usize {
        self.list_size
    }

    /// Does HTTP/1.1 carry the values as they are? Spaces around a value are none of it there, so that `" admin"` would
    /// arrive as `"admin"`. HTTP/2 carries every byte.
    pub fn is_exact_in_http1(&self) -> bool {
        self.exact_in_http1
    }

    /// Whether one of them is there already.
    pub fn clash_with(&self, headers: &HeaderMap) -> bool {
        self.fields.iter().any(|(name, _)| headers.contains_key(name))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// The size of a field in a header list, as HTTP/2 counts it (RFC 9113, section 6.5.2).
pub fn field_size(name: &HeaderName, value: &HeaderValue) -> usize {
    name.as_str().len() + value.len() + FIELD_OVERHEAD
}

/// What HTTP/2 counts for a field beside its name and value.
pub const FIELD_OVERHEAD: usize = 32;

/// Writes one field of a head or a trailer as HTTP/1.1 has it (RFC 9112, section 5).
pub fn write_field(name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(fields: &[(&'static str, &'static str)]) -> PrecomputedHeaders {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        PrecomputedHeaders::new(fields.iter().map(field).collect())
    }

    #[test]
    fn both_forms_say_the_same_in_the_same_order() {
        let ready = ready(&[("b", "1"), ("a", ""), ("b", "2")]);
        assert_eq!(ready.as_http1(), b"b: 1\r\na: \r\nb: 2\r\n");
        let mut headers = HeaderMap::new();
        headers.insert("c", HeaderValue::from_static("3"));
        ready.append_to(&mut headers).unwrap();
        let all: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(all, [("c", "3"), ("b", "1"), ("b", "2"), ("a", "")]);
        assert_eq!((ready.len(), ready.is_empty(), ready.list_size()), (3, false, 3 * 33 + 2));
    }

    #[test]
    fn a_name_that_is_there_already_is_noticed() {
        let ready = ready(&[("a", "1"), ("b", "2")]);
        for (name, clash) in [("a", true), ("b", true), ("c", false)] {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(""))]);
            assert_eq!(ready.clash_with(&headers), clash, "{name}");
        }
    }

    #[test]
    fn spaces_around_a_value_are_lost_in_http1() {
        for (value, exact) in [
            ("", true),
            ("a", true),
            ("a b", true),
            (" a", false),
            ("a ", false),
            ("\ta", false),
            ("a\t", false),
        ] {
            assert_eq!(ready(&[("a", "x"), ("b", value)]).is_exact_in_http1(), exact, "{value:?}");
        }
    }

    #[test]
    fn nothing_of_them_is_printed() {
        let text = format!("{:?}", ready(&[("authorization", "Bearer secret")]));
        assert_eq!(text, "PrecomputedHeaders { fields: 1, .. }");
    }
}
