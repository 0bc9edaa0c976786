//! `host[:port]`: the syntax of an external endpoint, and the URL that is advertised for it.
//!
//! Follows upstream's `internal/endpointaddr`, which uses Go's `net.SplitHostPort`. The error texts
//! are Go's because they become part of a `CredentialIssuer`'s status.

use std::net::{IpAddr, Ipv6Addr};

use pinniped_go_compat::json::quote;

/// The default port of `https` URLs, omitted from an advertised URL.
pub const HTTPS_PORT: u16 = 443;

/// Maximum length of a DNS name.
const MAX_DNS_NAME: usize = 253;

/// A host, which is an IP address or a DNS name, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The host without brackets, in its original case.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

/// Reasons why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text is not of the form `host:port`.
    #[error("address {address}: {reason}")]
    Split {
        /// The text that was split.
        address: String,
        /// Go's error text.
        reason: &'static str,
    },
    /// The port is not a number from 1 to 65535.
    #[error("invalid port {}", quote(.0))]
    Port(String),
    /// The host is neither an IP address nor an RFC 1123 subdomain.
    #[error("host {} is not a valid hostname or IP address", quote(.0))]
    Host(String),
}

impl Endpoint {
    /// Parses `text`; `default_port` applies if `text` has no port.
    ///
    /// # Errors
    ///
    /// Returns [`EndpointError`] with upstream's texts.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, EndpointError> {
        let joined = join_host_port(text, default_port);
        let (host, port) = split_host_port(text).or_else(|_| split_host_port(&joined))?;
        let port = match port.parse::<i64>().ok().and_then(|number| u16::try_from(number).ok()) {
            Some(number) if number > 0 => number,
            _ => return Err(EndpointError::Port(port.to_owned())),
        };
        if !is_ip(host) && !is_dns_subdomain(&host.to_ascii_lowercase()) {
            return Err(EndpointError::Host(host.to_owned()));
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Returns the host as an IP address if it is one in strict notation.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Returns `host:port`, with brackets where needed and without the default port of `https`.
    pub fn authority(&self) -> String {
        let joined = join_host_port(&self.host, self.port);
        joined.strip_suffix(":443").map(str::to_owned).unwrap_or(joined)
    }

    /// Returns the URL for clients: `https://host[:port]`.
    pub fn advertised(&self) -> String {
        format!("https://{}", self.authority())
    }
}

/// Returns whether `text` is an IP address according to Kubernetes' validation of older fields:
/// strict notation, except that leading zeros in IPv4 addresses are allowed.
pub fn is_ip(text: &str) -> bool {
    if text.parse::<Ipv6Addr>().is_ok() {
        return true;
    }
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 4
        && parts.iter().all(|part| {
            part.bytes().all(|byte| byte.is_ascii_digit())
                && part.parse::<u32>().is_ok_and(|number| number <= 255)
        })
}

/// Returns whether `text` is a lower-case RFC 1123 subdomain.
pub fn is_dns_subdomain(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !text.is_empty()
        && text.len() <= MAX_DNS_NAME
        && text.split('.').all(|label| match label.as_bytes() {
            [] => false,
            [one] => edge(*one),
            [first, middle @ .., last] => {
                edge(*first) && edge(*last) && middle.iter().all(|&byte| edge(byte) || byte == b'-')
            }
        })
}

/// Joins host and port like Go's `net.JoinHostPort`.
fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Splits host and port like Go's `net.SplitHostPort`.
fn split_host_port(address: &str) -> Result<(&str, &str), EndpointError> {
    let fail = |reason| Err(EndpointError::Split { address: address.to_owned(), reason });
    let Some(colon) = address.rfind(':') else { return fail("missing port in address") };
    let (host, inside_from, after_from) = if address.starts_with('[') {
        let Some(end) = address.find(']') else { return fail("missing ']' in address") };
        match end + 1 {
            next if next == address.len() => return fail("missing port in address"),
            next if next == colon => {}
            next if address.as_bytes().get(next) == Some(&b':') => return fail("too many colons in address"),
            _ => return fail("missing port in address"),
        }
        (&address[1..end], 1, end + 1)
    } else {
        let host = &address[..colon];
        if host.contains(':') {
            return fail("too many colons in address");
        }
        (host, 0, 0)
    };
    if address[inside_from..].contains('[') {
        return fail("unexpected '[' in address");
    }
    if address[after_from..].contains(']') {
        return fail("unexpected ']' in address");
    }
    Ok((host, &address[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_port_get_the_default_one() {
        for host in [
            "127.0.0.1",
            "host",
            "host.example.com",
            "HoSt.EXamplE.cOM",
            "2001:db8::ffff",
            "::127.0.0.1",
            "010.0.0.1",
        ] {
            assert_eq!(Endpoint::parse(host, 443), Ok(Endpoint { host: host.to_owned(), port: 443 }));
        }
    }

    #[test]
    fn a_port_is_parsed_and_brackets_are_removed() {
        for (text, host) in [
            ("host:8443", "host"),
            ("[2001:db8::ffff]:8443", "2001:db8::ffff"),
            ("[host.example.com]:8443", "host.example.com"),
            ("[127.0.0.1]:8443", "127.0.0.1"),
        ] {
            assert_eq!(
                Endpoint::parse(text, 443),
                Ok(Endpoint { host: host.to_owned(), port: 8443 }),
                "{text}"
            );
        }
    }

    #[test]
    fn errors_have_the_texts_of_go() {
        let cases = [
            ("", r#"host "" is not a valid hostname or IP address"#),
            ("1.1.1.", r#"host "1.1.1." is not a valid hostname or IP address"#),
            ("___.example.com:1234", r#"host "___.example.com" is not a valid hostname or IP address"#),
            ("host/path", r#"host "host/path" is not a valid hostname or IP address"#),
            ("host:port1:port2", r#"host "host:port1:port2" is not a valid hostname or IP address"#),
            ("2001:db8::1%eth0", r#"host "2001:db8::1%eth0" is not a valid hostname or IP address"#),
            ("süß.example.com", r#"host "süß.example.com" is not a valid hostname or IP address"#),
            ("[2001:db8::ffff]", "address [[2001:db8::ffff]]:443: missing port in address"),
            ("[host.example.com", "address [host.example.com:443: missing ']' in address"),
            ("[invalid", "address [invalid:443: missing ']' in address"),
            ("https://host.example.com", r#"invalid port "//host.example.com""#),
            ("host:0", r#"invalid port "0""#),
            ("host:65536", r#"invalid port "65536""#),
            ("host:99999999999999999999", r#"invalid port "99999999999999999999""#),
        ];
        for (text, wanted) in cases {
            let error = Endpoint::parse(text, 443).expect_err(text);
            assert_eq!(error.to_string(), wanted, "{text}");
        }
    }

    #[test]
    fn the_advertised_url_omits_the_https_port_and_keeps_brackets() {
        for (text, wanted) in [
            ("host.example.com", "https://host.example.com"),
            ("host.example.com:443", "https://host.example.com"),
            ("host.example.com:8443", "https://host.example.com:8443"),
            ("HoSt", "https://HoSt"),
            ("2001:db8::1", "https://[2001:db8::1]"),
            ("[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
        ] {
            assert_eq!(Endpoint::parse(text, 443).unwrap().advertised(), wanted);
        }
    }
}
