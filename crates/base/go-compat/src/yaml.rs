//! Writes YAML like upstream's YAML library for Go, which converts JSON values with
//! `go.yaml.in/yaml/v2`, byte for byte: keys sorted, two spaces of indent, list dashes under their
//! key, long scalars folded after column 80.
//!
//! Users keep such files under version control and compare them, and error texts that contain YAML
//! are compared with those of upstream. Therefore the choice between plain, single-quoted,
//! double-quoted and literal scalars is that of libyaml's emitter as ported in
//! `go.yaml.in/yaml/v2`. The input is a JSON value; anchors, tags and flow style are not supported.

use std::fmt::Write as _;

use serde_json::Value;

mod resolve;
mod scalar;

/// Returns `value` as a YAML document.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut out, map, 0),
        Value::Array(items) if !items.is_empty() => write_list(&mut out, items, 0),
        other => {
            write_scalar(&mut out, other, 2);
            out.push('\n');
        }
    }
    out
}

fn write_map(out: &mut String, map: &serde_json::Map<String, Value>, indent: usize) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    for (at, (key, value)) in entries.into_iter().enumerate() {
        // The first key follows the text that opened this map: a dash, or the start of a line.
        if at > 0 || out.is_empty() || out.ends_with('\n') {
            push_spaces(out, indent);
        }
        scalar::write(out, key, None);
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
        Value::String(text) => scalar::write(out, text, Some(continuation)),
    }
}

fn push_spaces(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_have_the_layout_of_go() {
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
    fn long_plain_text_folds_after_column_eighty() {
        let hint = "The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli for more details";
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
    fn written_yaml_is_parsed_to_the_same_value() {
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
    fn certificates_are_written_as_literal_blocks() {
        assert_eq!(
            to_string(&json!({"c": "-----BEGIN X-----\nabc\n-----END X-----\n"})),
            "c: |\n  -----BEGIN X-----\n  abc\n  -----END X-----\n"
        );
        assert_eq!(to_string(&json!({"t": "2026-11-21T07:59:08Z"})), "t: \"2026-11-21T07:59:08Z\"\n");
    }
}
