//! Parsing of a request target, and with [`parse`] of a whole URL, as in Go's `net/url`.
//!
//! A server written in Go decides by what this package returns: a path after percent-decoding, the
//! first value of a query parameter. Code that makes the same decision must parse in the same way,
//! including what is dropped without an error. Text that is not UTF-8 becomes text as in Go's JSON:
//! U+FFFD for every invalid byte.

use std::borrow::Cow;
use std::fmt::Write as _;

mod parse;

pub use parse::{ParseError, ParseErrorCause, ParsedUrl, parse, parse_request_uri};

/// Go refuses to parse a query with more parameters, and then returns none.
const MOST_PARAMETERS: usize = 10_000;

/// Percent-decodes like Go's `url.PathUnescape`: returns `None` for a `%` that is not followed by
/// two hex digits.
pub fn unescape(raw: &str) -> Option<Vec<u8>> {
    unescape_bytes(raw.as_bytes())
}

fn unescape_bytes(raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        let [high, low, after @ ..] = &rest[at + 1..] else { return None };
        out.push(hex(*high)? << 4 | hex(*low)?);
        rest = after;
    }
    out.extend_from_slice(rest);
    Some(out)
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Decodes a path to text; returns `None` for a malformed escape.
pub fn path_text(raw: &str) -> Option<String> {
    match raw.contains('%') {
        true => unescape(raw).map(text),
        false => Some(raw.to_owned()),
    }
}

/// Converts bytes to text, with U+FFFD for every byte that is not UTF-8.
///
/// `String::from_utf8_lossy` writes one U+FFFD for a truncated character, Go writes one for each of
/// its bytes.
pub fn text(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return text,
        Err(error) => error.into_bytes(),
    };
    let mut out = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|_| out.push('\u{fffd}'));
    }
    out
}

/// Returns the pairs of a query like Go's `url.ParseQuery`: `+` is a space; a pair with a `;` or a
/// malformed escape is skipped.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query_bytes(query).map(|(key, value)| (text(key), text(value)))
}

fn query_bytes(query: &str) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
    // The count is needed only if the query is long enough for so many.
    let too_many = query.len() >= MOST_PARAMETERS
        && query.bytes().filter(|byte| *byte == b'&').count() >= MOST_PARAMETERS;
    let pairs = if too_many { "" } else { query };
    pairs.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((unescape_query(key)?, unescape_query(value)?))
    })
}

fn unescape_query(raw: &str) -> Option<Vec<u8>> {
    if !raw.contains('+') {
        return unescape(raw);
    }
    let spaced: Vec<u8> = raw.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    unescape_bytes(&spaced)
}

/// Returns the first value of `key` in a query.
pub fn first_query_value(query: &str, key: &str) -> Option<String> {
    first_query_bytes(query, key).map(text)
}

/// Returns the first value of `key` in a query, as it was sent.
pub fn first_query_bytes(query: &str, key: &str) -> Option<Vec<u8>> {
    // Most queries do not contain the key at all; an escaped spelling of it needs a '%'.
    if !query.contains(key) && !query.contains('%') {
        return None;
    }
    query_bytes(query).find_map(|(k, v)| (k == key.as_bytes()).then_some(v))
}

/// Returns a query, or the body of a form, like Go's `url.Values.Encode`: sorted by key, spaces as
/// `+`.
pub fn encode_query(pairs: &[(&str, &str)]) -> String {
    let mut sorted = pairs.to_vec();
    sorted.sort_by_key(|(key, _)| *key);
    let mut out = String::new();
    for (key, value) in sorted {
        if !out.is_empty() {
            out.push('&');
        }
        push_escaped(&mut out, key);
        out.push('=');
        push_escaped(&mut out, value);
    }
    out
}

/// Appends a text like Go's `url.QueryEscape`.
fn push_escaped(out: &mut String, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) => out.push(char::from(byte)),
            byte => {
                out.push('%');
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
}

/// Returns a path like Go's `URL.EscapedPath`: unchanged, unless it contains characters that must
/// be escaped.
pub fn escaped_path(raw: &str) -> Cow<'_, str> {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte);
    // Go accepts these unescaped in its input, but would write them escaped.
    if raw.bytes().all(|byte| is_kept(byte) || b"!'()*[]%".contains(&byte)) {
        return Cow::Borrowed(raw);
    }
    let Some(path) = unescape(raw) else { return Cow::Borrowed(raw) };
    let mut out = String::with_capacity(raw.len() + 8);
    for byte in path {
        match is_kept(byte) {
            true => out.push(char::from(byte)),
            false => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_sorted_and_escaped_as_in_go() {
        let pairs = [("scope", "openid a b"), ("b", "~*'()"), ("a", "https://x/?&=é"), ("b", "")];
        let text = encode_query(&pairs);
        assert_eq!(text, "a=https%3A%2F%2Fx%2F%3F%26%3D%C3%A9&b=~%2A%27%28%29&b=&scope=openid+a+b");
        let parsed: Vec<(String, String)> = query_pairs(&text).collect();
        assert!(pairs.iter().all(|(key, value)| parsed.contains(&((*key).into(), (*value).into()))));
        assert_eq!(encode_query(&[]), "");
    }

    #[test]
    fn queries_are_parsed_as_in_go() {
        let pairs = |query| query_pairs(query).collect::<Vec<_>>();
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(pairs(""), []);
        assert_eq!(pairs("a=1&b&&c=%2B+x&d=1;2&e=%z"), [pair("a", "1"), pair("b", ""), pair("c", "+ x")]);
        assert_eq!(pairs("=x&+=y&a=b=c"), [pair("", "x"), pair(" ", "y"), pair("a", "b=c")]);
        assert_eq!(pairs("a=%+1"), [], "the plus is a space before the escape is read");
    }

    #[test]
    fn a_query_with_too_many_parameters_has_none() {
        let query = |count: usize| vec!["a=1"; count].join("&");
        assert_eq!(query_pairs(&query(10_000)).count(), 10_000);
        assert_eq!(query_pairs(&query(10_001)).count(), 0);
        assert_eq!(first_query_value(&query(10_001), "a"), None);
    }

    #[test]
    fn paths_are_decoded_byte_by_byte() {
        for (raw, wanted) in [
            ("/a%2Fb%2f", Some("/a/b/")),
            ("/a+b", Some("/a+b")),
            ("/%C3%BC/\u{fc}", Some("/\u{fc}/\u{fc}")),
            // One for each byte of the truncated character.
            ("/%F0%9F%A6", Some("/\u{fffd}\u{fffd}\u{fffd}")),
            ("/%E0%80%80x", Some("/\u{fffd}\u{fffd}\u{fffd}x")),
            ("/%ED%A0%80", Some("/\u{fffd}\u{fffd}\u{fffd}")),
            ("/%", None),
            ("/%2", None),
            ("/%zz", None),
            ("/%%41", None),
        ] {
            assert_eq!(path_text(raw).as_deref(), wanted, "{raw}");
        }
    }

    #[test]
    fn a_path_is_escaped_as_in_go() {
        for (raw, wanted) in [
            ("/a%2fb/!$&'()*+,;=:@[]~", "/a%2fb/!$&'()*+,;=:@[]~"),
            ("/a\"b/%2f!", "/a%22b//%21"),
            ("/{x}|\\^", "/%7Bx%7D%7C%5C%5E"),
            ("/\u{fc}", "/%C3%BC"),
        ] {
            assert_eq!(escaped_path(raw), wanted, "{raw}");
        }
    }
}
