//! One connection from handshake to end: TLS, then HTTP/2 or HTTP/1.1 as ALPN decided.
//!
//! hyper-util's `auto` builder guesses the protocol from the first bytes and waits for them without a timeout;
//! behind TLS the client has already said what it speaks, so each protocol is served by its own: HTTP/1.1 by hyper,
//! HTTP/2 by [`crate::http2`]. No ALPN means HTTP/1.1, as with Go.

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
use rustls::ProtocolVersion;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::activity::{Activity, Returned, Timeouts, Verdict, Watched};
use crate::body::BoxError;
use crate::capacity::{ConnectionPermit, Refusal};
use crate::cork::Corked;
use crate::delivery::{Overdue, delivers};
use crate::http2::Http2;
use crate::limits::Limits;
use crate::service::{self, AnyService, PerConnection, Service};
use crate::single::Single;

/// The client of an accepted connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub addr: SocketAddr,
    /// Its connection's part of the program's capacity.
    pub permit: Arc<ConnectionPermit>,
}

/// What is known about the connection of a request.
#[derive(Debug)]
pub struct Connection {
    /// The client's address.
    pub peer_addr: SocketAddr,
    /// Our address, as the client dialled it.
    pub local_addr: SocketAddr,
    /// The certificates the client sent, its own first; empty when it sent none. Possession of the key is
    /// proven, nothing else is: whoever uses them must verify the chain.
    pub peer_certificates: Arc<[CertificateDer<'static>]>,
    /// The negotiated TLS version.
    pub tls_version: Option<ProtocolVersion>,
    /// The protocol chosen by ALPN, if the client offered any.
    pub alpn: Option<Vec<u8>>,
    /// What the service keeps for the connection.
    pub kept: Kept,
    /// The connection's part of the program's capacity.
    pub permit: Arc<ConnectionPermit>,
}

/// Room for one thing of the service's own, which lives as long as the connection.
#[derive(Default)]
pub struct Kept(OnceLock<Box<dyn Any + Send + Sync>>);

impl Kept {
    /// The thing, made at the first time. `None` when something of another type is there.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Kept(something)" } else { "Kept(nothing)" })
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
            kept: Kept::default(),
            permit: peer.permit,
        }
    }
}

/// Why a connection ended other than well. Never worth more than a debug line: clients come and go.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client sent more than there is memory for.
    #[error("the client's certificates were refused")]
    Refused(#[source] Refusal),
    /// Nothing for too long, or too little.
    #[error("the TLS handshake took too long")]
    HandshakeTimeout,
    /// One of both did not want the other.
    #[error("the TLS handshake failed")]
    Handshake(#[source] std::io::Error),
    /// It ended before it began.
    #[error("the connection has no address any more")]
    Address(#[source] std::io::Error),
    /// Over [`Limits::header_read_timeout`].
    #[error("the client did not finish its request headers in time")]
    HeadersTooSlow,
    /// Over an [`EndBy`].
    #[error("the client did not take its answer in time")]
    AnswerTooSlow,
    /// GOAWAY was not answered within [`Limits::idle_timeout`].
    #[error("the client did not answer an orderly end")]
    UnansweredGoodbye,
    /// The client broke its rules, or the connection broke.
    #[error("HTTP failed")]
    Http(#[from] hyper::Error),
    /// The same over HTTP/2.
    #[error("HTTP failed")]
    Http2(#[source] h2::Error),
    /// Over [`Limits::h2_ping_timeout`].
    #[error("the client does not answer pings")]
    Silent,
    /// Over [`Limits::h2_resets`].
    #[error("the client took back too many requests")]
    TooManyResets,
    /// What a [`Handler`](crate::Handler) of another kind has to say.
    #[error("{0}")]
    Other(#[source] BoxError),
}

impl ConnectionError {
    pub(crate) fn is_handshake(&self) -> bool {
        matches!(self, Self::HandshakeTimeout | Self::Handshake(_))
    }
}

/// Serves HTTPS on an accepted connection, to its end or in an orderly way until `draining` is cancelled.
///
/// # Errors
/// When it did not end well.
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

/// In a box made here: what an async function does is built where it is polled, and with the settings of that crate.
#[inline(never)]
fn boxed_https<'a>(
    limits: &'a Limits,
    draining: &'a CancellationToken,
    tls: &'a TlsAcceptor,
    service: AnyService,
    stream: TcpStream,
    peer: Peer,
) -> BoxFuture<'a, Result<(), ConnectionError>> {
    Box::pin(async move { shake_hands(limits, draining, tls, service, stream, peer).await })
}

async fn shake_hands(
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
        // A TLS 1.3 client is through before we are and may have asked something already: see it through to
        // the point where it can be told to go.
        () = draining.cancelled() => match timeout(LINGER, handshake).await {
            Ok(done) => done,
            Err(_elapsed) => return Ok(()),
        },
    };
    let tls: TlsStream<Single<TcpStream>> =
        tls.map_err(|_elapsed| ConnectionError::HandshakeTimeout)?.map_err(ConnectionError::Handshake)?;

    let connection = Connection::new(peer, local_addr, tls.get_ref().1);
    // Kept by TLS and by us.
    let certificates: usize = connection.peer_certificates.iter().map(|certificate| certificate.len()).sum();
    connection.permit.charge(2 * certificates).map_err(ConnectionError::Refused)?;
    if service.knows(&connection) {
        connection.permit.confirm();
    }
    speak(limits, draining, connection, service, tls).await
}

/// The same without TLS, for HTTP/1.1 only.
///
/// # Errors
/// When it did not end well.
pub fn http<'a>(
    limits: &'a Limits,
    draining: &'a CancellationToken,
    service: impl Service,
    stream: TcpStream,
    peer: Peer,
) -> BoxFuture<'a, Result<(), ConnectionError>> {
    boxed_http(limits, draining, service::any(service), stream, peer)
}

/// As [`boxed_https`].
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
        speak(limits, draining, Connection::plain(peer, local_addr), service, Single(stream)).await
    })
}

async fn speak<T>(
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
    if is_h2 {
        let returned = Returned::new();
        let socket = Corked::new(socket);
        let io = Watched::new(socket.clone(), Arc::clone(&activity), &returned, false);
        let outcome = {
            let http = pin!(Http2::new(io, service, limits));
            drive(pin!(Released { http, socket }), &activity, timeouts, draining).await
        };
        part(outcome, &returned).await
    } else {
        let returned = Returned::new();
        let io = TokioIo::new(Watched::new(socket, Arc::clone(&activity), &returned, true));
        let outcome = {
            let http = pin!(h1(limits, &permit).serve_connection(io, service).with_upgrades());
            let mut overdue = Overdue::default();
            let served = async {
                tokio::select! {
                    biased;
                    ended = drive(http, &activity, timeouts, draining) => ended,
                    () = poll_fn(|cx| overdue.poll(cx)) => Err(ConnectionError::AnswerTooSlow),
                }
            };
            delivers(false, served).await
        };
        part(outcome, &returned).await
    }
}

/// Closes the socket, if hyper has given it back, in an order that lets the client read our last words.
async fn part<T: AsyncRead + AsyncWrite + Unpin>(
    outcome: Result<(), ConnectionError>,
    returned: &Returned<T>,
) -> Result<(), ConnectionError> {
    if let Some(socket) = returned.take()
        && !matches!(outcome, Err(ConnectionError::HeadersTooSlow | ConnectionError::AnswerTooSlow))
    {
        linger(socket).await;
    }
    outcome
}

/// A connection of HTTP/2 whose frames are sent together whenever it waits.
struct Released<'a, C, T> {
    http: Pin<&'a mut C>,
    socket: Corked<T>,
}

impl<C: Graceful, T: AsyncWrite + Unpin> Future for Released<'_, C, T> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let polled = self.http.as_mut().poll(cx);
        if polled.is_pending() && self.socket.poll_release(cx) == Poll::Ready(false) {
            // It hears of it by its next flush.
            return self.http.as_mut().poll(cx);
        }
        polled
    }
}

impl<C: Graceful, T: AsyncWrite + Unpin> Graceful for Released<'_, C, T> {
    fn graceful_shutdown(mut self: Pin<&mut Self>) {
        self.http.as_mut().graceful_shutdown();
    }
}

/// The TLS handshake, with a clear answer for clients that know no version from TLS 1.2 on.
///
/// rustls misses the extensions of TLS 1.2 before it looks at the version, and answers "handshake failure".
async fn accept(tls: &TlsAcceptor, mut stream: TcpStream) -> std::io::Result<TlsStream<Single<TcpStream>>> {
    // A ClientHello comes in one piece; of one that does not, rustls is the judge.
    let mut head = [0; 11];
    let known = stream.peek(&mut head).await?;
    let Some(version) = old_version(&head[..known]) else {
        return tls.accept(Single(stream)).await;
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

/// The highest version of a ClientHello which begins with `head`, when that is below TLS 1.2. A client of TLS
/// 1.3 says 1.2 here (RFC 8446, 4.1.2).
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

/// Closes our direction and reads on for a moment. A socket that is closed with unread bytes sends a reset, and
/// a reset makes the peer's system throw away what it has not read yet: the last answer, or the GOAWAY.
pub async fn linger(mut socket: impl AsyncRead + AsyncWrite + Unpin) {
    let farewell = async {
        socket.shutdown().await?;
        let mut ignored = [0; 512];
        while socket.read(&mut ignored).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Gone, reset or silent: either way there is nothing left to do for this client.
    let _unimportant = timeout(LINGER, farewell).await;
}

fn h1(limits: &Limits, permit: &ConnectionPermit) -> http1::Builder {
    let header_bytes = limits.header_bytes_for(permit);
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Our own watch does it, see `activity`.
        .header_read_timeout(None)
        // Go's clients half-close only when they are gone, and a request of a client that is gone must be
        // cancelled, so end of stream ends the request. Tunnels copy half-closes themselves.
        .half_close(false)
        .max_headers(limits.header_fields)
        .max_header_size(header_bytes)
        // The buffer starts at 8 KiB and grows only under load; the headers and what follows must fit.
        .max_buf_size(header_bytes.saturating_add(64 << 10));
    builder
}

/// Runs a connection, ends it in an orderly way on drain or idleness, at once on slow headers.
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
    let mut saying_goodbye = false;
    let mut timer =
        pin!(sleep_until(Instant::now() + timeouts.idle.min(timeouts.header.unwrap_or(timeouts.idle))));
    let mut drained = pin!(draining.cancelled());
    loop {
        tokio::select! {
            biased;
            done = http.as_mut() => return Ok(done?),
            () = drained.as_mut(), if !saying_goodbye => {
                saying_goodbye = true;
                http.as_mut().graceful_shutdown();
            }
            () = timer.as_mut() => {
                let now = Instant::now();
                match activity.verdict(now, timeouts) {
                    Verdict::LookAgain(next) => timer.as_mut().reset(next),
                    Verdict::HeadersTooSlow => return Err(ConnectionError::HeadersTooSlow),
                    Verdict::Idle if saying_goodbye => return Err(ConnectionError::UnansweredGoodbye),
                    Verdict::Idle => {
                        saying_goodbye = true;
                        http.as_mut().graceful_shutdown();
                        timer.as_mut().reset(now + timeouts.idle);
                    }
                }
            }
        }
    }
}

/// A connection that can be ended in good order.
pub(crate) trait Graceful: Future {
    /// Accept nothing more, finish what runs.
    fn graceful_shutdown(self: Pin<&mut Self>);
}

type Io<T> = TokioIo<Watched<T>>;

impl<T> Graceful for http1::UpgradeableConnection<Io<T>, PerConnection>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn graceful_shutdown(self: Pin<&mut Self>) {
        http1::UpgradeableConnection::graceful_shutdown(self);
    }
}

/// How long a closing connection is read on, see [`linger`], and a handshake may still take in a drain.
const LINGER: Duration = Duration::from_millis(500);
