//! Semantic versions, with the texts of the Go library that Kubernetes uses.
//!
//! The `semver` crate has other texts and refuses versions that this library accepts, so the parser
//! is here.

use std::cmp::Ordering;

use pinniped_go_compat::json::quote;

use super::{Function, bool, no_overload, opaque};
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::value::{OpaqueValue, Value};

/// A version. Build metadata has no effect and is dropped.
pub(crate) struct Version {
    numbers: [u64; 3],
    prerelease: Vec<Identifier>,
}

/// A part of a pre-release. Numbers come before texts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Version {
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.prerelease.is_empty(), other.prerelease.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self.prerelease.cmp(&other.prerelease),
            }
        })
    }
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "semver" => |_, arguments| {
            let parsed = parse_arguments("semver", arguments)?;
            let version = parsed.map_err(EvaluationError::failed)?;
            Ok(OpaqueValue::Version(version.into()).into())
        },
        "isSemver" => |_, arguments| bool(parse_arguments("isSemver", arguments)?.is_ok()),
        "major" => |_, arguments| number("major", arguments, 0),
        "minor" => |_, arguments| number("minor", arguments, 1),
        "patch" => |_, arguments| number("patch", arguments, 2),
        _ => return None,
    })
}

fn parse_arguments(name: &str, arguments: &[Value]) -> Result<Result<Version, String>, EvaluationError> {
    match arguments {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok(parse(text)),
        [Value::String(text), Value::Bool(true)] => Ok(normalize(text).and_then(|text| parse(&text))),
        _ => Err(no_overload(name, arguments)),
    }
}

fn number(name: &str, arguments: &[Value], index: usize) -> Evaluation {
    match arguments {
        [value] if let Some(OpaqueValue::Version(version)) = opaque(value) => {
            // Go converts with the same loss.
            Ok(Value::Int(version.numbers[index].cast_signed()))
        }
        _ => Err(no_overload(name, arguments)),
    }
}

/// Completes a short version, and removes a `v` and leading zeros.
fn normalize(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text
        .splitn(3, '.')
        .map(|part| {
            if part.len() <= 1 {
                return part.to_owned();
            }
            let trimmed = part.trim_start_matches('0');
            let digit = trimmed.starts_with(|c: char| c.is_ascii_digit());
            if digit { trimmed.to_owned() } else { format!("0{trimmed}") }
        })
        .collect();
    if parts.len() < 3 {
        if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".into());
        }
        parts.resize(3, "0".into());
    }
    Ok(parts.join("."))
}

fn parse(text: &str) -> Result<Version, String> {
    if text.is_empty() {
        return Err("Version string empty".into());
    }
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, rest] = parts[..] else {
        return Err("No Major.Minor.Patch elements found".into());
    };
    let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
    let (patch, prerelease) =
        rest.split_once('-').map_or((rest, None), |(patch, prerelease)| (patch, Some(prerelease)));
    let numbers = [
        parse_number(major, "Major", "major")?,
        parse_number(minor, "Minor", "minor")?,
        parse_number(patch, "Patch", "patch")?,
    ];
    let prerelease = match prerelease {
        Some(text) => text.split('.').map(identifier).collect::<Result<Vec<_>, String>>()?,
        None => Vec::new(),
    };
    for part in build.into_iter().flat_map(|build| build.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".into());
        }
        if !is_alphanumeric(part) {
            return Err(format!("Invalid character(s) found in build meta data {}", quote(part)));
        }
    }
    Ok(Version { numbers, prerelease })
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_alphanumeric(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn parse_number(text: &str, name: &str, lower: &str) -> Result<u64, String> {
    if !is_number(text) {
        return Err(format!("Invalid character(s) found in {lower} number {}", quote(text)));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {}", quote(text)));
    }
    unsigned(text)
}

fn unsigned(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        let reason = if text.is_empty() { "invalid syntax" } else { "value out of range" };
        format!("strconv.ParseUint: parsing {}: {reason}", quote(text))
    })
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".into());
    }
    if is_number(text) {
        if text.len() > 1 && text.starts_with('0') {
            let quoted = quote(text);
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {quoted}"));
        }
        return unsigned(text).map(Identifier::Number);
    }
    if !is_alphanumeric(text) {
        return Err(format!("Invalid character(s) found in prerelease {}", quote(text)));
    }
    Ok(Identifier::Text(text.to_owned()))
}
