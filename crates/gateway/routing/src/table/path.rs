//! Normalizes the path of a request for matching and forwarding.

use std::borrow::Cow;

/// Returns the normalized path (without the query) that selects routes and that backends receive:
/// repeated slashes are merged, `.` and `..` segments are resolved (also in the form `%2e`),
/// backslashes become slashes, and unnecessary escapes are decoded.
///
/// The gateway and the backend must interpret the path in the same way. Otherwise
/// `/public/.%2e/private` selects the route of `/public` and requests `/private` from the backend.
/// Escaped slashes remain, because they are part of a segment. Normalization is idempotent: a `%`
/// that does not start an escape is escaped itself; otherwise `%%32e` would become `%2e`.
pub fn prepare(path: &str) -> Cow<'_, str> {
    if is_prepared(path) {
        return Cow::Borrowed(path);
    }
    let plain = unescape(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_with_slash = false;
    for segment in plain.split(['/', '\\']).skip(usize::from(plain.starts_with(['/', '\\']))) {
        ends_with_slash = true;
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => {
                segments.push(segment);
                ends_with_slash = false;
            }
        }
    }
    let mut prepared = String::with_capacity(plain.len() + 1);
    for segment in &segments {
        prepared.push('/');
        prepared.push_str(segment);
    }
    if ends_with_slash || segments.is_empty() {
        prepared.push('/');
    }
    Cow::Owned(prepared)
}

/// Returns whether a path is already normalized, as nearly every path is.
fn is_prepared(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.first() == Some(&b'/')
        && !bytes.iter().any(|byte| matches!(byte, b'%' | b'\\'))
        && !bytes.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'))
}

/// Decodes the escapes of letters, digits and `-._~`, which are equivalent to the characters (RFC
/// 3986, section 6.2.2.2), and escapes each `%` that does not start an escape.
fn unescape(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        plain.push_str(before);
        rest = match escaped(after) {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                plain.push(char::from(byte));
                &after[2..]
            }
            Some(_) => {
                plain.push('%');
                after
            }
            None => {
                plain.push_str("%25");
                after
            }
        };
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// Returns the byte that the first two hexadecimal digits represent.
fn escaped(digits: &str) -> Option<u8> {
    let digits = digits.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalized_as_backends_interpret_them() {
        for (path, wanted) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("", "/"),
            ("a", "/a"),
            ("//a///b//", "/a/b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/../../a", "/a"),
            ("/.hidden", "/.hidden"),
            ("/a/...", "/a/..."),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/b", "/b"),
            ("/public\\..\\private", "/private"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2f..%2fb", "/a%2f..%2fb"),
            ("/%61dmin", "/admin"),
            ("/%", "/%25"),
            ("/%4", "/%254"),
            ("/%+1", "/%25+1"),
            ("/%zz%41", "/%25zzA"),
            ("/%25", "/%25"),
            ("/a/%%32e%%32e/b", "/a/%252e%252e/b"),
            ("/%C3%A9", "/%C3%A9"),
            ("/%\u{e9}", "/%25\u{e9}"),
        ] {
            let prepared = prepare(path);
            assert_eq!(prepared, wanted, "{path}");
            assert_eq!(prepare(&prepared), prepared, "again: {path}");
        }
        assert!(matches!(prepare("/a.b/c-d/~e"), Cow::Borrowed(_)));
    }

    #[test]
    fn normalization_is_idempotent_and_complete() {
        // All texts of up to six of these parts.
        let letters = ["/", ".", "%", "2", "e", "5", "\\"];
        let mut texts = vec![String::new()];
        for _ in 0..6 {
            let longer: Vec<String> =
                texts.iter().flat_map(|text| letters.map(|letter| format!("{text}{letter}"))).collect();
            for path in &longer {
                let prepared = prepare(path);
                assert!(prepared.starts_with('/') && !prepared.contains("//"), "{path}: {prepared}");
                assert!(!prepared.split('/').any(|part| part == "." || part == ".."), "{path}: {prepared}");
                assert!(!prepared.to_ascii_lowercase().contains("%2e"), "{path}: {prepared}");
                assert_eq!(prepare(&prepared), prepared, "{path}");
            }
            texts = longer;
        }
    }
}
