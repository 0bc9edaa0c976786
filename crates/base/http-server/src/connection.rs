//! One connection from the handshake to its end: TLS, then HTTP/2 or HTTP/1.1 as negotiated by
//! ALPN.
//!
//! hyper-util's `auto` builder detects the protocol from the first bytes and waits for them without
//! a timeout. Behind TLS the protocol is already negotiated, so each protocol has its own
//! implementation: hyper for HTTP/1.1, `http2.rs` for HTTP/2. A client without ALPN gets
//! HTTP/1.1, as with a server written in Go.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use pinniped_http_core::delivery::{self, ResponseTimer};
use pinniped_http_core::{BoxError, PlainWrite};
use rustls::ProtocolVersion;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::activity::{Activity, NextStep, RecordedSocket, SocketReturn, Timeouts};
use crate::capacity::{ConnectionPermit, Refusal};
use crate::coalescing::CoalescingSocket;
use crate::http2::Http2;
use crate::in_transit::RecordedWrites;
use crate::limits::Limits;
use crate::service::{self, AnyService, PerConnection, Service};

/// The client of an accepted connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The client's address.
    pub addr: SocketAddr,
    /// The connection's part of the program's capacity.
    pub permit: Arc<ConnectionPermit>,
}

/// The properties of the connection that a request arrived on.
#[derive(Debug)]
pub struct Connection {
    /// The client's address.
    pub peer_addr: SocketAddr,
    /// The local address that the client connected to.
    pub local_addr: SocketAddr,
    /// The certificates that the client sent, its own first; empty when it sent none. The client
    /// has proven that it has the private key, but the chain is not verified: a service that uses
    /// the certificates must verify it.
    pub peer_certificates: Arc<[CertificateDer<'static>]>,
    /// The negotiated TLS version.
    pub tls_version: Option<ProtocolVersion>,
    /// The protocol negotiated by ALPN, if the client offered any.
    pub alpn: Option<Vec<u8>>,
    /// A value that the service stores for the connection.
    pub extension: ConnectionExtension,
    /// The connection's part of the program's capacity.
    pub permit: Arc<ConnectionPermit>,
}

/// Storage for one value of the service, which lives as long as the connection.
#[derive(Default)]
pub struct ConnectionExtension(OnceLock<Box<dyn Any + Send + Sync>>);

impl ConnectionExtension {
    /// Returns the value, and creates it on first use. Returns `None` when a value of another type
    /// is stored.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl fmt::Debug for ConnectionExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() {
            "ConnectionExtension(set)"
        } else {
            "ConnectionExtension(unset)"
        })
    }
}

impl Connection {
    fn new(peer: Peer, local_addr: SocketAddr, tls: &rustls::ServerConnection) -> Self {
        Self {
            peer_certificates: tls.peer_certificates().unwrap_or_default().iter().cloned().collect(),
            tls_version: tls.protocol_version(),
            alpn: tls.alpn_protocol().map(<[u8]>::to_vec),
            ..Self::plain(peer, local_addr)
        }
    }

    fn plain(peer: Peer, local_addr: SocketAddr) -> Self {
        Self {
            peer_addr: peer.addr,
            local_addr,
            peer_certificates: Arc::default(),
            tls_version: None,
            alpn: None,
            extension: ConnectionExtension::default(),
            permit: peer.permit,
        }
    }
}

/// The reason why a connection ended with an error. Log these at debug level at most: clients come
/// and go all the time.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client's certificates need more memory than is available.
    #[error("the client's certificates were refused")]
    Refused(#[source] Refusal),
    /// The TLS handshake exceeded its timeout.
    #[error("the TLS handshake took too long")]
    HandshakeTimeout,
    /// The TLS handshake failed.
    #[error("the TLS handshake failed")]
    Handshake(#[source] std::io::Error),
    /// The connection ended before it was served.
    #[error("the connection is closed")]
    Address(#[source] std::io::Error),
    /// The client exceeded [`Limits::header_read_timeout`].
    #[error("the client did not finish its request headers in time")]
    HeaderTimeout,
    /// The client did not read a response before the deadline of its [`Body`](crate::Body).
    #[error("the client did not read the response in time")]
    ResponseTimeout,
    /// The client did not react to GOAWAY within [`Limits::idle_timeout`].
    #[error("the client did not close the connection in time after GOAWAY")]
    GoAwayTimeout,
    /// The client violated HTTP/1.1, or the connection broke.
    #[error("HTTP/1.1 failed")]
    Http(#[from] hyper::Error),
    /// The client violated HTTP/2, or the connection broke.
    #[error("HTTP/2 failed")]
    Http2(#[source] h2::Error),
    /// The client exceeded [`Limits::h2_ping_timeout`].
    #[error("the client did not respond to a ping in time")]
    PingTimeout,
    /// The client exceeded [`Limits::h2_resets`].
    #[error("the client cancelled too many requests")]
    TooManyResets,
    /// An error of a [`Handler`](crate::Handler) outside of this crate.
    #[error("{0}")]
    Other(#[source] BoxError),
}

impl ConnectionError {
    pub(crate) fn is_handshake(&self) -> bool {
        matches!(self, Self::HandshakeTimeout | Self::Handshake(_))
    }
}

/// Serves HTTPS on an accepted connection until the connection ends. Closes it gracefully when
/// `draining` is cancelled.
///
/// # Errors
/// Returns the reason when the connection ended with an error.
pub fn https<'a>(
    limits: &'a Limits,
    draining: &'a CancellationToken,
    tls: &'a TlsAcceptor,
    service: impl Service,
    stream: TcpStream,
    peer: Peer,
) -> BoxFuture<'a, Result<(), ConnectionError>> {
    boxed_https(limits, draining, tls, service::any(service), stream, peer)
}

/// Boxes the future in this crate: an async function is compiled in the crate that polls it, with
/// the optimization settings of that crate.
#[inline(never)]
fn boxed_https<'a>(
    limits: &'a Limits,
    draining: &'a CancellationToken,
    tls: &'a TlsAcceptor,
    service: AnyService,
    stream: TcpStream,
    peer: Peer,
) -> BoxFuture<'a, Result<(), ConnectionError>> {
    Box::pin(async move { serve_tls(limits, draining, tls, service, stream, peer).await })
}

async fn serve_tls(
    limits: &Limits,
    draining: &CancellationToken,
    tls: &TlsAcceptor,
    service: AnyService,
    stream: TcpStream,
    peer: Peer,
) -> Result<(), ConnectionError> {
    let local_addr = stream.local_addr().map_err(ConnectionError::Address)?;
    let mut handshake = pin!(timeout(limits.handshake_timeout, accept(tls, stream)));
    let tls = tokio::select! {
        biased;
        done = handshake.as_mut() => done,
        // A TLS 1.3 client finishes the handshake before the server does and may have sent a
        // request already. Complete the handshake, so that the client can be sent a GOAWAY.
        () = draining.cancelled() => match timeout(LINGER, handshake).await {
            Ok(done) => done,
            Err(_elapsed) => return Ok(()),
        },
    };
    let tls: TlsStream<PlainWrite<TcpStream>> =
        tls.map_err(|_elapsed| ConnectionError::HandshakeTimeout)?.map_err(ConnectionError::Handshake)?;

    let connection = Connection::new(peer, local_addr, tls.get_ref().1);
    // Both TLS and this connection keep a copy.
    let certificates: usize = connection.peer_certificates.iter().map(|certificate| certificate.len()).sum();
    connection.permit.charge(2 * certificates).map_err(ConnectionError::Refused)?;
    if service.recognizes_client(&connection) {
        connection.permit.confirm();
    }
    serve_http(limits, draining, connection, service, tls).await
}

/// Serves HTTP/1.1 without TLS on an accepted connection.
///
/// # Errors
/// Returns the reason when the connection ended with an error.
pub fn http<'a>(
    limits: &'a Limits,
    draining: &'a CancellationToken,
    service: impl Service,
    stream: TcpStream,
    peer: Peer,
) -> BoxFuture<'a, Result<(), ConnectionError>> {
    boxed_http(limits, draining, service::any(service), stream, peer)
}

/// Boxes the future in this crate, see [`boxed_https`].
#[inline(never)]
fn boxed_http<'a>(
    limits: &'a Limits,
    draining: &'a CancellationToken,
    service: AnyService,
    stream: TcpStream,
    peer: Peer,
) -> BoxFuture<'a, Result<(), ConnectionError>> {
    Box::pin(async move {
        let local_addr = stream.local_addr().map_err(ConnectionError::Address)?;
        serve_http(limits, draining, Connection::plain(peer, local_addr), service, PlainWrite(stream)).await
    })
}

async fn serve_http<T>(
    limits: &Limits,
    draining: &CancellationToken,
    connection: Connection,
    service: AnyService,
    socket: T,
) -> Result<(), ConnectionError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Arc::new(connection);
    let is_h2 = connection.alpn.as_deref() == Some(b"h2");
    let permit = Arc::clone(&connection.permit);
    let activity = Activity::new(Arc::clone(&permit), limits.h2_resets);
    let service = PerConnection { inner: service, connection, activity: Arc::clone(&activity) };
    let timeouts =
        Timeouts { header: (!is_h2).then_some(limits.header_read_timeout), idle: limits.idle_timeout };
    let socket = RecordedWrites::new(socket, Arc::clone(&permit));
    if is_h2 {
        let returned = SocketReturn::new();
        let socket = CoalescingSocket::new(socket);
        let io = RecordedSocket::new(socket.clone(), Arc::clone(&activity), &returned, false);
        let result = {
            let http = pin!(Http2::new(io, service, limits));
            drive(pin!(FlushedWhilePending { http, socket }), &activity, timeouts, draining).await
        };
        close_socket(result, &returned).await
    } else {
        let returned = SocketReturn::new();
        let io = TokioIo::new(RecordedSocket::new(socket, Arc::clone(&activity), &returned, true));
        let result = {
            let http = pin!(h1(limits, &permit).serve_connection(io, service).with_upgrades());
            let mut response_timer = ResponseTimer::default();
            let served = async {
                tokio::select! {
                    biased;
                    ended = drive(http, &activity, timeouts, draining) => ended,
                    () = poll_fn(|cx| response_timer.poll(cx)) => Err(ConnectionError::ResponseTimeout),
                }
            };
            delivery::scope(false, served).await
        };
        close_socket(result, &returned).await
    }
}

/// Closes the socket, if hyper has handed it back, in a way that lets the client read the last
/// bytes.
async fn close_socket<T: AsyncRead + AsyncWrite + Unpin>(
    result: Result<(), ConnectionError>,
    returned: &SocketReturn<T>,
) -> Result<(), ConnectionError> {
    if let Some(socket) = returned.take()
        && !matches!(result, Err(ConnectionError::HeaderTimeout | ConnectionError::ResponseTimeout))
    {
        linger(socket).await;
    }
    result
}

/// An HTTP/2 connection that sends its buffered frames together whenever it waits.
struct FlushedWhilePending<'a, C, T> {
    http: Pin<&'a mut C>,
    socket: CoalescingSocket<T>,
}

impl<C: Graceful, T: AsyncWrite + Unpin> Future for FlushedWhilePending<'_, C, T> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let polled = self.http.as_mut().poll(cx);
        if polled.is_pending() && self.socket.poll_send_buffered(cx) == Poll::Ready(false) {
            // The next flush of the connection returns the error.
            return self.http.as_mut().poll(cx);
        }
        polled
    }
}

impl<C: Graceful, T: AsyncWrite + Unpin> Graceful for FlushedWhilePending<'_, C, T> {
    fn graceful_shutdown(mut self: Pin<&mut Self>) {
        self.http.as_mut().graceful_shutdown();
    }
}

/// Performs the TLS handshake. A client that offers no version from TLS 1.2 on gets a clear alert:
/// rustls checks the extensions of TLS 1.2 before the version, and would send "handshake failure".
async fn accept(
    tls: &TlsAcceptor,
    mut stream: TcpStream,
) -> std::io::Result<TlsStream<PlainWrite<TcpStream>>> {
    // A ClientHello usually arrives in one piece. rustls handles one that does not.
    let mut head = [0; 11];
    let known = stream.peek(&mut head).await?;
    let Some(version) = old_version(&head[..known]) else {
        return tls.accept(PlainWrite(stream)).await;
    };
    let [major, minor] = version.to_be_bytes();
    let alert = [ALERT, major, minor, 0, 2, FATAL, PROTOCOL_VERSION];
    stream.write_all(&alert).await?;
    linger(stream).await;
    Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the client offers no version from TLS 1.2 on"))
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const ALERT: u8 = 21;
const FATAL: u8 = 2;
const PROTOCOL_VERSION: u8 = 70;

/// Returns the highest version of a ClientHello that begins with `head`, if it is below TLS 1.2. A
/// client of TLS 1.3 sends 1.2 in this field (RFC 8446, section 4.1.2).
fn old_version(head: &[u8]) -> Option<u16> {
    match *head {
        // Content type, record version, record length; message type, message length; version.
        [HANDSHAKE, 3, _, _, _, CLIENT_HELLO, _, _, _, major, minor] => {
            let version = u16::from_be_bytes([major, minor]);
            (version < 0x0303).then_some(version)
        }
        _ => None,
    }
}

/// Closes the sending direction and continues to read for a short time. A socket that is closed
/// with unread bytes sends a reset, and on a reset the peer's system discards bytes that the peer
/// has not read yet: the last response, or the GOAWAY.
pub async fn linger(mut socket: impl AsyncRead + AsyncWrite + Unpin) {
    let reading = async {
        socket.shutdown().await?;
        let mut ignored = [0; 512];
        while socket.read(&mut ignored).await? > 0 {}
        std::io::Result::Ok(())
    };
    // The peer has closed, reset, or sends nothing: in each case nothing is left to do.
    let _unimportant = timeout(LINGER, reading).await;
}

fn h1(limits: &Limits, permit: &ConnectionPermit) -> http1::Builder {
    let header_bytes = limits.header_bytes_for(permit);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // `activity` implements this timeout.
        .header_read_timeout(None)
        // Clients written in Go half-close only when they are gone, and the request of such a
        // client must be cancelled, so end of stream ends the request. Tunnels copy half-closes
        // themselves.
        .half_close(false)
        .max_headers(limits.header_fields)
        .max_header_size(header_bytes)
        // The buffer starts at 8 KiB and grows only under load; the headers and the bytes after
        // them must fit.
        .max_buf_size(header_bytes.saturating_add(64 << 10));
    builder
}

/// Runs a connection. Closes it gracefully on drain or idleness, and drops it on slow headers.
async fn drive<C, E>(
    mut http: Pin<&mut C>,
    activity: &Activity,
    timeouts: Timeouts,
    draining: &CancellationToken,
) -> Result<(), ConnectionError>
where
    C: Graceful<Output = Result<(), E>>,
    ConnectionError: From<E>,
{
    let mut closing = false;
    let mut timer =
        pin!(sleep_until(Instant::now() + timeouts.idle.min(timeouts.header.unwrap_or(timeouts.idle))));
    let mut drained = pin!(draining.cancelled());
    loop {
        tokio::select! {
            biased;
            done = http.as_mut() => return Ok(done?),
            () = drained.as_mut(), if !closing => {
                closing = true;
                http.as_mut().graceful_shutdown();
            }
            () = timer.as_mut() => {
                let now = Instant::now();
                match activity.next_step(now, timeouts) {
                    NextStep::CheckAgain(next) => timer.as_mut().reset(next),
                    NextStep::HeaderTimeout => return Err(ConnectionError::HeaderTimeout),
                    NextStep::Idle if closing => return Err(ConnectionError::GoAwayTimeout),
                    NextStep::Idle => {
                        closing = true;
                        http.as_mut().graceful_shutdown();
                        timer.as_mut().reset(now + timeouts.idle);
                    }
                }
            }
        }
    }
}

/// A connection that can be closed gracefully.
pub(crate) trait Graceful: Future {
    /// Stops accepting requests and finishes those that run.
    fn graceful_shutdown(self: Pin<&mut Self>);
}

type Io<T> = TokioIo<RecordedSocket<T>>;

impl<T> Graceful for http1::UpgradeableConnection<Io<T>, PerConnection>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn graceful_shutdown(self: Pin<&mut Self>) {
        http1::UpgradeableConnection::graceful_shutdown(self);
    }
}

/// How long [`linger`] reads from a closing connection, and how long a handshake may still take
/// during a drain.
const LINGER: Duration = Duration::from_millis(500);
