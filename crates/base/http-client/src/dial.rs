//! Encrypted connections to an endpoint, directly or through a proxy.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use url::{Host, Url};

use crate::proxy::Proxy;
use pinniped_go_compat::{io as go_io, network as go_text};

/// Time in which all addresses of a name together must connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum time for one address.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The error of a failed connection. The text is the one that Go prints.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    /// The text that a program written in Go prints for this failure.
    pub message: String,
    /// The failed read, write or connect, if that was the cause.
    #[source]
    pub source: Option<std::io::Error>,
}

impl ConnectError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    fn io(source: std::io::Error, message: String) -> Self {
        Self { message, source: Some(source) }
    }
}

/// A stream to a server: a TCP connection to it or to its proxy, or a TLS session with its proxy.
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Returns the TCP connection of a stream.
pub(crate) fn tcp_of(stream: &Stream) -> &TcpStream {
    match stream {
        Stream::Left(tcp) => tcp,
        Stream::Right(tls) => tls.get_ref().0,
    }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Without brackets.
    host: String,
    port: u16,
}

impl Target {
    /// Creates an endpoint from a host, an address without brackets, and a port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Returns the endpoint that an `https` URL names; `None` if the URL has no host.
    pub fn of(url: &Url) -> Option<Self> {
        Self::with_default_port(url, 443)
    }

    pub(crate) fn with_default_port(url: &Url, port: u16) -> Option<Self> {
        let host = match url.host()? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(ip) => ip.to_string(),
            Host::Ipv6(ip) => ip.to_string(),
        };
        Some(Self { host, port: url.port_or_known_default().unwrap_or(port) })
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let failed = |reason: &str| ConnectError::new(format!("dial tcp: lookup {}: {reason}", self.host));
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses: Vec<_> = found.map_err(|error| failed(go_text::lookup(&error)))?.collect();
        if addresses.is_empty() { Err(failed("no such host")) } else { Ok(addresses) }
    }

    /// Connects to the first address that accepts a connection. If none does, returns the first
    /// error.
    ///
    /// # Errors
    /// Returns an error with the text that Go prints.
    pub async fn connect(&self) -> Result<TcpStream, ConnectError> {
        let addresses = self.addresses().await?;
        let share = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let each = (CONNECT_TIMEOUT / share).max(MIN_CONNECT_TIMEOUT);
        let mut first_failure = None;
        for address in addresses {
            let failure = match tokio::time::timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // A request is one small write, and must not be delayed.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => {
                    let text = format!("dial tcp {address}: connect: {}", go_io::text(&error));
                    ConnectError::io(error, text)
                }
                Err(_) => ConnectError::new(format!("dial tcp {address}: i/o timeout")),
            };
            first_failure.get_or_insert(failure);
        }
        Err(first_failure.unwrap_or_else(|| ConnectError::new(format!("dial tcp {self}: no addresses"))))
    }

    /// Opens a TCP connection, directly or through a proxy without TLS. The caller sets the
    /// deadline.
    pub(crate) async fn tcp_through(&self, proxy: Option<&Proxy>) -> Result<TcpStream, ConnectError> {
        match proxy {
            None => self.connect().await,
            Some(proxy) => proxy.connect(self).await,
        }
    }

    /// Opens a connection, directly or through any proxy. With a configuration `tls`, the caller
    /// speaks TLS with the server, and the connection to a proxy with the scheme `https` is
    /// encrypted, too. The caller sets the deadline.
    pub(crate) async fn connect_through(
        &self,
        proxy: Option<&Proxy>,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Stream, ConnectError> {
        match (proxy, tls) {
            (Some(proxy), Some(tls)) if proxy.has_tls() => {
                Ok(Stream::Right(Box::new(proxy.connect_with_tls(self, tls).await?)))
            }
            _ => self.tcp_through(proxy).await.map(Stream::Left),
        }
    }

    /// Completes a TLS handshake in which the server must have a certificate for this host.
    pub(crate) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        tls: Arc<ClientConfig>,
        stream: S,
    ) -> Result<TlsStream<S>, ConnectError> {
        let name = ServerName::try_from(self.host.clone())
            .map_err(|_| ConnectError::new(format!("lookup {}: invalid server name", self.host)))?;
        TlsConnector::from(tls).connect(name, stream).await.map_err(|error| {
            let text = go_text::handshake(&error, &self.host);
            ConnectError::io(error, text)
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.parse::<Ipv6Addr>().is_ok() {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Connects to one endpoint.
pub struct Dialer {
    /// The server.
    pub target: Target,
    /// The proxy in front of the server; `None` to connect directly.
    pub proxy: Option<Proxy>,
    /// The TLS configuration that verifies the server.
    pub tls: Arc<ClientConfig>,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Dialer {
    /// Connects and completes the TLS handshake. The caller sets the deadline. The certificate of a
    /// proxy with the scheme `https` is verified like that of the server, as in Go.
    ///
    /// # Errors
    /// Returns an error with the text that Go prints.
    pub async fn dial(&self) -> Result<TlsStream<Stream>, ConnectError> {
        let stream = self.target.connect_through(self.proxy.as_ref(), Some(&self.tls)).await?;
        self.target.handshake(Arc::clone(&self.tls), stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_a_port_and_brackets_where_needed() {
        for (url, expected) in [
            ("https://example.com/authenticate", "example.com:443"),
            ("https://example.com:8443", "example.com:8443"),
            ("https://127.0.0.1:1", "127.0.0.1:1"),
            ("https://[::1]/x", "[::1]:443"),
        ] {
            let target = Target::of(&Url::parse(url).unwrap()).unwrap();
            assert_eq!(target.to_string(), expected, "{url}");
        }
    }
}
