//! Selection of the proxy that the environment configures for an endpoint, by the rules of Go's
//! `golang.org/x/net/http/httpproxy`.

use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use crate::dial::HttpProxy;

/// The error for an `HTTPS_PROXY` that is not a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid proxy address {}: {problem}", pinniped_go_compat::json::quote(address))]
pub struct ProxyEnvironmentError {
    address: String,
    problem: String,
}

/// The values of the proxy variables at the time of creation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    https_proxy: String,
    no_proxy: String,
}

impl ProxyEnvironment {
    /// Reads `HTTPS_PROXY` and `NO_PROXY`, or their lower-case forms.
    pub fn from_env() -> Self {
        let read = |upper: &str, lower: &str| {
            let value = std::env::var(upper).ok().filter(|value| !value.is_empty());
            value.or_else(|| std::env::var(lower).ok()).unwrap_or_default()
        };
        Self::new(read("HTTPS_PROXY", "https_proxy"), read("NO_PROXY", "no_proxy"))
    }

    /// Creates an environment from values; an empty value means unset.
    pub fn new(https_proxy: impl Into<String>, no_proxy: impl Into<String>) -> Self {
        Self { https_proxy: https_proxy.into(), no_proxy: no_proxy.into() }
    }

    /// Returns the proxy for an `https` endpoint, or `None` for a direct connection.
    ///
    /// # Errors
    ///
    /// Returns [`ProxyEnvironmentError`] when a proxy applies but its address is not a URL.
    pub fn proxy_for(&self, endpoint: &Url) -> Result<Option<HttpProxy>, ProxyEnvironmentError> {
        if self.https_proxy.is_empty() || self.is_exempt(endpoint) {
            return Ok(None);
        }
        let parsed = Url::parse(&self.https_proxy);
        if let Ok(proxy) = &parsed
            && proxy.has_host()
        {
            return Ok(Some(HttpProxy(proxy.clone())));
        }
        // An address without a scheme uses `http`.
        let with_scheme = format!("http://{}", self.https_proxy);
        let problem = match parsed {
            Err(error) if self.https_proxy.contains("://") => error,
            _ => match Url::parse(&with_scheme) {
                Ok(proxy) => return Ok(Some(HttpProxy(proxy))),
                Err(error) => error,
            },
        };
        Err(ProxyEnvironmentError { address: self.https_proxy.clone(), problem: problem.to_string() })
    }

    fn is_exempt(&self, endpoint: &Url) -> bool {
        let (name, ip) = match endpoint.host() {
            Some(Host::Domain(name)) => (name.trim_end_matches('.').to_ascii_lowercase(), None),
            Some(Host::Ipv4(ip)) => (ip.to_string(), Some(IpAddr::V4(ip))),
            Some(Host::Ipv6(ip)) => (ip.to_string(), Some(IpAddr::V6(ip))),
            None => return true,
        };
        if name == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return true;
        }
        let port = endpoint.port_or_known_default().unwrap_or(443);
        let mut entries = self.no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase());
        entries.any(|entry| is_match(&entry, &name, ip, port))
    }
}

impl fmt::Debug for ProxyEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL of the proxy may contain a password.
        f.debug_struct("ProxyEnvironment").field("no_proxy", &self.no_proxy).finish_non_exhaustive()
    }
}

/// Returns whether one entry of `NO_PROXY` covers this host.
fn is_match(entry: &str, name: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/')
        && let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>())
    {
        return ip.is_some_and(|ip| is_inside(ip, network, bits));
    }
    let (host, wanted_port) = split_port(entry);
    if wanted_port.is_some_and(|wanted| wanted != port) || host.is_empty() {
        return false;
    }
    if let Ok(wanted) = host.parse::<IpAddr>() {
        return ip == Some(wanted);
    }
    if ip.is_some() {
        return false;
    }
    // `*.example.com` and `.example.com` cover only subdomains, `example.com` covers itself as
    // well.
    let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
    match host.strip_prefix('.') {
        Some(_) => name.ends_with(host),
        None => name == host || name.strip_suffix(host).is_some_and(|below| below.ends_with('.')),
    }
}

fn split_port(entry: &str) -> (&str, Option<u16>) {
    if let Some(rest) = entry.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').unwrap_or((rest, ""));
        return (host, rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, port.parse().ok()),
        _ => (entry, None),
    }
}

fn is_inside(ip: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(environment: &ProxyEnvironment, endpoint: &str) -> Option<String> {
        environment.proxy_for(&Url::parse(endpoint).unwrap()).unwrap().map(|proxy| proxy.0.to_string())
    }

    #[test]
    fn no_proxy_entries_match_as_in_go() {
        for (entry, endpoint, exempt) in [
            ("", "https://example.com", false),
            ("", "https://localhost:8443", true),
            ("", "https://127.0.0.1", true),
            ("", "https://[::1]", true),
            ("*", "https://example.com", true),
            ("example.com", "https://example.com", true),
            ("example.com", "https://a.example.com", true),
            ("example.com", "https://badexample.com", false),
            (".example.com", "https://example.com", false),
            (".example.com", "https://a.example.com", true),
            ("*.example.com", "https://a.example.com", true),
            ("example.com:8443", "https://example.com", false),
            ("example.com:443", "https://example.com", true),
            ("10.0.0.0/8", "https://10.1.2.3", true),
            ("10.0.0.0/8", "https://11.1.2.3", false),
            ("0.0.0.0/0", "https://11.1.2.3", true),
            ("10.1.2.3", "https://10.1.2.3:99", true),
            ("fd00::/8", "https://[fd00::1]", true),
            ("[fd00::1]:443", "https://[fd00::1]", true),
            (" a.example , b.example ", "https://b.example", true),
            (".svc,.cluster.local", "https://webhook.ns.svc/authenticate", true),
        ] {
            let environment = ProxyEnvironment::new("http://proxy.example:3128", entry);
            assert_eq!(proxy(&environment, endpoint).is_none(), exempt, "{entry:?} {endpoint}");
        }
    }

    #[test]
    fn proxy_addresses_without_a_scheme_use_http() {
        for (value, expected) in [
            ("http://proxy.example:3128", "http://proxy.example:3128/"),
            ("proxy.example:3128", "http://proxy.example:3128/"),
            ("10.0.0.1:3128", "http://10.0.0.1:3128/"),
            ("proxy.example", "http://proxy.example/"),
        ] {
            let environment = ProxyEnvironment::new(value, "");
            assert_eq!(proxy(&environment, "https://example.com").as_deref(), Some(expected), "{value}");
        }
    }

    #[test]
    fn an_invalid_proxy_address_is_an_error_only_for_endpoints_that_use_it() {
        let environment = ProxyEnvironment::new("http://[bad", "example.com");
        assert!(environment.proxy_for(&Url::parse("https://example.com").unwrap()).unwrap().is_none());
        let error = environment.proxy_for(&Url::parse("https://example.org").unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("invalid proxy address \"http://[bad\": "), "{error}");
    }

    #[test]
    fn debug_prints_no_password() {
        let environment = ProxyEnvironment::new("http://user:secret@proxy", "");
        assert!(!format!("{environment:?}").contains("secret"));
    }
}
