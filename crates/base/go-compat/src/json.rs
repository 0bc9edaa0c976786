//! Text formats in which Go differs from Rust, and which clients can see.
//!
//! [`to_string`] writes JSON with the escapes of Go's `encoding/json`, [`quote`] is the `%q` verb
//! of Go's `fmt`. Upstream's tests compare log lines, response bodies and cache keys in these
//! formats as text.

use std::fmt::Write as _;

use serde::Serialize;

/// Writes JSON on one line, with object members in declaration order and `<`, `>`, `&`, U+2028,
/// U+2029 escaped as in Go.
///
/// White space between the tokens of embedded raw JSON is dropped, also as in Go. Floating point
/// numbers have Rust's format, because no wire type has any.
///
/// # Panics
/// Panics on a map whose keys are not strings, or on a failing `Serialize`, which the types of this
/// workspace do not have.
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> String {
    escape(&serde_json::to_string(value).expect("wire types have string keys and serialise without failing"))
}

/// Writes JSON like [`to_string`], indented by two spaces as by Go's `json.MarshalIndent`, without
/// a final newline.
///
/// # Panics
/// As [`to_string`].
pub fn to_string_pretty<T: Serialize + ?Sized>(value: &T) -> String {
    // Through a text without indentation first, so that embedded raw JSON is indented as well.
    let pretty = serde_json::to_string_pretty(value)
        .expect("wire types have string keys and serialise without failing");
    let mut out = String::with_capacity(pretty.len());
    escape_into(&pretty, false, &mut out);
    out
}

/// Converts JSON text to Go's compact form.
pub fn escape(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 16);
    escape_into(json, true, &mut out);
    out
}

fn escape_into(json: &str, compact: bool, out: &mut String) {
    let mut in_string = false;
    let mut after_backslash = false;
    // Unchanged text is copied in one step up to the next change.
    let mut copied = 0;
    for (at, c) in json.char_indices() {
        // In valid JSON these characters occur only in strings.
        let is_escaped = matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
        let is_dropped = compact && !in_string && matches!(c, ' ' | '\t' | '\n' | '\r');
        if is_escaped || is_dropped {
            out.push_str(&json[copied..at]);
            copied = at + c.len_utf8();
        }
        if is_escaped {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        if in_string {
            match c {
                _ if after_backslash => after_backslash = false,
                '\\' => after_backslash = true,
                '"' => in_string = false,
                _ => {}
            }
        } else if c == '"' {
            in_string = true;
        }
    }
    out.push_str(&json[copied..]);
}

/// Returns a Go string literal in double quotes, as `fmt.Sprintf("%q", s)` does.
pub fn quote(s: &str) -> String {
    quote_bytes(s.as_bytes())
}

/// Quotes like [`quote`], for bytes that may not be UTF-8: each invalid byte becomes `\xNN`.
pub fn quote_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|c| quote_char(c, &mut out));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

fn quote_char(c: char, out: &mut String) {
    let short = match c {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\u{b}' => "\\v",
        _ if is_print(c) => return out.push(c),
        _ => {
            let code = u32::from(c);
            let _ = match code {
                0..0x80 => write!(out, "\\x{code:02x}"),
                0x80..0x1_0000 => write!(out, "\\u{code:04x}"),
                _ => write!(out, "\\U{code:08x}"),
            };
            return;
        }
    };
    out.push_str(short);
}

/// Returns the result of Go's `unicode.IsPrint`: letters, marks, numbers, punctuation, symbols, and
/// of all spaces only U+0020.
///
/// The `Debug` form of Rust's strings uses the same set, but escapes a combining mark only at the
/// beginning; therefore a letter is put in front. Checked against Go 1.26 for every code point: the
/// two differ only in the 10,615 that Unicode assigned after version 15.0, which Go's tables use.
fn is_print(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut buffer = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..length]).expect("an ASCII letter and one encoded character");
    text.escape_debug().nth(1) == Some(c)
}

/// Parses a Go string literal in double quotes, the reverse of [`quote`]; returns `None` if the
/// text is not one.
///
/// Files with metadata that are mounted into a container have values in this form.
pub fn unquote(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '"' | '\n' => return None,
            '\\' => rest = unescape(rest, &mut out)?,
            _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    String::from_utf8(out).ok()
}

/// Parses one escape after its backslash; returns the text after it.
fn unescape<'a>(rest: &'a str, out: &mut Vec<u8>) -> Option<&'a str> {
    let kind = rest.chars().next()?;
    let after = &rest[kind.len_utf8()..];
    let simple = match kind {
        'a' => 7,
        'b' => 8,
        'f' => 0xc,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0xb,
        '\\' | '"' => kind as u8,
        'x' | 'u' | 'U' => {
            let digits = match kind {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            let (hex, tail) = after.split_at_checked(digits)?;
            if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            let code = u32::from_str_radix(hex, 16).ok()?;
            match u8::try_from(code) {
                Ok(byte) if kind == 'x' => out.push(byte),
                _ => out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes()),
            }
            return Some(tail);
        }
        '0'..='7' => {
            let (octal, tail) = rest.split_at_checked(3)?;
            if !octal.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
                return None;
            }
            out.push(u8::from_str_radix(octal, 8).ok()?);
            return Some(tail);
        }
        _ => return None,
    };
    out.push(simple);
    Some(after)
}

/// Returns the message of Go's `encoding/json` for text that is not JSON, in the cases where it is
/// simple to derive. It contains at most one character of the text.
pub fn parse_error(text: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(&byte) if !b"{[\"-0123456789tfn".contains(&byte) => {
            format!("invalid character {} looking for beginning of value", quote_byte(byte))
        }
        _ => format!("invalid JSON at line {} column {}", error.line(), error.column()),
    }
}

/// Returns the name of a value's type in messages of Go's `encoding/json`, such as `json: cannot
/// unmarshal number into Go value of type string`.
pub fn type_name(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        byte => format!("'{}'", char::from(byte).escape_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_not_json_has_the_error_of_go() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            (r#"{"a""#, "unexpected end of JSON input"),
            ("<html>", "invalid character '<' looking for beginning of value"),
            (" 'a'", r"invalid character '\'' looking for beginning of value"),
            ("{a}", "invalid JSON at line 1 column 2"),
        ] {
            let error = serde_json::from_str::<serde_json::Value>(text).unwrap_err();
            assert_eq!(parse_error(text.as_bytes(), &error), expected, "{text}");
        }
    }

    #[test]
    fn json_is_escaped_as_in_go() {
        for (value, want) in [
            ("a&b", r#""a\u0026b""#),
            ("<x>", r#""\u003cx\u003e""#),
            ("\u{2028}\u{2029}", r#""\u2028\u2029""#),
            ("tab\tnl\n\"q\" \\ \u{8}\u{c}\u{1}", r#""tab\tnl\n\"q\" \\ \b\f\u0001""#),
            ("é 日本 \u{1f9ad}", "\"é 日本 \u{1f9ad}\""),
            ("\u{7f}", "\"\u{7f}\""),
        ] {
            assert_eq!(to_string(value), want);
        }
    }

    #[test]
    fn embedded_raw_json_is_compacted_and_escaped() {
        let raw = serde_json::value::RawValue::from_string(
            "{ \"a b\" : [ 1 ,\n 2.50, \"x \\\" & y\" ] }".to_owned(),
        )
        .unwrap();
        assert_eq!(to_string(&raw), r#"{"a b":[1,2.50,"x \" \u0026 y"]}"#);
    }

    #[test]
    fn pretty_json_has_two_spaces_and_no_final_newline() {
        let value = serde_json::json!({"a": {}, "b": ["<"]});
        assert_eq!(to_string_pretty(&value), "{\n  \"a\": {},\n  \"b\": [\n    \"\\u003c\"\n  ]\n}");
    }

    #[test]
    fn quote_matches_the_go_verb() {
        for (text, want) in [
            ("", r#""""#),
            ("pinny", r#""pinny""#),
            ("it's", r#""it's""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1b}\u{7f}", r#""\x00\x1b\x7f""#),
            ("\u{80}\u{a0}\u{ad}\u{200b}\u{feff}", r#""\u0080\u00a0\u00ad\u200b\ufeff""#),
            ("\u{2028}", r#""\u2028""#),
            ("\u{301}é日\u{1f9ad}", "\"\u{301}é日\u{1f9ad}\""),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(quote(text), want, "{text:?}");
            assert_eq!(unquote(want).as_deref(), Some(text));
        }
        assert_eq!(quote_bytes(b"a\xffb"), r#""a\xffb""#);
    }

    #[test]
    fn unquote_refuses_text_that_is_not_a_literal() {
        for bad in [
            "",
            "\"",
            "x",
            "\"a",
            "a\"",
            r#""a"b""#,
            r#""\q""#,
            r#""\x1""#,
            r#""\u12"#,
            r#""\xff""#,
            "\"a\nb\"",
            r#""\""#,
            r#""\+1""#,
        ] {
            assert_eq!(unquote(bad), None, "{bad:?}");
        }
        assert_eq!(unquote(r#""\101\u0042""#).as_deref(), Some("AB"));
    }
}
