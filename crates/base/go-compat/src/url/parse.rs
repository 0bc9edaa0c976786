//! Parsing of a whole URL as by Go's `url.Parse` and `url.ParseRequestURI`, with their error texts.
//!
//! The `url` crate implements the WHATWG standard, which accepts and repairs text that Go refuses.
//! A program that must refuse the same text with the same message parses with this module first.

use std::net::IpAddr;

use super::{text as utf8_text, unescape};
use crate::json::quote;

/// The parts of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedUrl {
    /// The scheme in lower case; empty for a relative reference.
    pub scheme: String,
    /// The text between the scheme and the query if it does not begin with `/`, as in `mailto:x`.
    pub opaque: String,
    /// The user information, not decoded. It may be empty.
    pub user: Option<String>,
    /// Host and port after percent-decoding; empty if there is no authority.
    pub host: String,
    /// The path after percent-decoding; empty if there is opaque text.
    pub path: String,
    /// The path, not decoded.
    pub raw_path: String,
    /// The text between `?` and `#`, not decoded.
    pub query: String,
    /// The text after `#`, after percent-decoding.
    pub fragment: String,
    /// The text after `#`, not decoded.
    pub raw_fragment: String,
}

impl ParsedUrl {
    /// Returns the host without port and without the brackets of an IPv6 address.
    pub fn hostname(&self) -> &str {
        let name = self.split_port().0;
        let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        inner.unwrap_or(name)
    }

    /// Returns the port; empty if there is none.
    pub fn port(&self) -> &str {
        self.split_port().1
    }

    fn split_port(&self) -> (&str, &str) {
        match self.host.rfind(':') {
            Some(colon) if is_optional_port(&self.host[colon..]) => {
                (&self.host[..colon], &self.host[colon + 1..])
            }
            _ => (&self.host, ""),
        }
    }
}

/// Text that is not a URL: Go's `*url.Error`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse {}: {cause}", quote(.text))]
pub struct ParseError {
    /// The part of the text that was parsed: without a fragment, unless the error is there.
    pub text: String,
    /// The reason.
    #[source]
    pub cause: ParseErrorCause,
}

/// The reasons why text is not a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseErrorCause {
    /// The target of a request is empty.
    #[error("empty url")]
    Empty,
    /// The target of a request is neither a path nor a URL with a scheme.
    #[error("invalid URI for request")]
    Relative,
    /// A control character, anywhere before the fragment.
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    /// A relative reference such as `1a:b`.
    #[error("first path segment in URL cannot contain colon")]
    ColonInFirstSegment,
    /// A character that user information cannot contain.
    #[error("net/url: invalid userinfo")]
    Userinfo,
    /// The text begins with `:`.
    #[error("missing protocol scheme")]
    NoScheme,
    /// An IPv6 address without its closing bracket.
    #[error("missing ']' in host")]
    NoClosingBracket,
    /// An address in brackets that is not an IPv6 address.
    #[error("invalid host: ParseAddr({}): unable to parse IP", quote(.0))]
    Address(String),
    /// An IPv4 address in brackets, or brackets in the middle of a host.
    #[error("invalid IP-literal")]
    IpLiteral,
    /// A port that is not a number.
    #[error("invalid port {} after host", quote(.0))]
    Port(String),
    /// A `%` that does not begin an escape, or an escape in a host.
    #[error("invalid URL escape {}", quote(.0))]
    Escape(String),
    /// A character that a host cannot contain.
    #[error("invalid character {} in host name", quote(.0))]
    HostCharacter(String),
}

/// Parses an absolute URL or a relative reference.
///
/// # Errors
///
/// Returns [`ParseError`] with the text of Go.
pub fn parse(text: &str) -> Result<ParsedUrl, ParseError> {
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    let mut url = without_fragment(before, Form::Any).map_err(error_in(before))?;
    url.fragment = decoded(fragment).map_err(error_in(text))?;
    fragment.clone_into(&mut url.raw_fragment);
    Ok(url)
}

/// Parses the target of a request as by Go's `url.ParseRequestURI`: an absolute path, or a URL with
/// a scheme. A `#` is a part of the path or of the query.
///
/// # Errors
///
/// Returns [`ParseError`] with the text of Go.
pub fn parse_request_uri(text: &str) -> Result<ParsedUrl, ParseError> {
    without_fragment(text, Form::Request).map_err(error_in(text))
}

/// Returns the error with the text in which the cause was found.
fn error_in(text: &str) -> impl FnOnce(ParseErrorCause) -> ParseError {
    move |cause| ParseError { text: text.to_owned(), cause }
}

/// The texts that are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Also relative references.
    Any,
    /// Targets of requests.
    Request,
}

fn without_fragment(text: &str, form: Form) -> Result<ParsedUrl, ParseErrorCause> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(ParseErrorCause::ControlCharacter);
    }
    if text.is_empty() && form == Form::Request {
        return Err(ParseErrorCause::Empty);
    }
    let (scheme, rest) = scheme(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = ParsedUrl { scheme, query: query.to_owned(), ..ParsedUrl::default() };
    let has_scheme = !url.scheme.is_empty();
    if !rest.starts_with('/') {
        if has_scheme {
            rest.clone_into(&mut url.opaque);
            return Ok(url);
        }
        // The target of `OPTIONS *`.
        if text != "*" {
            if form == Form::Request {
                return Err(ParseErrorCause::Relative);
            }
            if rest.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err(ParseErrorCause::ColonInFirstSegment);
            }
        }
    }
    let has_authority = has_scheme || (form == Form::Any && !rest.starts_with("///"));
    let path = match rest.strip_prefix("//") {
        Some(rest) if has_authority => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            (url.user, url.host) = parse_authority(authority)?;
            path
        }
        _ => rest,
    };
    url.path = decoded(path)?;
    path.clone_into(&mut url.raw_path);
    Ok(url)
}

fn scheme(text: &str) -> Result<(String, &str), ParseErrorCause> {
    for (at, letter) in text.char_indices() {
        match letter {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err(ParseErrorCause::NoScheme),
            ':' => return Ok((text[..at].to_ascii_lowercase(), &text[at + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

/// Returns the user information and the host.
fn parse_authority(authority: &str) -> Result<(Option<String>, String), ParseErrorCause> {
    let Some((user, host)) = authority.rsplit_once('@') else {
        return Ok((None, parse_host(authority)?));
    };
    let host = parse_host(host)?;
    if !user.bytes().all(is_user_byte) {
        return Err(ParseErrorCause::Userinfo);
    }
    check_escapes(user)?;
    Ok((Some(user.to_owned()), host))
}

/// Decodes a host with a port.
fn parse_host(host: &str) -> Result<String, ParseErrorCause> {
    let Some(open) = host.rfind('[') else {
        check_port(host.rfind(':').map_or("", |at| &host[at..]))?;
        return decoded_host(host, |byte| byte >= 0x80 || byte == b'%');
    };
    if open > 0 {
        return Err(ParseErrorCause::IpLiteral);
    }
    let close = host.rfind(']').ok_or(ParseErrorCause::NoClosingBracket)?;
    let port = &host[close + 1..];
    check_port(port)?;
    let inner = &host[1..close];
    // RFC 6874: `%25` is the percent sign before a zone.
    let (address, zone) = inner.find("%25").map_or((inner, ""), |at| inner.split_at(at));
    let address = decoded_host(address, |byte| byte >= 0x80 || byte == b'%')?;
    let zone = decoded_host(zone, |byte| byte == b'%' || byte == b' ' || is_host_byte(byte))?;
    match address.parse() {
        Ok(IpAddr::V6(_)) if zone != "%" => Ok(format!("[{address}{zone}]{port}")),
        Ok(IpAddr::V4(_)) if zone.is_empty() => Err(ParseErrorCause::IpLiteral),
        _ => Err(ParseErrorCause::Address(address + &zone)),
    }
}

fn check_port(port: &str) -> Result<(), ParseErrorCause> {
    if is_optional_port(port) { Ok(()) } else { Err(ParseErrorCause::Port(port.to_owned())) }
}

/// Returns whether the text is empty, or a colon and digits.
fn is_optional_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Decodes a part of a host, which may contain only escapes of these bytes.
fn decoded_host(raw: &str, may_be_escaped: fn(u8) -> bool) -> Result<String, ParseErrorCause> {
    for (at, letter) in raw.char_indices() {
        if letter == '%' {
            let byte = unescape(raw.get(at..at + 3).unwrap_or("%"));
            if !byte.is_some_and(|byte| byte.iter().copied().all(may_be_escaped)) {
                return Err(escape_error(raw, at));
            }
        } else if u8::try_from(letter).is_ok_and(|byte| byte.is_ascii() && !is_host_byte(byte)) {
            return Err(ParseErrorCause::HostCharacter(letter.to_string()));
        }
    }
    decoded(raw)
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
}

fn is_user_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte)
}

fn decoded(raw: &str) -> Result<String, ParseErrorCause> {
    check_escapes(raw)?;
    // Every escape is valid, so nothing is lost.
    Ok(utf8_text(unescape(raw).unwrap_or_default()))
}

/// Checks that every `%` begins an escape.
fn check_escapes(raw: &str) -> Result<(), ParseErrorCause> {
    let mut from = 0;
    while let Some(at) = raw[from..].find('%').map(|at| from + at) {
        let is_escape =
            raw.as_bytes().get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if !is_escape {
            return Err(escape_error(raw, at));
        }
        from = at + 3;
    }
    Ok(())
}

fn escape_error(raw: &str, at: usize) -> ParseErrorCause {
    ParseErrorCause::Escape(raw[at..].chars().take(3).collect())
}

#[cfg(test)]
mod tests;
