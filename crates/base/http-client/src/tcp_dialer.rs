//! TCP connections to any server, direct or through the proxy that the rules of Go programs select
//! ([`crate::proxy_environment`]).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;

use crate::dial::{ConnectError, Stream, Target};
use crate::proxy::{Proxy, ProxyAddressError};
use crate::proxy_environment::{ProxyEnvironment, ProxyEnvironmentError};

/// Opens TCP connections; cheap to clone. For one server with TLS, see [`crate::dial::Dialer`].
#[derive(Clone, Default)]
pub struct TcpDialer {
    environment: Arc<ProxyEnvironment>,
    /// The proxy for all servers, in place of the environment's.
    fixed: Option<Arc<Result<Proxy, ProxyAddressError>>>,
}

impl fmt::Debug for TcpDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpDialer").finish_non_exhaustive()
    }
}

impl TcpDialer {
    /// Creates a dialer with the proxies of an environment.
    pub fn new(environment: impl Into<ProxyEnvironment>) -> Self {
        Self { environment: Arc::new(environment.into()), fixed: None }
    }

    /// Uses `proxy` for all connections, unless it is empty.
    #[must_use]
    pub fn with_proxy(self, proxy: Option<&str>) -> Self {
        match proxy.filter(|proxy| !proxy.is_empty()) {
            Some(proxy) => Self { fixed: Some(Arc::new(Proxy::parse(proxy))), ..self },
            None => self,
        }
    }

    /// Connects to `host` (an IPv6 address without brackets) and `port`, for a request over https
    /// or http. The error has Go's text: `dial tcp 127.0.0.1:1: connect: connection refused`.
    ///
    /// # Errors
    /// Returns an error when the proxy or the server cannot be reached.
    pub async fn dial(&self, host: &str, port: u16, https: bool) -> Result<TcpStream, ConnectError> {
        let proxy = self.proxy_for(host, port, https)?;
        Target::new(host, port).tcp_through(proxy.as_ref()).await
    }

    /// Connects in the same way to a server with which the caller speaks TLS. With an `https`
    /// proxy, `tls` also verifies the proxy.
    ///
    /// # Errors
    /// Returns an error when the proxy or the server cannot be reached.
    pub async fn dial_with_tls(
        &self,
        host: &str,
        port: u16,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Stream, ConnectError> {
        let proxy = self.proxy_for(host, port, true)?;
        Target::new(host, port).connect_through(proxy.as_ref(), tls).await
    }

    /// Returns the proxy for a server, or `None` for a direct connection.
    pub(crate) fn proxy_for(
        &self,
        host: &str,
        port: u16,
        https: bool,
    ) -> Result<Option<Proxy>, ConnectError> {
        let proxy = match self.fixed.as_deref() {
            Some(fixed) => fixed.clone().map(Some).map_err(ProxyEnvironmentError::from),
            None => self.environment.proxy_for_host(https, host, port),
        };
        proxy.map_err(|error| ConnectError::new(format!("proxyconnect tcp: {error}")))
    }
}

/// The connector interface of hyper.
impl tower::Service<Uri> for TcpDialer {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
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
    use super::*;

    fn dialer(no_proxy: &str) -> TcpDialer {
        TcpDialer::new(ProxyEnvironment::from_variables(|name| match name {
            "https_proxy" => Some("http://proxy:3128".to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        }))
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
                dialer(no_proxy).proxy_for(host, 443, true).unwrap().is_some(),
                through_proxy,
                "{no_proxy:?} {host}"
            );
        }
        assert_eq!(dialer("").proxy_for("example.com", 80, false).unwrap(), None);
    }

    #[test]
    fn a_fixed_proxy_takes_precedence() {
        let dialer = dialer("*").with_proxy(Some("http://other"));
        for host in ["example.com", "localhost", "127.0.0.1"] {
            let proxy = dialer.proxy_for(host, 443, true).unwrap();
            assert_eq!(proxy, Some(Proxy::parse("http://other").unwrap()), "{host}");
        }
    }

    #[test]
    fn an_invalid_proxy_is_an_error_that_does_not_print_its_address() {
        let dialer = dialer("").with_proxy(Some("http://user:secret@[bad"));
        let error = dialer.proxy_for("example.com", 443, true).unwrap_err().to_string();
        assert!(error.starts_with("proxyconnect tcp: invalid proxy address: "), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
