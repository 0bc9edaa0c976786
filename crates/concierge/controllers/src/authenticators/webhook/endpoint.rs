//! Checks `spec.endpoint`: whether it is a URL that can be dialed, and whether a proxy is
//! configured for it.
//!
//! Upstream uses Go's `net/url`, and its error texts are in the condition. Go's rules for scheme,
//! host and escapes are therefore applied here before the text is parsed by the `url` crate, which
//! is more lenient.

use pinniped_concierge_domain::endpoint::{Endpoint, EndpointError, HTTPS_PORT};
use pinniped_go_compat::json::quote;
use pinniped_http_client::proxy_environment::{ProxyEnvironment, ProxyEnvironmentError};
use pinniped_kube_types::condition::DesiredCondition;
use url::Url;

const ENDPOINT_VALID: &str = "EndpointURLValid";

/// A usable endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Usable {
    pub(super) url: Url,
    pub(super) is_proxied: bool,
}

/// Reasons why an endpoint is not usable, with upstream's texts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UnusableEndpoint {
    #[error("spec.endpoint URL cannot be parsed: parse {}: {cause}", quote(.text))]
    Syntax {
        text: String,
        #[source]
        cause: GoUrlError,
    },
    #[error("spec.endpoint URL {0} has invalid scheme, require 'https'")]
    Scheme(String),
    #[error("spec.endpoint URL is not valid: {0}")]
    Address(#[source] EndpointError),
    #[error("spec.endpoint URL is not valid: {0}")]
    Url(#[source] url::ParseError),
    #[error(
        "spec.endpoint URL error: could not determine if requests will be proxied for host {}: {cause}",
        quote(.host)
    )]
    Proxy {
        host: String,
        #[source]
        cause: ProxyEnvironmentError,
    },
}

impl UnusableEndpoint {
    /// Returns the reason of the condition.
    fn reason(&self) -> &'static str {
        match self {
            Self::Syntax { .. } | Self::Address(_) | Self::Url(_) => "InvalidEndpointURL",
            Self::Scheme(_) => "InvalidEndpointURLScheme",
            Self::Proxy { .. } => "InvalidEndpointCannotDetermineProxy",
        }
    }
}

/// The errors of Go's `url.Parse`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum GoUrlError {
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    #[error("first path segment in URL cannot contain colon")]
    ColonInFirstSegment,
    #[error("net/url: invalid userinfo")]
    Userinfo,
    #[error("missing protocol scheme")]
    NoScheme,
    #[error("missing ']' in host")]
    NoClosingBracket,
    #[error("invalid port {} after host", quote(.0))]
    Port(String),
    #[error("invalid URL escape {}", quote(.0))]
    Escape(String),
    #[error("invalid character {} in host name", quote(.0))]
    HostCharacter(String),
}

/// Returns the condition, and the endpoint if the condition is true.
pub(super) fn check(text: &str, proxies: &ProxyEnvironment) -> (DesiredCondition, Option<Usable>) {
    match usable(text, proxies) {
        Ok(endpoint) => {
            (DesiredCondition::success(ENDPOINT_VALID, "spec.endpoint is a valid URL"), Some(endpoint))
        }
        Err(error) => (DesiredCondition::failure(ENDPOINT_VALID, error.reason(), error.to_string()), None),
    }
}

fn usable(text: &str, proxies: &ProxyEnvironment) -> Result<Usable, UnusableEndpoint> {
    let parts = go_parts(text).map_err(|cause| UnusableEndpoint::Syntax { text: text.to_owned(), cause })?;
    if parts.scheme != "https" {
        return Err(UnusableEndpoint::Scheme(text.to_owned()));
    }
    let address = Endpoint::parse(parts.host, HTTPS_PORT).map_err(UnusableEndpoint::Address)?;
    let url = Url::parse(text).map_err(UnusableEndpoint::Url)?;
    let proxy =
        proxies.proxy_for(&url).map_err(|cause| UnusableEndpoint::Proxy { host: address.host, cause })?;
    Ok(Usable { url, is_proxied: proxy.is_some() })
}

struct Parts<'a> {
    scheme: String,
    /// With port, without userinfo.
    host: &'a str,
}

/// Parses an absolute URL with a host like Go's `url.Parse`.
fn go_parts(text: &str) -> Result<Parts<'_>, GoUrlError> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(GoUrlError::ControlCharacter);
    }
    let text = text.split_once('#').map_or(text, |(before, _)| before);
    let (scheme, rest) = go_scheme(text)?;
    let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
    let Some(rest) = rest.strip_prefix("//") else {
        let is_colon_first =
            scheme.is_empty() && rest.split('/').next().is_some_and(|first| first.contains(':'));
        if is_colon_first {
            return Err(GoUrlError::ColonInFirstSegment);
        }
        return Ok(Parts { scheme, host: "" });
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = match authority.rsplit_once('@') {
        Some((user, _)) if !user.bytes().all(is_user_byte) => {
            return Err(GoUrlError::Userinfo);
        }
        Some((_, host)) => host,
        None => authority,
    };
    check_host(host)?;
    check_escapes(path)?;
    Ok(Parts { scheme, host })
}

fn go_scheme(text: &str) -> Result<(String, &str), GoUrlError> {
    for (at, letter) in text.char_indices() {
        match letter {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err(GoUrlError::NoScheme),
            ':' => return Ok((text[..at].to_ascii_lowercase(), &text[at + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn check_host(host: &str) -> Result<(), GoUrlError> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or(GoUrlError::NoClosingBracket)?;
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |at| &host[at..])
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    if !is_port {
        return Err(GoUrlError::Port(port.to_owned()));
    }
    if let Some(at) = host.find('%')
        && !host.starts_with('[')
    {
        return Err(GoUrlError::Escape(host[at..].chars().take(3).collect()));
    }
    match host.bytes().find(|byte| byte.is_ascii() && !is_host_byte(*byte)) {
        Some(byte) => Err(GoUrlError::HostCharacter(char::from(byte).to_string())),
        None => Ok(()),
    }
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"%".contains(&byte)
}

fn is_user_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte)
}

/// Checks that every `%` in a path begins an escape.
fn check_escapes(path: &str) -> Result<(), GoUrlError> {
    for (at, _) in path.match_indices('%') {
        let is_escape = path
            .as_bytes()
            .get(at + 1..at + 3)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if !is_escape {
            return Err(GoUrlError::Escape(path[at..].chars().take(3).collect()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(endpoint: &str) -> String {
        check(endpoint, &ProxyEnvironment::default()).0.message
    }

    #[test]
    fn messages_equal_those_of_go() {
        for (endpoint, expected) in [
            ("https://example.com/authenticate", "spec.endpoint is a valid URL"),
            ("https://[::1]:8443/x", "spec.endpoint is a valid URL"),
            ("https://webhook.ns.svc", "spec.endpoint is a valid URL"),
            (
                "https://.café   .com/café/café/café/coffee",
                "spec.endpoint URL cannot be parsed: parse \"https://.café   .com/café/café/café/coffee\": invalid \
                 character \" \" in host name",
            ),
            ("http://localhost", "spec.endpoint URL http://localhost has invalid scheme, require 'https'"),
            (":foo", "spec.endpoint URL cannot be parsed: parse \":foo\": missing protocol scheme"),
            (
                "https://localhost:port/x",
                "spec.endpoint URL cannot be parsed: parse \"https://localhost:port/x\": invalid port \":port\" after \
                 host",
            ),
            (
                "https://[::1",
                "spec.endpoint URL cannot be parsed: parse \"https://[::1\": missing ']' in host",
            ),
            (
                "https://h/%zz",
                "spec.endpoint URL cannot be parsed: parse \"https://h/%zz\": invalid URL escape \"%zz\"",
            ),
            (
                "https://[0:0:0:0:0:0:0:1]:69999/some",
                "spec.endpoint URL is not valid: invalid port \"69999\"",
            ),
            (
                "https://bad_host",
                "spec.endpoint URL is not valid: host \"bad_host\" is not a valid hostname or IP address",
            ),
            (
                "https://\u{7f}",
                "spec.endpoint URL cannot be parsed: parse \"https://\\x7f\": net/url: invalid control character in URL",
            ),
        ] {
            assert_eq!(message(endpoint), expected);
        }
    }

    #[test]
    fn a_proxy_for_the_host_is_detected_and_an_invalid_one_is_an_error() {
        let proxies = ProxyEnvironment::new("http://proxy:3128", "inside.example");
        let is_proxied = |endpoint: &str| check(endpoint, &proxies).1.map(|endpoint| endpoint.is_proxied);
        assert_eq!(is_proxied("https://outside.example"), Some(true));
        assert_eq!(is_proxied("https://inside.example"), Some(false));
        let (condition, endpoint) =
            check("https://outside.example", &ProxyEnvironment::new("http://[bad", ""));
        assert_eq!((condition.reason.as_str(), endpoint), ("InvalidEndpointCannotDetermineProxy", None));
        assert!(
            condition.message.starts_with(
                "spec.endpoint URL error: could not determine if requests will be proxied for host \"outside.example\": "
            ),
            "{}",
            condition.message
        );
    }
}
