//! TCP connections, direct or through an HTTP proxy, with the proxy rules of Go programs.
//!
//! The environment variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` (and their lower-case
//! forms) apply. The dialer uses plain HTTP and `CONNECT` to proxies; `https://` and `socks5://`
//! proxies are refused with an error.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Url;

use pinniped_go_compat::{base64 as gobase64, io as go_io};

use crate::environment::Environment;

/// The maximum length of a proxy's response to `CONNECT`, in bytes.
const MAX_PROXY_ANSWER: usize = 8 * 1024;

/// Opens TCP connections; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Dialer {
    rules: Arc<Rules>,
}

#[derive(Debug, Default)]
struct Rules {
    https: Option<String>,
    http: Option<String>,
    exceptions: Vec<Exception>,
    /// Whether the proxy also applies to this machine itself.
    local_too: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Exception {
    Everything,
    Network { address: IpAddr, bits: u32 },
    Domain { name: String, only_below: bool, port: Option<u16> },
}

impl Dialer {
    /// Creates a dialer with the proxies of this environment.
    pub fn new(environment: &Environment) -> Self {
        let either = |upper: &str, lower: &str| {
            environment.non_empty(upper).or_else(|| environment.non_empty(lower)).map(str::to_owned)
        };
        let exceptions = either("NO_PROXY", "no_proxy").unwrap_or_default();
        let rules = Rules {
            https: either("HTTPS_PROXY", "https_proxy"),
            http: either("HTTP_PROXY", "http_proxy"),
            exceptions: exceptions.split(',').filter_map(Exception::parse).collect(),
            local_too: false,
        };
        Self { rules: Arc::new(rules) }
    }

    /// Uses `proxy` for all connections, unless it is empty: the `proxy-url` of a kubeconfig.
    #[must_use]
    pub fn with_proxy(self, proxy: Option<&str>) -> Self {
        match proxy.filter(|proxy| !proxy.is_empty()) {
            Some(proxy) => Self {
                rules: Arc::new(Rules {
                    https: Some(proxy.to_owned()),
                    http: Some(proxy.to_owned()),
                    exceptions: Vec::new(),
                    local_too: true,
                }),
            },
            None => self,
        }
    }

    /// Connects to `host` (an IPv6 address without brackets) and `port`, for a request over https
    /// or http.
    ///
    /// # Errors
    ///
    /// Returns an error with Go's text: `dial tcp 127.0.0.1:1: connect: connection refused`.
    pub async fn dial(&self, host: &str, port: u16, https: bool) -> Result<TcpStream, DialError> {
        match self.rules.proxy_for(host, port, https) {
            Some(proxy) => through(proxy, host, port).await,
            None => straight(host, port).await,
        }
    }
}

/// A connection error with Go's text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DialError(String);

impl Rules {
    fn proxy_for(&self, host: &str, port: u16, https: bool) -> Option<&str> {
        let proxy = if https { self.https.as_deref() } else { self.http.as_deref() }?;
        let address: Option<IpAddr> = host.parse().ok();
        let local = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        let local = local && !self.local_too;
        let excepted = self.exceptions.iter().any(|exception| exception.matches(host, address, port));
        (!local && !excepted).then_some(proxy)
    }
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        if text.is_empty() {
            return None;
        }
        if text == "*" {
            return Some(Self::Everything);
        }
        if let Some((network, bits)) = text.split_once('/')
            && let (Ok(address), Ok(bits)) = (network.parse(), bits.parse())
        {
            return Some(Self::Network { address, bits });
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Some(Self::Network { address, bits: if address.is_ipv4() { 32 } else { 128 } });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (text.as_str(), None),
        };
        let stripped = name.strip_prefix("*.").or_else(|| name.strip_prefix('.'));
        Some(Self::Domain { name: stripped.unwrap_or(name).to_owned(), only_below: stripped.is_some(), port })
    }

    fn matches(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        match self {
            Self::Everything => true,
            Self::Network { address: network, bits } => {
                address.is_some_and(|address| in_network(address, *network, *bits))
            }
            Self::Domain { name, only_below, port: wanted } => {
                let host = host.to_lowercase();
                let below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
                wanted.is_none_or(|wanted| wanted == port) && (below || (!only_below && host == *name))
            }
        }
    }
}

fn in_network(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let prefix = |value: u128, width: u32| value.checked_shr(width.saturating_sub(bits)).unwrap_or(0);
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => prefix(a.to_bits().into(), 32) == prefix(n.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => prefix(a.to_bits(), 128) == prefix(n.to_bits(), 128),
        _ => false,
    }
}

/// Returns the host of a URL, without the brackets of an IPv6 address; empty if it has none.
pub fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}

/// Returns `host:port`, with brackets around an IPv6 address.
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns Go's text for a failed operation on a connection, which starts with the operation.
pub(crate) fn io_text(error: &io::Error) -> String {
    let operation = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: ",
        io::ErrorKind::ConnectionReset => "read: ",
        _ => "",
    };
    format!("{operation}{}", go_io::text(error))
}

async fn straight(host: &str, port: u16) -> Result<TcpStream, DialError> {
    let target = authority(host, port);
    let addresses: Vec<_> = match tokio::net::lookup_host((host, port)).await {
        Ok(addresses) => addresses.collect(),
        Err(_) => return Err(DialError(format!("dial tcp: lookup {host}: no such host"))),
    };
    let mut last = DialError(format!("dial tcp: lookup {target}: no such host"));
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Requests are small and sequential. A failure only costs latency.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(err) => last = DialError(format!("dial tcp {address}: {}", io_text(&err))),
        }
    }
    Err(last)
}

async fn through(proxy: &str, host: &str, port: u16) -> Result<TcpStream, DialError> {
    let with_scheme = if proxy.contains("://") { proxy.to_owned() } else { format!("http://{proxy}") };
    let url = Url::parse(&with_scheme)
        .map_err(|err| DialError(format!("proxyconnect tcp: invalid proxy address: {err}")))?;
    if url.scheme() != "http" {
        return Err(DialError(format!(
            "proxyconnect tcp: proxies with scheme {} are not supported",
            url.scheme()
        )));
    }
    let mut stream = straight(&host_of(&url), url.port_or_known_default().unwrap_or(80))
        .await
        .map_err(|DialError(why)| DialError(format!("proxyconnect tcp: {why}")))?;
    connect(&mut stream, &authority(host, port), &url)
        .await
        .map_err(|err| DialError(format!("proxyconnect tcp: {}", io_text(&err))))?;
    Ok(stream)
}

async fn connect(stream: &mut TcpStream, target: &str, proxy: &Url) -> io::Result<()> {
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if !proxy.username().is_empty() {
        let login =
            format!("{}:{}", decoded(proxy.username()), decoded(proxy.password().unwrap_or_default()));
        request.push_str(&format!("Proxy-Authorization: Basic {}\r\n", gobase64::encode(login.as_bytes())));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    // Read byte by byte, because the bytes after the response belong to the tunnel.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_PROXY_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "answer of the proxy is too long"));
        }
        answer.push(stream.read_u8().await?);
    }
    let answer = String::from_utf8_lossy(&answer);
    let line = answer.lines().next().unwrap_or_default();
    let status = line.split_once(' ').map(|(_, status)| status).unwrap_or_default();
    if status.starts_with("200") { Ok(()) } else { Err(io::Error::other(status.to_owned())) }
}

fn decoded(text: &str) -> String {
    url::form_urlencoded::parse(format!("x={}", text.replace('+', "%2B")).as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

/// The connector interface of hyper and kube.
impl tower::Service<Uri> for Dialer {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move {
            let https = uri.scheme() != Some(&http::uri::Scheme::HTTP);
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
            dialer.dial(&host, port, https).await.map(TokioIo::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn dialer(no_proxy: &str) -> Dialer {
        Dialer::new(&Environment::new(
            Vec::new(),
            HashMap::from([
                ("https_proxy".to_owned(), "http://proxy:3128".to_owned()),
                ("NO_PROXY".to_owned(), no_proxy.to_owned()),
            ]),
        ))
    }

    #[test]
    fn no_proxy_is_parsed_as_in_go() {
        for (no_proxy, host, through_proxy) in [
            ("", "example.com", true),
            ("*", "example.com", false),
            ("example.com", "example.com", false),
            ("example.com", "a.example.com", false),
            ("example.com", "notexample.com", true),
            (".example.com", "example.com", true),
            (".example.com", "a.example.com", false),
            ("*.example.com", "a.example.com", false),
            ("example.com:444", "example.com", true),
            ("example.com:443", "example.com", false),
            ("10.0.0.0/8", "10.1.2.3", false),
            ("10.0.0.0/8", "11.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", false),
            ("fd00::/8", "fd00::1", false),
            ("", "localhost", false),
            ("", "127.0.0.1", false),
            ("", "::1", false),
            (" a , b.c ", "B.C", false),
        ] {
            assert_eq!(
                dialer(no_proxy).rules.proxy_for(host, 443, true).is_some(),
                through_proxy,
                "{no_proxy:?} {host}"
            );
        }
        assert_eq!(dialer("").rules.proxy_for("example.com", 80, false), None);
    }

    #[test]
    fn the_proxy_of_a_kubeconfig_takes_precedence() {
        let dialer = dialer("*").with_proxy(Some("http://other"));
        for host in ["example.com", "localhost", "127.0.0.1"] {
            assert_eq!(dialer.rules.proxy_for(host, 443, true), Some("http://other"), "{host}");
        }
    }
}
