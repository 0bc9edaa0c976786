//! URLs, as Go's `net/url` parses them.
//!
//! The `url` crate follows another specification: it changes hosts and paths, and accepts other
//! texts.

use std::collections::BTreeMap;

use pinniped_go_compat::json::quote;
use pinniped_go_compat::url::{escaped_path, query_pairs, unescape};

use super::{Function, bool, no_overload, opaque};
use crate::budget::Usage;
use crate::error::EvaluationError;
use crate::interpreter::{ELEMENT_SIZE, Evaluation};
use crate::value::{Key, Map, OpaqueValue, Value};

/// A parsed URL.
#[derive(PartialEq, Eq)]
pub(crate) struct Url {
    scheme: String,
    user: Option<String>,
    host: String,
    path: String,
    query: String,
    fragment: String,
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "url" => |usage, arguments| match arguments {
            [Value::String(text)] => {
                usage.allocate(text.len())?;
                let url = request_uri(text).and_then(|_| parse(text)).map_err(|reason| {
                    EvaluationError::failed(format!(
                        "URL parse error during conversion from string: {reason}"
                    ))
                })?;
                Ok(OpaqueValue::Url(url.into()).into())
            }
            _ => Err(no_overload("url", arguments)),
        },
        "isURL" => |_, arguments| match arguments {
            [Value::String(text)] => bool(request_uri(text).is_ok()),
            _ => Err(no_overload("isURL", arguments)),
        },
        "getScheme" => |_, arguments| of("getScheme", arguments, |url| url.scheme.clone()),
        "getHost" => |_, arguments| of("getHost", arguments, |url| url.host.clone()),
        "getHostname" => {
            |_, arguments| of("getHostname", arguments, |url| split_port(&url.host).0.to_owned())
        }
        "getPort" => |_, arguments| of("getPort", arguments, |url| split_port(&url.host).1.to_owned()),
        "getEscapedPath" => {
            |_, arguments| of("getEscapedPath", arguments, |url| escaped_path(&url.path).into_owned())
        }
        "getQuery" => |usage, arguments| match arguments {
            [value] if let Some(OpaqueValue::Url(url)) = opaque(value) => query(usage, url),
            _ => Err(no_overload("getQuery", arguments)),
        },
        _ => return None,
    })
}

fn of(name: &str, arguments: &[Value], f: fn(&Url) -> String) -> Evaluation {
    match arguments {
        [value] if let Some(OpaqueValue::Url(url)) = opaque(value) => Ok(f(url).into()),
        _ => Err(no_overload(name, arguments)),
    }
}

fn query(usage: &mut Usage, url: &Url) -> Evaluation {
    let mut values: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (name, value) in query_pairs(&url.query) {
        usage.allocate(2 * ELEMENT_SIZE + name.len() + value.len())?;
        values.entry(name).or_default().push(value.into());
    }
    let entries = values.into_iter().map(|(name, values)| (Key::String(name.into()), Value::list(values)));
    Ok(Value::Map(Map::built(entries.collect()).into()))
}

/// Splits a host into the name, without brackets, and the port.
fn split_port(host: &str) -> (&str, &str) {
    let (name, port) = match host.rfind(':') {
        Some(colon) if valid_port(&host[colon..]) => (&host[..colon], &host[colon + 1..]),
        _ => (host, ""),
    };
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    (inner.unwrap_or(name), port)
}

/// Reports whether a text is empty, or a colon and digits.
fn valid_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

fn refused<T>(text: &str, reason: &str) -> Result<T, String> {
    Err(format!("parse {}: {reason}", quote(text)))
}

/// Parses a URL as Go's `url.ParseRequestURI`: it must be absolute, and has no fragment.
pub(crate) fn request_uri(text: &str) -> Result<Url, String> {
    parse_reference(text, true).or_else(|reason| refused(text, &reason))
}

fn parse(text: &str) -> Result<Url, String> {
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut url = parse_reference(before, false).or_else(|reason| refused(before, &reason))?;
    if unescape(fragment).is_none() {
        return refused(text, &format!("invalid URL escape {}", quote(&bad_escape(fragment))));
    }
    fragment.clone_into(&mut url.fragment);
    Ok(url)
}

fn parse_reference(text: &str, via_request: bool) -> Result<Url, String> {
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    if text.is_empty() && via_request {
        return Err("empty url".into());
    }
    let mut url = Url {
        scheme: String::new(),
        user: None,
        host: String::new(),
        path: String::new(),
        query: String::new(),
        fragment: String::new(),
    };
    if text == "*" {
        "*".clone_into(&mut url.path);
        return Ok(url);
    }
    let (scheme, rest) = split_scheme(text)?;
    url.scheme = scheme.to_ascii_lowercase();
    let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    query.clone_into(&mut url.query);
    if !rest.starts_with('/') {
        if !url.scheme.is_empty() {
            // An opaque URL such as `mailto:a@b`.
            return Ok(url);
        }
        if via_request {
            return Err("invalid URI for request".into());
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".into());
        }
    }
    let has_authority = !url.scheme.is_empty() || (!via_request && !rest.starts_with("///"));
    if has_authority && let Some(after) = rest.strip_prefix("//") {
        let end = after.find('/').unwrap_or(after.len());
        let (authority, path) = after.split_at(end);
        (url.user, url.host) = parse_authority(authority)?;
        rest = path;
    }
    if unescape(rest).is_none() {
        return Err(format!("invalid URL escape {}", quote(&bad_escape(rest))));
    }
    rest.clone_into(&mut url.path);
    Ok(url)
}

/// Returns the text of the first percent sign that is no escape sequence.
fn bad_escape(text: &str) -> String {
    let bytes = text.as_bytes();
    let bad = (0..bytes.len()).find(|index| {
        let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
        bytes[*index] == b'%' && !(is_hex(index + 1) && is_hex(index + 2))
    });
    bad.map(|index| text[index..].chars().take(3).collect()).unwrap_or_default()
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' => return Ok(("", text)),
            b':' if index == 0 => return Err("missing protocol scheme".into()),
            b':' => return Ok((&text[..index], &text[index + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

fn parse_authority(authority: &str) -> Result<(Option<String>, String), String> {
    let Some((user, host)) = authority.rsplit_once('@') else {
        return Ok((None, parse_host(authority)?));
    };
    let host = parse_host(host)?;
    let valid = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(valid) {
        return Err("net/url: invalid userinfo".into());
    }
    if unescape(user).is_none() {
        return Err(format!("invalid URL escape {}", quote(&bad_escape(user))));
    }
    Ok((Some(user.to_owned()), host))
}

fn parse_host(host: &str) -> Result<String, String> {
    let invalid_port = |port: &str| Err(format!("invalid port {} after host", quote(port)));
    if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Err("missing ']' in host".into()) };
        let port = &host[end + 1..];
        if !valid_port(port) {
            return invalid_port(port);
        }
        let address = &host[1..end];
        let address = address.split("%25").next().unwrap_or(address);
        if !address.contains(':') || address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("invalid host: {}", quote(host)));
        }
    } else if let Some(colon) = host.rfind(':')
        && !valid_port(&host[colon..])
    {
        return invalid_port(&host[colon..]);
    }
    if unescape(host).is_none() {
        return Err(format!("invalid URL escape {}", quote(&bad_escape(host))));
    }
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || !c.is_ascii() || "-._~!$&'()*+,;=:[]<>\"%".contains(c);
    if let Some(bad) = host.chars().find(|c| !allowed(*c)) {
        return Err(format!("invalid character {} in host name", quote(&bad.to_string())));
    }
    let decoded = unescape(host).unwrap_or_default();
    Ok(pinniped_go_compat::url::text(decoded))
}
