//! Selection of the proxy that the environment configures for a server, by the rules of Go's
//! `golang.org/x/net/http/httpproxy`.
//!
//! hyper-util's matcher has the rules of curl, which differ from these: see
//! `docs/adr/0010-proxy-environment.md`. The table in the tests of this module has the cases.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use crate::proxy::{Proxy, ProxyAddressError};

/// The error for a proxy that applies to a server but cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyEnvironmentError {
    /// The address of the proxy is not a URL.
    #[error(transparent)]
    Address(#[from] ProxyAddressError),
    /// `HTTP_PROXY` may be a header field of a request to a CGI program.
    #[error("refusing to use HTTP_PROXY value in CGI environment; see golang.org/s/cgihttpproxy")]
    Cgi,
}

/// The values of the proxy variables at the time of creation.
///
/// ```
/// use pinniped_http_client::proxy_environment::ProxyEnvironment;
///
/// let environment = ProxyEnvironment::new("http://proxy.example:3128", ".internal,10.0.0.0/8");
/// let is_proxied = |url: &str| environment.proxy_for(&url.parse().unwrap()).unwrap().is_some();
/// assert!(is_proxied("https://login.example"));
/// assert!(!is_proxied("https://webhook.internal"));
/// assert!(!is_proxied("https://10.1.2.3"));
/// assert!(!is_proxied("https://localhost"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    http_proxy: String,
    https_proxy: String,
    /// The entries of `NO_PROXY`.
    exemptions: Vec<Exemption>,
    is_cgi: bool,
}

impl fmt::Debug for ProxyEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs of the proxies may contain passwords.
        f.debug_struct("ProxyEnvironment").field("exemptions", &self.exemptions).finish_non_exhaustive()
    }
}

impl ProxyEnvironment {
    /// Reads `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` of this process, or their lower-case forms.
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads the variables with `read`, which returns the value of a variable.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Self {
        let non_empty = |name: &str| read(name).filter(|value| !value.is_empty());
        let either = |upper: &str, lower: &str| non_empty(upper).or_else(|| non_empty(lower));
        Self {
            http_proxy: either("HTTP_PROXY", "http_proxy").unwrap_or_default(),
            https_proxy: either("HTTPS_PROXY", "https_proxy").unwrap_or_default(),
            exemptions: exemptions(&either("NO_PROXY", "no_proxy").unwrap_or_default()),
            is_cgi: non_empty("REQUEST_METHOD").is_some(),
        }
    }

    /// Creates an environment from the values of `HTTPS_PROXY` and `NO_PROXY`; an empty value means
    /// unset.
    pub fn new(https_proxy: impl Into<String>, no_proxy: impl Into<String>) -> Self {
        Self { https_proxy: https_proxy.into(), exemptions: exemptions(&no_proxy.into()), ..Self::default() }
    }

    /// Returns the proxy for the server of a URL, or `None` for a direct connection.
    ///
    /// # Errors
    /// Returns [`ProxyEnvironmentError`] when a proxy applies but cannot be used.
    pub fn proxy_for(&self, url: &Url) -> Result<Option<Proxy>, ProxyEnvironmentError> {
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(ip)) => ip.to_string(),
            Some(Host::Ipv6(ip)) => ip.to_string(),
            None => return Ok(None),
        };
        self.proxy_for_host(url.scheme() == "https", &host, url.port_or_known_default().unwrap_or(443))
    }

    /// Returns the proxy for a server that is given by its host, an address without brackets.
    /// `is_https` is false for requests over plain HTTP.
    ///
    /// # Errors
    /// As [`ProxyEnvironment::proxy_for`].
    pub fn proxy_for_host(
        &self,
        is_https: bool,
        host: &str,
        port: u16,
    ) -> Result<Option<Proxy>, ProxyEnvironmentError> {
        let address = if is_https { &self.https_proxy } else { &self.http_proxy };
        if address.is_empty() {
            return Ok(None);
        }
        if !is_https && self.is_cgi {
            return Err(ProxyEnvironmentError::Cgi);
        }
        if self.is_exempt(host, port) {
            return Ok(None);
        }
        Ok(Some(Proxy::parse(address)?))
    }

    fn is_exempt(&self, host: &str, port: u16) -> bool {
        let ip = host.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return true;
        }
        let name = to_ascii(host.trim()).to_ascii_lowercase();
        self.exemptions.iter().any(|exemption| exemption.covers(&name, ip, port))
    }
}

/// One entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exemption {
    /// `*`
    Everything,
    /// Addresses whose first bits are equal to those of `address`.
    Network { address: IpAddr, bits: u32 },
    /// One address.
    Address { address: IpAddr, port: Option<u16> },
    /// The names that end with `suffix`, which begins with a dot, and with `apex` also the name
    /// after that dot.
    Domain { suffix: String, apex: bool, port: Option<u16> },
}

fn exemptions(no_proxy: &str) -> Vec<Exemption> {
    no_proxy.split(',').filter_map(|entry| Exemption::parse(&entry.trim().to_lowercase())).collect()
}

impl Exemption {
    /// Parses an entry in lower case. Entries that no server matches are ignored.
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Some((address, bits)) = network(entry) {
            return Some(Self::Network { address, bits });
        }
        let (host, port) = split_port(entry).unwrap_or((entry, ""));
        let port = match port {
            "" => None,
            port => Some(port.parse().ok().filter(|number: &u16| number.to_string() == port)?),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address { address: address.to_canonical(), port });
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let below = host.strip_prefix('.');
        let name = below.unwrap_or(host);
        if host.is_empty() {
            return None;
        }
        Some(Self::Domain { suffix: format!(".{}", to_ascii(name)), apex: below.is_none(), port })
    }

    fn covers(&self, name: &str, ip: Option<IpAddr>, port: u16) -> bool {
        match self {
            Self::Everything => true,
            Self::Network { address, bits } => ip.is_some_and(|ip| is_inside(ip, *address, *bits)),
            Self::Address { address, port: only } => {
                ip == Some(*address) && only.is_none_or(|only| only == port)
            }
            Self::Domain { suffix, apex, port: only } => {
                ip.is_none()
                    && (name.ends_with(suffix) || *apex && name == &suffix[1..])
                    && only.is_none_or(|only| only == port)
            }
        }
    }
}

/// Parses an address and the length of its prefix, as Go's `net.ParseCIDR`.
fn network(entry: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = entry.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    // `parse` would also accept a sign.
    let bits: u32 = bits.bytes().all(|byte| byte.is_ascii_digit()).then_some(bits)?.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    if bits > width {
        return None;
    }
    // Go compares addresses of IPv4 that are mapped into IPv6 as addresses of IPv4.
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) if address.is_ipv6() => {
            Some(bits.checked_sub(96).map_or((address, bits), |bits| (v4, bits)))
        }
        same => Some((same, bits)),
    }
}

fn is_inside(ip: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            ip.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

/// Splits `host:port` or `[host]:port`, as Go's `net.SplitHostPort`.
fn split_port(entry: &str) -> Option<(&str, &str)> {
    let (host, port) = match entry.strip_prefix('[') {
        Some(rest) => rest.split_once(']').and_then(|(host, rest)| Some((host, rest.strip_prefix(':')?)))?,
        None => entry.rsplit_once(':').filter(|(host, _)| !host.contains(':'))?,
    };
    let is_plain = |text: &str| !text.contains(['[', ']', ':']);
    (is_plain(port) && (entry.starts_with('[') || is_plain(host))).then_some((host, port))
}

/// Returns the form of a name that is sent in DNS. A name that has none stays as it is.
fn to_ascii(name: &str) -> Cow<'_, str> {
    if !name.is_ascii()
        && let Ok(Host::Domain(ascii)) = Host::parse(name)
    {
        return ascii.into();
    }
    name.into()
}

#[cfg(test)]
mod tests;
