//! Writes YAML in the layout that Go's `sigs.k8s.io/yaml` gives to kubeconfigs and caches: keys sorted, two spaces
//! of indent, list dashes under their key, long plain scalars folded behind column 80.
//!
//! People keep these files under version control and compare them, so the layout is worth a writer of our own: it
//! takes JSON values, knows no anchors, tags or flow style, and quotes rather too much than too little.

use std::fmt::Write as _;

use serde_json::Value;

/// Beyond this column a plain scalar is continued on the next line at the next lone space.
const FOLD_COLUMN: usize = 80;

/// `value` as a YAML document.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut out, map, 0),
        Value::Array(items) if !items.is_empty() => write_list(&mut out, items, 0),
        other => {
            write_scalar(&mut out, other, 0);
            out.push('\n');
        }
    }
    out
}

fn write_map(out: &mut String, map: &serde_json::Map<String, Value>, indent: usize) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    for (at, (key, value)) in entries.into_iter().enumerate() {
        // The first key stands behind whatever opened this map: a dash, or the start of a line.
        if at > 0 || out.is_empty() || out.ends_with('\n') {
            push_spaces(out, indent);
        }
        let key = scalar_text(key).unwrap_or_else(|| double_quoted(key));
        out.push_str(&key);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                write_map(out, map, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                write_list(out, items, indent);
            }
            scalar => {
                out.push(' ');
                write_scalar(out, scalar, indent + 2);
                out.push('\n');
            }
        }
    }
}

fn write_list(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        if out.is_empty() || out.ends_with('\n') {
            push_spaces(out, indent);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => write_map(out, map, indent + 2),
            Value::Array(items) if !items.is_empty() => write_list(out, items, indent + 2),
            scalar => {
                write_scalar(out, scalar, indent + 2);
                out.push('\n');
            }
        }
    }
}

fn write_scalar(out: &mut String, value: &Value, continuation: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
        Value::String(text) => {
            if let Some(block) = literal_block(text, continuation) {
                out.push_str(&block);
            } else if let Some(plain_or_quoted) = scalar_text(text) {
                write_folded(out, &plain_or_quoted, continuation);
            } else {
                out.push_str(&double_quoted(text));
            }
        }
    }
}

/// Writes a plain or single-quoted scalar, broken at lone spaces beyond [`FOLD_COLUMN`].
fn write_folded(out: &mut String, text: &str, continuation: usize) {
    let mut column = out.rsplit('\n').next().unwrap_or_default().chars().count();
    let chars: Vec<char> = text.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        let lone_space = c == ' '
            && at > 0
            && chars[at - 1] != ' '
            && chars.get(at + 1).is_some_and(|next| *next != ' ' && *next != '\'');
        if lone_space && column > FOLD_COLUMN {
            out.push('\n');
            push_spaces(out, continuation);
            column = continuation;
        } else {
            out.push(c);
            column += 1;
        }
    }
}

/// `text` as it may stand unquoted or in single quotes; `None` if only double quotes will do.
fn scalar_text(text: &str) -> Option<String> {
    if text.is_empty() || text.chars().any(is_special) || reads_as_something_else(text) {
        return None;
    }
    Some(if is_plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) })
}

fn is_special(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

fn is_plain(text: &str) -> bool {
    if text.starts_with(' ') || text.ends_with(' ') || text.starts_with("---") || text.starts_with("...") {
        return false;
    }
    let mut chars = text.chars();
    let first = chars.next().unwrap_or(' ');
    let second_is_space = chars.next().is_none_or(|c| c == ' ');
    if "#,[]{}&*!|>'\"%@`".contains(first) || (second_is_space && "-?:".contains(first)) {
        return false;
    }
    !text.contains(": ") && !text.ends_with(':') && !text.contains(" #")
}

/// Whether an unquoted `text` would be read as null, a bool, a number, a time or a merge key.
fn reads_as_something_else(text: &str) -> bool {
    const WORDS: [&str; 10] = ["null", "~", "true", "false", "yes", "no", "on", "off", "y", "n"];
    if WORDS.iter().any(|word| word.eq_ignore_ascii_case(text)) || text == "<<" {
        return true;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    if lower == ".inf" || lower == ".nan" {
        return true;
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let digits = lower.replace('_', "");
    let radix = |prefix: &str, radix: u32| {
        digits
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix)))
    };
    digits.parse::<f64>().is_ok()
        || radix("0x", 16)
        || radix("0b", 2)
        || radix("0o", 8)
        || sexagesimal(&digits)
        || looks_like_a_date(text)
}

/// `1:30`, `12:30:45.5`: numbers of base 60 in YAML 1.1.
fn sexagesimal(text: &str) -> bool {
    text.contains(':') && text.chars().all(|c| c.is_ascii_digit() || c == ':' || c == '.')
}

/// `2026-11-21` and everything that starts so.
fn looks_like_a_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-'
}

fn double_quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_special(c) && (c as u32) < 0x100 => {
                let _ = write!(out, "\\x{:02X}", c as u32);
            }
            c if is_special(c) => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `text` as a literal block, if it has several lines and nothing in it needs escapes.
fn literal_block(text: &str, indent: usize) -> Option<String> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let fits = text.contains('\n')
        && !body.is_empty()
        && !body.starts_with(['\n', ' '])
        && !body.ends_with('\n')
        && !body.contains(" \n")
        && !body.ends_with(' ')
        && !body.chars().any(|c| c != '\n' && is_special(c));
    if !fits {
        return None;
    }
    let mut out = String::from(if text.ends_with('\n') { "|" } else { "|-" });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            push_spaces(&mut out, indent);
            out.push_str(line);
        }
    }
    Some(out)
}

fn push_spaces(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_are_laid_out_as_go_does() {
        let value = json!({
            "users": [{"name": "u", "user": {"exec": {"args": ["login", "--x=y"], "env": [], "flag": true}}}],
            "apiVersion": "v1",
            "empty": {},
            "nested": [[1, 2], []],
        });
        assert_eq!(
            to_string(&value),
            "apiVersion: v1\n\
             empty: {}\n\
             nested:\n\
             - - 1\n  - 2\n\
             - []\n\
             users:\n\
             - name: u\n  user:\n    exec:\n      args:\n      - login\n      - --x=y\n      env: []\n      flag: true\n"
        );
    }

    #[test]
    fn long_plain_text_folds_behind_column_eighty() {
        let hint = crate::flags::tree::DEFAULT_INSTALL_HINT;
        let value = json!({"a": {"b": {"c": {"installHint": hint}}}});
        let text = to_string(&value);
        assert!(
            text.ends_with(
                "      installHint: The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli\n        for more details\n"
            ),
            "{text}"
        );
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn whatever_goes_in_comes_out_again() {
        for text in [
            "",
            "plain",
            "with space",
            " lead",
            "trail ",
            "a: b",
            "a #b",
            "#c",
            "- x",
            "-",
            "--token=x",
            "---x",
            "yes",
            "No",
            "null",
            "~",
            "123",
            "1e3",
            "0x1f",
            "0123",
            "1:30",
            "2026-11-21T07:59:08Z",
            "'quoted'",
            "\"dq\"",
            "it's",
            "a\nb",
            "a\nb\n",
            "\n",
            "\na",
            "a\n\nb\n",
            "tab\there",
            "a \nb",
            "ünï",
            "\u{2028}",
            "\u{7f}",
            "@x",
            "{a}",
            "a, b",
            "key:",
            "https://x:1/y",
            "%x",
            "!t",
            "*p",
            "&a",
            "<<",
            ".5",
            "+1",
            "1_000",
            "?",
            ": x",
            "\\",
            "a very long line that goes on and on until it is far beyond the eightieth column and it's  still going on 'here",
        ] {
            let value = json!({"key": text, "list": [text]});
            let yaml = to_string(&value);
            assert_eq!(
                serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(),
                value,
                "{text:?} was written as {yaml}"
            );
        }
    }

    #[test]
    fn certificates_are_literal_blocks() {
        assert_eq!(
            to_string(&json!({"c": "-----BEGIN X-----\nabc\n-----END X-----\n"})),
            "c: |\n  -----BEGIN X-----\n  abc\n  -----END X-----\n"
        );
        assert_eq!(to_string(&json!({"t": "2026-11-21T07:59:08Z"})), "t: \"2026-11-21T07:59:08Z\"\n");
    }
}
