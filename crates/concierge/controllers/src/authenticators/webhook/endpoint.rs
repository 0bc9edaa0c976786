//! Checks `spec.endpoint`: whether it is a URL that can be dialed, and whether a proxy is
//! configured for it.
//!
//! Upstream uses Go's `net/url`, and its error texts are in the condition. The text is therefore
//! parsed by Go's rules before it is parsed by the `url` crate, which is more lenient.

use pinniped_concierge_domain::endpoint::{Endpoint, EndpointError, HTTPS_PORT};
use pinniped_go_compat::json::quote;
use pinniped_go_compat::url::{ParseError, parse};
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
    #[error("spec.endpoint URL cannot be parsed: {0}")]
    Syntax(#[source] ParseError),
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
            Self::Syntax(_) | Self::Address(_) | Self::Url(_) => "InvalidEndpointURL",
            Self::Scheme(_) => "InvalidEndpointURLScheme",
            Self::Proxy { .. } => "InvalidEndpointCannotDetermineProxy",
        }
    }
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
    let parts = parse(text).map_err(UnusableEndpoint::Syntax)?;
    if parts.scheme != "https" {
        return Err(UnusableEndpoint::Scheme(text.to_owned()));
    }
    let address = Endpoint::parse(&parts.host, HTTPS_PORT).map_err(UnusableEndpoint::Address)?;
    let url = Url::parse(text).map_err(UnusableEndpoint::Url)?;
    let proxy =
        proxies.proxy_for(&url).map_err(|cause| UnusableEndpoint::Proxy { host: address.host, cause })?;
    Ok(Usable { url, is_proxied: proxy.is_some() })
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
