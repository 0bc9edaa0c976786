//! Parsing of a whole URL as by Go's `url.Parse`, with its error texts.
//!
//! The `url` crate implements the WHATWG standard, which accepts and repairs text that Go refuses.
//! A program that must refuse the same text with the same message parses with this module first.

use super::{text as utf8_text, unescape};
use crate::json::quote;

/// The parts of a URL, as far as programs decide by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedUrl {
    /// The scheme in lower case; empty for a relative reference.
    pub scheme: String,
    /// Whether there is user information, which may be empty.
    pub has_user: bool,
    /// Host and port, without user information; empty if there is no authority.
    pub host: String,
    /// The path after percent-decoding; empty for a URL such as `mailto:x`.
    pub path: String,
    /// The text between `?` and `#`, not decoded.
    pub query: String,
    /// The text after `#`, after percent-decoding.
    pub fragment: String,
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
    let error = |text: &str| {
        let text = text.to_owned();
        |cause| ParseError { text, cause }
    };
    let mut url = without_fragment(before).map_err(error(before))?;
    url.fragment = decoded(fragment).map_err(error(text))?;
    Ok(url)
}

fn without_fragment(text: &str) -> Result<ParsedUrl, ParseErrorCause> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(ParseErrorCause::ControlCharacter);
    }
    let (scheme, rest) = scheme(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = ParsedUrl { scheme, query: query.to_owned(), ..ParsedUrl::default() };
    if !rest.starts_with('/') {
        // With a scheme, the rest is opaque.
        if url.scheme.is_empty() {
            if rest.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err(ParseErrorCause::ColonInFirstSegment);
            }
            url.path = decoded(rest)?;
        }
        return Ok(url);
    }
    let has_authority = !url.scheme.is_empty() || !rest.starts_with("///");
    let path = match rest.strip_prefix("//") {
        Some(rest) if has_authority => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, authority),
            };
            check_host(host)?;
            if let Some(user) = user {
                if !user.bytes().all(is_user_byte) {
                    return Err(ParseErrorCause::Userinfo);
                }
                check_escapes(user)?;
            }
            url.has_user = user.is_some();
            host.clone_into(&mut url.host);
            path
        }
        _ => rest,
    };
    url.path = decoded(path)?;
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

fn check_host(host: &str) -> Result<(), ParseErrorCause> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or(ParseErrorCause::NoClosingBracket)?;
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |at| &host[at..])
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    if !is_port {
        return Err(ParseErrorCause::Port(port.to_owned()));
    }
    if let Some(at) = host.find('%')
        && !host.starts_with('[')
    {
        return Err(escape_error(host, at));
    }
    match host.bytes().find(|byte| byte.is_ascii() && !is_host_byte(*byte)) {
        Some(byte) => Err(ParseErrorCause::HostCharacter(char::from(byte).to_string())),
        None => Ok(()),
    }
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"%".contains(&byte)
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
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_those_of_go() {
        let url = |scheme: &str, host: &str, path: &str| ParsedUrl {
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            path: path.to_owned(),
            ..ParsedUrl::default()
        };
        for (text, wanted) in [
            ("", url("", "", "")),
            ("HTTPS://Example.com:8443/A%2fb", url("https", "Example.com:8443", "/A/b")),
            ("https://[::1]:1", url("https", "[::1]:1", "")),
            ("https://", url("https", "", "")),
            ("https:/x", url("https", "", "/x")),
            ("https:x", url("https", "", "")),
            ("//host/x", url("", "host", "/x")),
            ("///x", url("", "", "///x")),
            ("x/y:z", url("", "", "x/y:z")),
            ("https://a@b@host", ParsedUrl { has_user: true, ..url("https", "host", "") }),
            ("https://@host", ParsedUrl { has_user: true, ..url("https", "host", "") }),
            (
                "https://h/p?a=%zz;b#c%20d#e",
                ParsedUrl {
                    query: "a=%zz;b".to_owned(),
                    fragment: "c d#e".to_owned(),
                    ..url("https", "h", "/p")
                },
            ),
            ("https://h?", url("https", "h", "")),
        ] {
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn errors_have_the_texts_of_go() {
        for (text, wanted) in [
            (":foo", r#"parse ":foo": missing protocol scheme"#),
            ("1a:b", r#"parse "1a:b": first path segment in URL cannot contain colon"#),
            ("https://h\u{7f}#f", r#"parse "https://h\x7f": net/url: invalid control character in URL"#),
            ("https://h:x/", r#"parse "https://h:x/": invalid port ":x" after host"#),
            ("https://[::1", r#"parse "https://[::1": missing ']' in host"#),
            ("https://h h", r#"parse "https://h h": invalid character " " in host name"#),
            ("https://%41", r#"parse "https://%41": invalid URL escape "%41""#),
            ("https://ü ser@h", r#"parse "https://ü ser@h": net/url: invalid userinfo"#),
            ("https://u%zz@h", r#"parse "https://u%zz@h": invalid URL escape "%zz""#),
            ("https://h/%2", r#"parse "https://h/%2": invalid URL escape "%2""#),
            ("https://h/%%41", r#"parse "https://h/%%41": invalid URL escape "%%4""#),
            ("https://h/x#%", r#"parse "https://h/x#%": invalid URL escape "%""#),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), wanted, "{text}");
        }
    }
}
