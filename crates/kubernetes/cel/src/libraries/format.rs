//! Formats of Kubernetes' names and of other texts: `format.dns1123Label().validate('a')`.

use std::sync::LazyLock;

use pinniped_go_compat::url::parse_request_uri;
use regex::Regex;

use super::{Function, no_overload, opaque, timestamp};
use crate::interpreter::Evaluation;
use crate::value::{OpaqueValue, Value};

/// A format, and the size of its regular expression, on which the cost of a validation depends.
pub(crate) struct Format {
    name: &'static str,
    pattern_size: u64,
    validate: fn(&str) -> Vec<String>,
}

impl Format {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn pattern_size(&self) -> u64 {
        self.pattern_size
    }
}

static FORMATS: [Format; 14] = [
    Format { name: "dns1123Label", pattern_size: 30, validate: |text| label(text) },
    Format { name: "dns1123Subdomain", pattern_size: 60, validate: |text| subdomain(text) },
    Format { name: "dns1035Label", pattern_size: 30, validate: |text| label_1035(text) },
    Format { name: "qualifiedName", pattern_size: 60, validate: qualified_name },
    Format { name: "dns1123LabelPrefix", pattern_size: 30, validate: |text| label(&masked(text)) },
    Format { name: "dns1123SubdomainPrefix", pattern_size: 60, validate: |text| subdomain(&masked(text)) },
    Format { name: "dns1035LabelPrefix", pattern_size: 30, validate: |text| label_1035(&masked(text)) },
    Format { name: "labelValue", pattern_size: 40, validate: label_value },
    Format {
        name: "uri",
        pattern_size: 1103,
        validate: |text| parse_request_uri(text).err().iter().map(ToString::to_string).collect(),
    },
    Format {
        name: "uuid",
        pattern_size: 72,
        validate: |text| unless(UUID.is_match(text), "does not match the UUID format"),
    },
    Format { name: "byte", pattern_size: 84, validate: |text| unless(is_base64(text), "invalid base64") },
    Format { name: "date", pattern_size: 72, validate: |text| unless(is_date(text), "invalid date") },
    Format {
        name: "datetime",
        pattern_size: 72,
        validate: |text| unless(is_datetime(text), "invalid datetime"),
    },
    // Not a format: the end of the list.
    Format { name: "", pattern_size: 0, validate: |_| Vec::new() },
];

fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name && !name.is_empty())
}

pub(crate) fn function(name: &str) -> Option<Function> {
    if name == "format.named" {
        return Some(|_, arguments| match arguments {
            [Value::String(name)] => {
                let format = named(name).map(|format| Value::from(OpaqueValue::Format(format)));
                Ok(Value::Optional(format.map(Into::into)))
            }
            _ => Err(no_overload("format.named", arguments)),
        });
    }
    if name == "validate" {
        return Some(|usage, arguments| match arguments {
            [value, Value::String(text)] if let Some(OpaqueValue::Format(format)) = opaque(value) => {
                usage.allocate(text.len())?;
                let errors = (format.validate)(text);
                if errors.is_empty() {
                    return Ok(Value::Optional(None));
                }
                Ok(Value::some(Value::list(errors.into_iter().map(Value::from).collect())))
            }
            _ => Err(no_overload("validate", arguments)),
        });
    }
    // Functions are pointers without state, therefore each format has one.
    Some(match name.strip_prefix("format.")? {
        "dns1123Label" => |_, _| constant(0),
        "dns1123Subdomain" => |_, _| constant(1),
        "dns1035Label" => |_, _| constant(2),
        "qualifiedName" => |_, _| constant(3),
        "dns1123LabelPrefix" => |_, _| constant(4),
        "dns1123SubdomainPrefix" => |_, _| constant(5),
        "dns1035LabelPrefix" => |_, _| constant(6),
        "labelValue" => |_, _| constant(7),
        "uri" => |_, _| constant(8),
        "uuid" => |_, _| constant(9),
        "byte" => |_, _| constant(10),
        "date" => |_, _| constant(11),
        "datetime" => |_, _| constant(12),
        _ => return None,
    })
}

fn constant(index: usize) -> Evaluation {
    Ok(OpaqueValue::Format(&FORMATS[index]).into())
}

fn unless(valid: bool, error: &str) -> Vec<String> {
    if valid { Vec::new() } else { vec![error.to_owned()] }
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

static UUID: LazyLock<Regex> =
    LazyLock::new(|| regex("(?i-u)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));

/// Compiles a constant expression.
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the expression is a constant that a test compiles")
}

fn is_match(pattern: &str, text: &str) -> bool {
    regex(&format!("^(?:{pattern})$")).is_match(text)
}

fn check(text: &str, pattern: &str, longest: usize, message: &str, examples: &[&str]) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > longest {
        errors.push(too_long(longest));
    }
    if !is_match(pattern, text) {
        errors.push(regex_error(message, pattern, examples));
    }
    errors
}

fn too_long(longest: usize) -> String {
    format!("must be no more than {longest} characters")
}

fn regex_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    let examples = examples.join(" or ");
    format!("{message} (e.g. {examples}regex used for validation is '{pattern}')")
}

fn label(text: &str) -> Vec<String> {
    let message = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
    check(text, LABEL, 63, message, &["my-name", "123-abc"])
}

fn subdomain(text: &str) -> Vec<String> {
    let message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
    check(text, SUBDOMAIN, 253, message, &["example.com"])
}

fn label_1035(text: &str) -> Vec<String> {
    let message = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
    check(text, LABEL_1035, 63, message, &["my-name", "abc-123"])
}

fn label_value(text: &str) -> Vec<String> {
    let message = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    check(text, LABEL_VALUE, 63, message, &["MyValue", "my_value", "12345"])
}

fn qualified_name(text: &str) -> Vec<String> {
    const RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let examples = ["MyName", "my.name", "123-abc"];
    let parts: Vec<&str> = text.split('/').collect();
    let mut errors = Vec::new();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(subdomain(prefix).into_iter().map(|error| format!("prefix part {error}")));
            }
            name
        }
        _ => {
            let rule = regex_error(&format!("a valid label key {RULE}"), NAME, &examples);
            let prefix = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("{rule} {prefix}")];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", too_long(63)));
    }
    if !is_match(NAME, name) {
        errors.push(regex_error(&format!("name part {RULE}"), NAME, &examples));
    }
    errors
}

/// Replaces the last character of a prefix of a name, because the name continues.
fn masked(text: &str) -> String {
    match text.strip_suffix('-') {
        // As in Kubernetes, the character before the dash is dropped too.
        Some(before) if before.len() > 1 && before.is_char_boundary(before.len() - 1) => {
            format!("{}a", &before[..before.len() - 1])
        }
        Some(before) if before.len() == 1 => "a".to_owned(),
        _ => text.to_owned(),
    }
}

fn is_base64(text: &str) -> bool {
    let stripped = text.replace(['\r', '\n'], "");
    !text.is_empty() && pinniped_go_compat::base64::decode(stripped.as_bytes()).is_ok()
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && timestamp::parse(&format!("{text}T00:00:00Z")).is_some()
}

fn is_datetime(text: &str) -> bool {
    timestamp::parse(&text.to_ascii_uppercase()).is_some()
}
