//! Opens single connections: TCP, TLS, and the HTTP version that the caller selects.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pinniped_http_core::PlainWrite;
use pinniped_pki::tls::client_config;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::dial::Dial;
use super::http2::Http2;
use super::keep_alive::Connection as KeepAlive;
use super::socket::{ResetFlag, Socket, Transport, reset_on_close};
use crate::dial::{ConnectError, Stream, tcp_of};

use super::{AddressParams, RequestBody, UpstreamConfigError, UpstreamLimits, UpstreamParams};

/// An upgraded connection has no HTTP/2 pings, so TCP must detect that the server is gone.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// The reason why no connection to the upstream could be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// TCP did not connect in time.
    #[error("dial tcp {0}: i/o timeout")]
    DialTimeout(String),
    /// TCP did not connect.
    #[error("dial tcp {address}: {source}")]
    Dial {
        /// The dialled address.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The proxy in front of the server opened no connection. The error is not a source, because
    /// its text contains that of its cause.
    #[error("{0}")]
    Proxy(ConnectError),
    /// The TLS handshake exceeded its timeout.
    #[error("net/http: TLS handshake timeout")]
    HandshakeTimeout,
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The server did not send its settings in time.
    #[error("http2: timeout awaiting the server's settings")]
    SettingsTimeout,
    /// The HTTP/1.1 handshake failed.
    #[error("HTTP handshake failed: {0}")]
    Http(#[source] hyper::Error),
    /// The HTTP/2 handshake failed.
    #[error("HTTP handshake failed: {0}")]
    Http2(#[source] h2::Error),
    /// The server closed the connection before it could be used.
    #[error("HTTP handshake failed: the server closed the connection")]
    Closed(#[source] io::Error),
}

/// Opens connections, and owns the tasks that drive them: the tasks end when the connector is
/// dropped.
pub(super) struct Connector {
    authority: Authority,
    pub(super) scheme: Scheme,
    address: (String, u16),
    server_name: ServerName<'static>,
    dial: Option<Arc<dyn Dial>>,
    /// The TLS configuration for each protocol, if TLS is used.
    tls: Option<Tls>,
    pub(super) limits: UpstreamLimits,
    /// Whether HTTP/1.1 header names are written as `Content-Type` instead of `content-type`.
    title_case: bool,
    pub(super) tasks: Tasks,
    ended: CancellationToken,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

#[derive(Clone)]
struct Tls {
    h2: TlsConnector,
    http1: TlsConnector,
}

impl Connector {
    pub(super) fn new(params: UpstreamParams) -> Result<Self, UpstreamConfigError> {
        let UpstreamParams { server, roots, profile, server_name, dial, limits } = params;
        let refused = || UpstreamConfigError::Server(server.clone());
        let authority =
            server.authority().filter(|_| server.scheme() == Some(&Scheme::HTTPS)).ok_or_else(refused)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name = match server_name {
            Some(name) => name,
            None => ServerName::try_from(host.clone()).map_err(|_| refused())?,
        };
        let config = |alpn| client_config(profile, roots.clone(), &[alpn]);
        let ended = CancellationToken::new();
        Ok(Self {
            address: (host, authority.port_u16().unwrap_or(443)),
            authority: authority.clone(),
            scheme: Scheme::HTTPS,
            server_name,
            dial,
            tls: Some(Tls { h2: config(b"h2")?.into(), http1: config(b"http/1.1")?.into() }),
            limits,
            // A server written in Go accepts both, but some servers behind it do not.
            title_case: true,
            tasks: Tasks { tracker: TaskTracker::new(), ended: ended.clone() },
            ended,
        })
    }

    pub(super) fn to_address(params: &AddressParams) -> Self {
        let AddressParams { address, tls, limits } = params;
        let text = address.to_string();
        let tls_for = |config: &Arc<ClientConfig>, alpn: &[u8]| {
            let mut config = ClientConfig::clone(config);
            config.alpn_protocols = vec![alpn.to_vec()];
            TlsConnector::from(Arc::new(config))
        };
        let ended = CancellationToken::new();
        Self {
            authority: Authority::try_from(text).expect("an address and a port are an authority"),
            scheme: if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP },
            address: (address.ip().to_string(), address.port()),
            server_name: match tls {
                Some((_, Some(name))) => name.clone(),
                _ => ServerName::IpAddress(address.ip().into()),
            },
            dial: None,
            tls: tls
                .as_ref()
                .map(|(config, _)| Tls { h2: tls_for(config, b"h2"), http1: tls_for(config, b"http/1.1") }),
            limits: limits.clone(),
            // HTTP/2 clients send lower-case names, and other proxies forward them unchanged.
            title_case: false,
            tasks: Tasks { tracker: TaskTracker::new(), ended: ended.clone() },
            ended,
        }
    }

    /// Creates a connector for the same server that shares nothing with this one.
    pub(super) fn another(&self) -> Self {
        let ended = CancellationToken::new();
        Self {
            authority: self.authority.clone(),
            scheme: self.scheme.clone(),
            address: self.address.clone(),
            server_name: self.server_name.clone(),
            dial: self.dial.clone(),
            tls: self.tls.clone(),
            limits: self.limits.clone(),
            title_case: self.title_case,
            tasks: Tasks { tracker: TaskTracker::new(), ended: ended.clone() },
            ended,
        }
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Dials an HTTP/2 connection.
    pub(super) async fn h2(&self) -> Result<Http2, DialError> {
        let stream = self.stream().await?;
        match &self.tls {
            Some(tls) => {
                Http2::handshake(self.secure(&tls.h2, stream).await?, &self.limits, &self.tasks).await
            }
            None => Http2::handshake(stream, &self.limits, &self.tasks).await,
        }
    }

    /// Dials an HTTP/1.1 connection that can be upgraded.
    pub(super) async fn http1(&self) -> Result<(http1::SendRequest<RequestBody>, ResetFlag), DialError> {
        let socket = Socket::new(self.http1_transport().await?);
        let reset = socket.reset_flag().clone();
        let header_bytes = self.limits.header_bytes as usize;
        let (sender, connection) = http1::Builder::new()
            .title_case_headers(self.title_case)
            .max_headers(2000)
            .max_header_size(header_bytes)
            .max_buf_size(header_bytes.saturating_add(64 << 10))
            .handshake(TokioIo::new(socket))
            .await
            .map_err(DialError::Http)?;
        self.tasks.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "an upstream connection failed");
            }
        });
        Ok((sender, reset))
    }

    /// Dials an HTTP/1.1 connection for one request after the other.
    pub(super) async fn keep_alive(&self) -> Result<Box<KeepAlive>, DialError> {
        Ok(KeepAlive::new(self.http1_transport().await?, &self.limits))
    }

    async fn http1_transport(&self) -> Result<Transport, DialError> {
        let stream = self.stream().await?;
        Ok(match &self.tls {
            Some(tls) => Transport::Tls(Box::new(self.secure(&tls.http1, stream).await?)),
            None => Transport::Plain(stream),
        })
    }

    /// Dials an HTTP/1.1 connection for short reads. It has no pings, so TCP closes the connection
    /// when data is not acknowledged for the time in which a ping must be answered. After a
    /// suspended machine wakes up, or a network disappears, the read then uses HTTP/2. Only for
    /// requests without a body, because the timeout also closes a connection on which the peer
    /// accepts no data for that time.
    pub(super) async fn keep_alive_for_reads(&self) -> Result<Box<KeepAlive>, DialError> {
        let connection = self.keep_alive().await?;
        if let Err(error) = connection.set_user_timeout(self.limits.ping_interval + self.limits.ping_timeout)
        {
            tracing::debug!(%error, "could not set a socket option of an upstream connection");
        }
        Ok(connection)
    }

    /// Runs a task that ends when the connector is dropped.
    pub(super) fn spawn(&self, task: impl Future + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Connects to the server, or to its proxy.
    async fn stream(&self) -> Result<PlainWrite<Stream>, DialError> {
        let (host, port) = &self.address;
        let dialled = async {
            match &self.dial {
                None => TcpStream::connect((host.as_str(), *port))
                    .await
                    .map(Stream::Left)
                    .map_err(|source| DialError::Dial { address: format!("{host}:{port}"), source }),
                Some(dial) => {
                    let tls = self.tls.as_ref().map(|tls| tls.http1.config());
                    dial.dial(host, *port, tls).await.map_err(DialError::Proxy)
                }
            }
        };
        let stream = timeout(self.limits.dial_timeout, dialled)
            .await
            .map_err(|_| DialError::DialTimeout(format!("{host}:{port}")))??;
        tune(tcp_of(&stream));
        Ok(PlainWrite(stream))
    }

    /// Performs the TLS handshake. Dropping this future resets the connection.
    async fn secure(
        &self,
        connector: &TlsConnector,
        stream: PlainWrite<Stream>,
    ) -> Result<TlsStream<PlainWrite<Stream>>, DialError> {
        reset_on_close(tcp_of(&stream.0), true);
        let handshake = connector.connect(self.server_name.clone(), stream).into_fallible();
        let connected = timeout(self.limits.handshake_timeout, handshake)
            .await
            .map_err(|_| DialError::HandshakeTimeout)?;
        // After a failure, so that the server receives the alert.
        let stream = connected.as_ref().map_or_else(|(_, stream)| stream, |tls| tls.get_ref().0);
        reset_on_close(tcp_of(&stream.0), false);
        connected.map_err(|(error, _)| DialError::Handshake(error))
    }
}

fn tune(tcp: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE);
    let results = [tcp.set_nodelay(true), SockRef::from(tcp).set_tcp_keepalive(&keepalive)];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "could not set a socket option of an upstream connection");
    }
}

/// Runs the tasks that drive connections. They all end when the [`Connector`] is dropped.
#[derive(Clone)]
pub(super) struct Tasks {
    tracker: TaskTracker,
    ended: CancellationToken,
}

impl Tasks {
    pub(super) fn spawn(&self, task: impl Future + Send + 'static) {
        let ended = self.ended.clone();
        self.tracker.spawn(async move {
            let mut task = pin!(task);
            let mut cancelled = pin!(ended.cancelled());
            let mut is_registered = false;
            // This code runs for every request. The waker of a task does not change, so registering
            // it once is enough.
            poll_fn(|cx| {
                let was_registered = std::mem::replace(&mut is_registered, true);
                if ended.is_cancelled() || !was_registered && cancelled.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                task.as_mut().poll(cx).map(drop)
            })
            .await;
        });
    }
}
