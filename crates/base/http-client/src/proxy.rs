//! Connections through a proxy: `CONNECT` of HTTP/1.1, with or without TLS to the proxy, and
//! SOCKS5.

use std::fmt;
use std::future::ready;
use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::rt::TokioIo;
use pinniped_go_compat::io as go_io;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower::{ServiceExt as _, service_fn};
use url::Url;

use crate::dial::{ConnectError, Stream, Target};
use crate::upstream::Dial;

/// Maximum number of bytes that are read of a proxy's response to CONNECT.
const MAX_RESPONSE: usize = 16 * 1024;

/// The error for the address of a proxy that is not a URL. Unlike Go, it does not contain the
/// address, because that may contain a password, and the error is logged and part of statuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid proxy address: {0}")]
pub struct ProxyAddressError(#[source] url::ParseError);

/// A proxy that opens connections to servers.
///
/// ```
/// use pinniped_http_client::proxy::Proxy;
///
/// // An address without a scheme uses `http`.
/// assert_eq!(Proxy::parse("proxy.example:3128"), Proxy::parse("http://proxy.example:3128"));
/// assert!(Proxy::parse("http://[bad").is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy(Url);

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password.
        f.debug_tuple("Proxy").field(&self.0.host_str().unwrap_or_default()).finish()
    }
}

impl Proxy {
    /// Parses the address of a proxy. An address without a scheme uses `http`.
    ///
    /// # Errors
    /// Returns an error when the address is not a URL.
    pub fn parse(address: &str) -> Result<Self, ProxyAddressError> {
        let parsed = Url::parse(address);
        if let Ok(proxy) = &parsed
            && proxy.has_host()
        {
            return Ok(Self(proxy.clone()));
        }
        let problem = match parsed {
            Err(error) if address.contains("://") => error,
            _ => match Url::parse(&format!("http://{address}")) {
                Ok(proxy) => return Ok(Self(proxy)),
                Err(error) => error,
            },
        };
        Err(ProxyAddressError(problem))
    }

    /// Returns whether the connection to the proxy itself is encrypted.
    pub(crate) fn has_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Opens a connection to `target` through a proxy without TLS. The caller sets the deadline.
    pub(crate) async fn connect(&self, target: &Target) -> Result<TcpStream, ConnectError> {
        let scheme = self.0.scheme();
        if !matches!(scheme, "http" | "socks5" | "socks5h") {
            return Err(failed(&format!("proxies with scheme {scheme} are not supported")));
        }
        let (_, stream) = self.reach().await?;
        if scheme == "http" { self.tunnel(stream, target).await } else { self.socks5(stream, target).await }
    }

    /// Opens a connection to `target` through a proxy with TLS, which `tls` verifies. The caller
    /// sets the deadline.
    pub(crate) async fn connect_with_tls(
        &self,
        target: &Target,
        tls: &ClientConfig,
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        let (address, stream) = self.reach().await?;
        let mut tls = tls.clone();
        // CONNECT is a request of HTTP/1.1.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = address.handshake(Arc::new(tls), stream).await;
        let stream = stream.map_err(|error| failed(&error.message))?;
        self.tunnel(stream, target).await
    }

    /// Connects to the proxy.
    async fn reach(&self) -> Result<(Target, TcpStream), ConnectError> {
        let address = self.address().ok_or_else(|| failed("proxy URL has no host"))?;
        let stream = address.connect().await.map_err(|error| failed(&error.message))?;
        Ok((address, stream))
    }

    /// Returns the endpoint of the proxy.
    fn address(&self) -> Option<Target> {
        let default_port = if self.0.scheme().starts_with("socks") { 1080 } else { 80 };
        Target::with_default_port(&self.0, default_port)
    }

    /// Opens a tunnel with CONNECT. The text of a refusal is the reason phrase of the proxy, as in
    /// Go. (`Tunnel` of hyper-util does not return it.)
    async fn tunnel<S>(&self, mut stream: S, target: &Target) -> Result<S, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let io_failed = |error: io::Error| failed(&go_io::text(&error));
        stream.write_all(self.connect_request(target).as_bytes()).await.map_err(io_failed)?;
        stream.flush().await.map_err(io_failed)?;
        let mut response = Vec::new();
        // Reads byte by byte, because the bytes after the response belong to TLS. This happens once
        // per connection.
        while !response.ends_with(b"\r\n\r\n") {
            if response.len() >= MAX_RESPONSE {
                return Err(failed("response of the proxy is too long"));
            }
            response.push(stream.read_u8().await.map_err(io_failed)?);
        }
        let line = String::from_utf8_lossy(response.split(|byte| *byte == b'\r').next().unwrap_or_default())
            .into_owned();
        let status = line.split_once(' ').map(|(_, status)| status).unwrap_or_default();
        if status.starts_with("200") {
            return Ok(stream);
        }
        Err(ConnectError::new(status.split_once(' ').map_or("unknown status code", |(_, text)| text)))
    }

    fn connect_request(&self, target: &Target) -> String {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some((name, password)) = self.credentials() {
            let pair = STANDARD.encode(format!("{name}:{password}"));
            request.push_str(&format!("Proxy-Authorization: Basic {pair}\r\n"));
        }
        request.push_str("\r\n");
        request
    }

    /// Requests a connection with SOCKS5 (RFC 1928). The proxy resolves names, for `socks5` and for
    /// `socks5h`, as in Go.
    async fn socks5(&self, stream: TcpStream, target: &Target) -> Result<TcpStream, ConnectError> {
        let proxy = stream.peer_addr().map_or_else(|_| String::new(), |address| address.to_string());
        let refused = |reason: &dyn fmt::Display| {
            let reason = reason.to_string();
            let reason = reason.trim_start_matches("SOCKS error: ");
            ConnectError::new(format!("socks connect tcp {proxy}->{target}: {reason}"))
        };
        let destination = Uri::builder().scheme("https").authority(target.to_string()).path_and_query("/");
        let destination = destination.build().map_err(|error| refused(&error))?;
        let mut stream = Some(TokioIo::new(stream));
        let connected = service_fn(move |_proxy: Uri| {
            ready(stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
        });
        let mut handshake = SocksV5::new(Uri::from_static("socks5://proxy"), connected);
        if let Some((name, password)) = self.credentials() {
            handshake = handshake.with_auth(name, password);
        }
        let stream = handshake.oneshot(destination).await.map_err(|error| refused(&error))?;
        Ok(stream.into_inner())
    }

    /// Returns the decoded name and password of the URL.
    fn credentials(&self) -> Option<(String, String)> {
        let (name, password) = (self.0.username(), self.0.password());
        let decode = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        (!name.is_empty() || password.is_some()).then(|| (decode(name), decode(password.unwrap_or_default())))
    }
}

fn failed(reason: &str) -> ConnectError {
    ConnectError::new(format!("proxyconnect tcp: {reason}"))
}

impl Dial for Proxy {
    fn dial<'a>(
        &'a self,
        host: &'a str,
        port: u16,
        tls: Option<&'a Arc<ClientConfig>>,
    ) -> BoxFuture<'a, Result<Stream, ConnectError>> {
        Box::pin(async move { Target::new(host, port).connect_through(Some(self), tls).await })
    }
}

#[cfg(test)]
mod tests;
