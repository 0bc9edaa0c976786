//! Header fields that are serialized once and sent with many requests.

use std::fmt;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, MaxSizeReached};

/// Fields of a request, and their HTTP/1.1 serialization.
pub struct PrecomputedHeaders {
    fields: Vec<(HeaderName, HeaderValue)>,
    text: Vec<u8>,
    list_size: usize,
    exact_in_http1: bool,
}

impl fmt::Debug for PrecomputedHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither names nor values: they may contain a credential.
        f.debug_struct("PrecomputedHeaders").field("fields", &self.fields.len()).finish_non_exhaustive()
    }
}

/// An instance without fields.
pub static NO_FIELDS: PrecomputedHeaders =
    PrecomputedHeaders { fields: Vec::new(), text: Vec::new(), list_size: 0, exact_in_http1: true };

impl PrecomputedHeaders {
    /// Serializes the fields, in this order.
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

    /// Appends the fields to `headers`.
    ///
    /// # Errors
    /// Returns an error when the map cannot contain so many names.
    pub fn append_to(&self, headers: &mut HeaderMap) -> Result<(), MaxSizeReached> {
        self.fields.iter().try_for_each(|(name, value)| headers.try_append(name, value.clone()).map(drop))
    }

    /// Returns the fields.
    pub fn fields(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.fields.iter().map(|(name, value)| (name, value))
    }

    /// Returns the fields as HTTP/1.1 header lines.
    pub fn as_http1(&self) -> &[u8] {
        &self.text
    }

    /// Returns the size of the fields in a header list, see [`field_size`].
    pub fn list_size(&self) -> usize {
        self.list_size
    }

    /// Returns whether HTTP/1.1 carries the values unchanged. Spaces around a value are not part of
    /// it there, so that `" admin"` would arrive as `"admin"`. HTTP/2 carries every byte.
    pub fn is_exact_in_http1(&self) -> bool {
        self.exact_in_http1
    }

    /// Returns whether `headers` already contains one of the names.
    pub fn clash_with(&self, headers: &HeaderMap) -> bool {
        self.fields.iter().any(|(name, _)| headers.contains_key(name))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// Returns the size of a field in a header list, as HTTP/2 counts it (RFC 9113, section 6.5.2).
pub fn field_size(name: &HeaderName, value: &HeaderValue) -> usize {
    name.as_str().len() + value.len() + FIELD_OVERHEAD
}

/// The number of bytes that HTTP/2 counts for a field in addition to its name and value.
pub const FIELD_OVERHEAD: usize = 32;

/// Writes one field of a head or a trailer in the syntax of HTTP/1.1 (RFC 9112, section 5).
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
    fn both_forms_have_the_same_fields_in_the_same_order() {
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
    fn a_name_that_already_exists_is_detected() {
        let ready = ready(&[("a", "1"), ("b", "2")]);
        for (name, clash) in [("a", true), ("b", true), ("c", false)] {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(""))]);
            assert_eq!(ready.clash_with(&headers), clash, "{name}");
        }
    }

    #[test]
    fn spaces_around_a_value_make_it_inexact_in_http1() {
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
    fn debug_prints_no_fields() {
        let text = format!("{:?}", ready(&[("authorization", "Bearer secret")]));
        assert_eq!(text, "PrecomputedHeaders { fields: 1, .. }");
    }
}
