//! A pool of connections to one upstream server.
//!
//! A server allows a limited number of streams on one HTTP/2 connection (often 100), and long
//! responses such as streams of events occupy one each for a long time. hyper-util's pooled client
//! has a single connection for each host and waits indefinitely at that limit. This pool counts
//! streams and dials another connection when one is full, as Go's client does.
//!
//! ```text
//! send() ─► Pool::lease ─ capacity on a connection? ─ yes ─► HTTP/2 stream, counted until its
//!            │                                             body ends
//!            └─ no ─► one dial at a time, other requests wait for it
//! send_http1() ─► one HTTP/1.1 connection for one request, never pooled
//! try_send_keep_alive() ─► idle HTTP/1.1 connections, driven by the request's own task
//!                          (keep_alive.rs)
//! try_send_short() ─► an idle HTTP/1.1 connection if there is one, else send(); after frequent
//!                     misses another one is dialled in the background (dial_policy.rs)
//! ```
//!
//! Each [worker](pinniped_http_core::workers) has its own pool.
//!
//! The size of a request's headers is measured before the request is sent (head.rs): a request for
//! which a server written in Go would close the whole connection is refused, and a request with
//! large headers goes over a connection of its own. A stream of a cancelled request counts for a
//! short time after the reset (lingering.rs).
//!
//! A connection has no state of a user: credentials are headers of single requests. A request is
//! sent again only if it never reached a connection, if the server reported that it did not process
//! the request and there is no body to repeat, or if its connection broke and the request has
//! neither a body nor side effects. A request is never sent again after the server closed the
//! connection with an error such as PROTOCOL_ERROR or ENHANCE_YOUR_CALM, because this request may
//! be the cause.
//!
//! Some servers send GOAWAY to a connection that carried a request without valid credentials (a
//! mitigation of HTTP/2 rapid resets), and some send GOAWAY at random to balance load. Therefore
//! requests with a third party's credential, or with none, must use a
//! [separate](Upstream::separate) set of connections.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, MaxSizeReached};
use http::uri::Authority;
use http::{Method, Request, Response, Uri};
use pinniped_http_core::workers;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use scopeguard::ScopeGuard;
use tokio::sync::Semaphore;

use crate::proxy_environment::{ProxyEnvironment, ProxyEnvironmentError};

mod body;
mod connector;
mod dial;
mod dial_policy;
mod head;
mod http2;
mod idle_pool;
mod keep_alive;
mod pool;
mod socket;
mod upload;

pub use body::{RequestBody, ResponseBody, is_local_reset_error};
pub use connector::DialError;
pub use dial::Dial;
pub use keep_alive::{Http1Error, ParsedResponse, parse_response};

use connector::Connector;
use head::Sharing;
use http2::Failure as Http2Failure;
use keep_alive::Failure;
use pool::Pool;

/// The maximum size of a header list that a server written in Go accepts by default: 1 MiB, and 32
/// bytes for each of ten fields. Such servers announce this value.
const GO_HEADER_LIST: usize = (1 << 20) + 320;

/// The limits and timeouts of the connections to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Time in which TCP must connect.
    pub dial_timeout: Duration,
    /// Time in which the TLS handshake must complete.
    pub handshake_timeout: Duration,
    /// Time without incoming data after which a connection is pinged.
    pub ping_interval: Duration,
    /// Time in which a ping must be answered; otherwise the connection is closed.
    pub ping_timeout: Duration,
    /// Time after which a connection without streams is closed, unless it is the only one.
    pub idle_timeout: Duration,
    /// Time in which the response headers must arrive for a request of the program itself,
    /// including requests with a long response. Forwarded requests have their own deadlines.
    pub response_timeout: Duration,
    /// Maximum number of HTTP/2 connections of each worker.
    pub connections: usize,
    /// Maximum number of HTTP/1.1 connections for [short reads](Upstream::try_send_short) of each
    /// worker. If it is 0, short reads use HTTP/2.
    pub short_reads: usize,
    /// Maximum number of HTTP/2 connections that carry a single request with large headers.
    pub unshared: usize,
    /// Maximum size of a request's header list as HTTP/2 counts it (RFC 9113, section 6.5.2): the
    /// size that the server accepts.
    pub request_header_list: usize,
    /// Maximum number of streams of one connection, even if the server allows more.
    pub streams_per_connection: usize,
    /// Number of bytes that the server may send ahead of a slow reader of one stream. The window of
    /// a connection is the sum of those of all its streams, so that slow readers never block other
    /// streams.
    pub stream_window: u32,
    /// Maximum number of request bytes of one stream that wait for the server.
    pub send_buffer: usize,
    /// Maximum size in bytes of one read from a response over HTTP/1.1. A response can hold as many
    /// bytes while its client does not read.
    pub read_bytes: usize,
    /// Maximum size of all headers of one response, in bytes.
    pub header_bytes: u32,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            dial_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            // The server closes such a connection after 90 s, and a request sent at that moment
            // would fail.
            idle_timeout: Duration::from_secs(30),
            response_timeout: Duration::from_secs(60),
            connections: 256,
            short_reads: 32,
            unshared: 32,
            request_header_list: GO_HEADER_LIST,
            streams_per_connection: 250,
            stream_window: 64 << 10,
            send_buffer: 64 << 10,
            read_bytes: 256 << 10,
            header_bytes: 1 << 20,
        }
    }
}

/// The parameters of an [`Upstream`].
#[derive(Clone, Debug)]
pub struct UpstreamParams {
    /// The URL of the server, `https://host[:port]`.
    pub server: Uri,
    /// The certificate authorities that may sign the server's certificate.
    pub roots: Roots,
    /// TLS versions and cipher suites.
    pub profile: Profile,
    /// The name that the certificate must have, if it is not the host of `server`.
    pub server_name: Option<ServerName<'static>>,
    /// Opens connections in place of a plain TCP connection.
    pub dial: Option<Arc<dyn Dial>>,
    /// The limits and timeouts.
    pub limits: UpstreamLimits,
}

impl UpstreamParams {
    /// Returns parameters with default limits for a server that is reached directly and supports
    /// TLS 1.3.
    pub fn new(server: Uri, roots: CaBundle) -> Self {
        Self {
            server,
            roots: Roots::Bundle(roots),
            profile: Profile::Secure,
            server_name: None,
            dial: None,
            limits: UpstreamLimits::default(),
        }
    }
}

impl UpstreamParams {
    /// Returns the same parameters with the proxy that the environment configures for the server.
    ///
    /// # Errors
    /// Returns an error when a proxy applies but cannot be used.
    pub fn with_proxy_of(self, environment: &ProxyEnvironment) -> Result<Self, UpstreamConfigError> {
        let url = self.server.to_string().parse();
        let url = url.map_err(|_| UpstreamConfigError::Server(self.server.clone()))?;
        let dial = environment.proxy_for(&url)?.map(|proxy| Arc::new(proxy) as Arc<dyn Dial>);
        Ok(Self { dial, ..self })
    }
}

/// The parameters of an [`Upstream`] whose server is given by its address.
#[derive(Clone, Debug)]
pub struct AddressParams {
    /// The address of the server.
    pub address: SocketAddr,
    /// The TLS configuration and the name to request, if there is one; without TLS the connection
    /// is not encrypted.
    pub tls: Option<(Arc<ClientConfig>, Option<ServerName<'static>>)>,
    /// The limits and timeouts.
    pub limits: UpstreamLimits,
}

/// The error for parameters of an [`Upstream`] that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamConfigError {
    /// The URL does not have the form `https://host[:port]`.
    #[error("could not use {0} as the address of a server, which must be https://host[:port]")]
    Server(Uri),
    /// The TLS library does not accept the configuration.
    #[error("could not create the TLS configuration for the server")]
    Tls(#[from] pinniped_pki::tls::TlsError),
    /// The proxy in front of the server cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyEnvironmentError),
}

/// The reason why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection could be opened.
    #[error("could not connect to the server")]
    Dial(#[source] Arc<DialError>),
    /// All connections that the limits allow are full.
    #[error("all {0} connections to the server are full")]
    Full(usize),
    /// All connections for requests with large headers are in use.
    #[error("all {0} connections to the server for requests with large headers are in use")]
    UnsharedFull(usize),
    /// The server would refuse the headers, or close the connection because of them.
    #[error("the headers of the request have {size} bytes, and the limit of the server is {limit}")]
    HeadTooLarge {
        /// The size as HTTP/2 counts it.
        size: usize,
        /// The size that the server accepts.
        limit: usize,
    },
    /// The name of a header field is not a token.
    #[error("the name of a header field contains a quotation mark")]
    FieldName,
    /// The request has more fields than a message can have.
    #[error("the request has too many header fields")]
    Fields(#[source] MaxSizeReached),
    /// The HTTP/1.1 connection failed, or the server violated the protocol.
    #[error("request to the server failed")]
    Http(#[source] hyper::Error),
    /// The HTTP/1.1 connection of an [`Upstream`] with an address failed, or the server violated
    /// the protocol.
    #[error("request to the server failed")]
    Http1(#[source] Http1Error),
    /// The HTTP/2 stream or connection failed, or the server violated the protocol.
    #[error("request to the server failed")]
    Http2(#[source] h2::Error),
}

impl UpstreamError {
    /// Returns whether the server has finished with the request.
    pub fn is_finished(&self) -> bool {
        !matches!(self, Self::Http2(error) if is_local_reset(error))
    }
}

/// Returns whether this client ended the stream, because the client's body failed or because the
/// response violated the protocol. The server may still process the request then.
pub(crate) fn is_local_reset(error: &h2::Error) -> bool {
    error.is_reset() && !error.is_remote()
}

/// The use of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamStats {
    /// Number of open HTTP/2 connections.
    pub connections: usize,
    /// Number of open streams on them.
    pub streams: usize,
    /// Number of open HTTP/1.1 connections for [short reads](Upstream::try_send_short).
    pub short_reads: usize,
}

/// The connections to one server. Cheap to clone; clones share the connections, which close when
/// the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Upstream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connector: Arc<Connector>,
    /// One pool for each worker, and one for tasks outside of workers.
    pools: Box<[Pool]>,
}

impl Upstream {
    /// Creates the pool. It dials nothing before the first request.
    ///
    /// # Errors
    /// Returns an error when the address is not `https://host[:port]` or there is no usable root
    /// certificate.
    pub fn new(params: UpstreamParams) -> Result<Self, UpstreamConfigError> {
        Ok(Self::through(Connector::new(params)?))
    }

    /// Creates a pool for a server that is given by its address. It dials nothing before the first
    /// request.
    pub fn to_address(params: &AddressParams) -> Self {
        Self::through(Connector::to_address(params))
    }

    fn through(connector: Connector) -> Self {
        let connector = Arc::new(connector);
        let unshared = Arc::new(Semaphore::new(connector.limits.unshared));
        let pool = |_| Pool::new(Arc::clone(&connector), Arc::clone(&unshared));
        let pools = (0..=workers::max_workers()).map(pool).collect();
        Self { inner: Arc::new(Inner { connector, pools }) }
    }

    /// Creates a pool for the same server that shares no connection with this one.
    ///
    /// # Errors
    /// As [`Upstream::new`]; parameters that were valid there are valid here.
    pub fn separate(&self) -> Result<Self, UpstreamConfigError> {
        Ok(Self::through(self.inner.connector.another()))
    }

    /// Returns the host and port of the server.
    pub fn authority(&self) -> &Authority {
        self.inner.connector.authority()
    }

    /// Sends a request over HTTP/2. Dropping the future resets the stream; so does dropping the
    /// response body before its end. A URI without authority gets the server's.
    ///
    /// # Errors
    /// Returns an error when no response headers arrive. The body reports later failures.
    pub async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.try_send(&mut request, &[]).await
    }

    /// Sends a request like [`Upstream::send`], together with precomputed headers.
    /// None of them may have the same name as a header of the request. If no connection took the
    /// request, the caller still has it.
    ///
    /// # Errors
    /// As [`Upstream::send`]; with [`UpstreamError::Dial`] and [`UpstreamError::Full`] the request
    /// is complete and includes the precomputed headers.
    pub async fn try_send(
        &self,
        request: &mut Request<RequestBody>,
        precomputed: &[&PrecomputedHeaders],
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.complete(request.uri_mut());
        let sharing = head::measure(request, precomputed, self.inner.connector.limits.request_header_list)?;
        add_precomputed(request, precomputed)?;
        let empty = request.body().is_empty();
        let is_safe = is_safe_method(request.method());
        let (mut unsent, mut unprocessed, mut broken) = (0, 0, 0);
        loop {
            let mut lease = match sharing {
                Sharing::Shared => self.pool().lease().await?,
                Sharing::Unshared => self.pool().unshared().await?,
            };
            let head = copy_of(request);
            let sent = lease.http2.send(head, request.body_mut()).await;
            let error = match sent {
                Ok((response, upload)) => return Ok(ResponseBody::http2(response, upload, lease.stream)),
                Err(error) => error,
            };
            if !matches!(&error, Http2Failure::Sent(error) if is_local_reset(error)) {
                lease.stream.finish();
            }
            let (again, error) = match error {
                // The connection was about to close. So may the next one, but not without limit.
                Http2Failure::Unsent(error) => (count(&mut unsent, 3), error),
                Http2Failure::Invalid(error) => (false, error),
                Http2Failure::Sent(error) if empty && was_not_processed(&error) => {
                    (count(&mut unprocessed, 3), error)
                }
                Http2Failure::Sent(error) => {
                    (empty && is_safe && has_broken(&error) && count(&mut broken, 1), error)
                }
            };
            if !again {
                return Err(UpstreamError::Http2(error));
            }
        }
    }

    /// Sends one request over its own HTTP/1.1 connection, which can be upgraded. The connection
    /// closes when the response body and the upgraded connection are dropped; it is reset when this
    /// future is dropped. The `Host` header is set from the URI unless the request has one.
    ///
    /// # Errors
    /// Returns an error when no response headers arrive.
    pub async fn send_http1(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.complete(request.uri_mut());
        to_origin_form(&mut request);
        let (mut sender, reset) = self.pool().http1().await?;
        let mut sending = pin!(sender.send_request(request));
        // Dropped before `sending`, whose end closes the connection.
        let cancelled = scopeguard::guard(reset, |reset| reset.set());
        let response = sending.as_mut().await;
        ScopeGuard::into_inner(cancelled);
        let response = response.map_err(UpstreamError::Http)?;
        Ok(response.map(ResponseBody::http1))
    }

    /// Sends one request over a keep-alive HTTP/1.1 connection. The `Host` header is set as by
    /// [`Upstream::send_http1`]. If no connection took the request, the caller still has it.
    ///
    /// # Errors
    /// Returns an error when no response headers arrive; with [`UpstreamError::Dial`] the request
    /// is unchanged.
    pub async fn try_send_keep_alive(
        &self,
        request: &mut Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        if request.uri().authority().is_some() || !request.headers().contains_key(HOST) {
            self.complete(request.uri_mut());
            to_origin_form(request);
        }
        let pool = self.pool();
        let connector = &self.inner.connector;
        if let Some(connection) = pool.idle.take(connector.limits.idle_timeout) {
            let again = is_safe_method(request.method()) && request.body().is_empty();
            match connection.send(request, &[], pool.handle(), &connector.tasks).await {
                Ok(response) => return Ok(response),
                // The server closed the idle connection at the same moment. Send the request over a
                // new connection if repeating it is safe.
                Err(Failure { no_response: true, .. }) if again => {}
                Err(failure) => return Err(UpstreamError::Http1(failure.error)),
            }
        }
        let connection = pool.keep_alive().await?;
        let sent = connection.send(request, &[], pool.handle(), &connector.tasks).await;
        sent.map_err(|failure| UpstreamError::Http1(failure.error))
    }

    /// Sends a request that has no body and whose response arrives without delay, by the cheapest
    /// protocol. It uses an idle HTTP/1.1 connection if there is one: the server then writes a
    /// large response without waiting for flow-control windows, and neither side encodes headers.
    /// Otherwise it sends the request like [`Upstream::try_send`]. HTTP/1.1 removes spaces around
    /// header values.
    ///
    /// The precomputed headers are sent with the request's own headers, and none of them
    /// may have the same name.
    ///
    /// # Errors
    /// As [`Upstream::try_send`].
    pub async fn try_send_short(
        &self,
        request: &mut Request<RequestBody>,
        precomputed: &[&PrecomputedHeaders],
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        debug_assert!(is_safe_method(request.method()) && request.body().is_empty(), "it may be sent twice");
        self.complete(request.uri_mut());
        let pool = self.pool();
        let connector = &self.inner.connector;
        match pool.idle.take(connector.limits.idle_timeout) {
            Some(connection) => {
                match connection.send(request, precomputed, pool.handle(), &connector.tasks).await {
                    Ok(response) => return Ok(response),
                    // The server closed the connection at the same moment.
                    Err(Failure { no_response: true, .. }) => {}
                    Err(failure) => return Err(UpstreamError::Http1(failure.error)),
                }
            }
            None => pool.dial_for_reads(),
        }
        // Boxed because the future is large and this path is rare; otherwise every request future
        // would reserve space for it.
        Box::pin(self.try_send(request, precomputed)).await
    }

    /// Returns whether [`Upstream::try_send_short`] can send this request, if its response arrives
    /// without delay.
    pub fn is_read(request: &Request<RequestBody>, precomputed: &[&PrecomputedHeaders]) -> bool {
        is_safe_method(request.method()) && request.body().is_empty() && has_small_head(request, precomputed)
    }

    /// Returns the time in which the response headers of a request of the program itself must
    /// arrive.
    pub fn response_timeout(&self) -> Duration {
        self.inner.connector.limits.response_timeout
    }

    /// Returns the current use of the pool.
    pub fn stats(&self) -> UpstreamStats {
        self.inner.pools.iter().map(Pool::stats).fold(UpstreamStats::default(), |all, one| UpstreamStats {
            connections: all.connections + one.connections,
            streams: all.streams + one.streams,
            short_reads: all.short_reads + one.short_reads,
        })
    }

    /// Returns the pool of the current worker, so that a request and its stream stay on one thread.
    fn pool(&self) -> &Pool {
        let pools = &self.inner.pools;
        workers::current().and_then(|worker| pools.get(worker)).unwrap_or(&pools[pools.len() - 1])
    }

    /// Adds the scheme and the authority if they are missing. The path stays the same, byte for
    /// byte.
    fn complete(&self, uri: &mut Uri) {
        if uri.authority().is_some() && uri.scheme().is_some() {
            return;
        }
        let mut parts = std::mem::take(uri).into_parts();
        parts.scheme = Some(self.inner.connector.scheme.clone());
        parts.authority.get_or_insert_with(|| self.inner.connector.authority().clone());
        parts.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
        *uri = Uri::from_parts(parts).expect("scheme, authority and path make a URI");
    }
}

/// Maximum number of fields of a short read over HTTP/1.1, and maximum size of its head in bytes.
/// Many servers accept only about a hundred fields and a few ten thousand bytes.
const SMALL_HEAD: (usize, usize) = (64, 8 << 10);

fn has_small_head(request: &Request<RequestBody>, precomputed: &[&PrecomputedHeaders]) -> bool {
    let headers = request.headers();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = headers.len() + precomputed.iter().map(|fields| fields.len()).sum::<usize>();
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
        + precomputed.iter().map(|fields| fields.as_http1().len()).sum::<usize>();
    fields <= SMALL_HEAD.0 && target + bytes <= SMALL_HEAD.1
}

/// Adds the precomputed headers to the request's own headers.
///
/// # Errors
/// Returns [`UpstreamError::Fields`]; the request then has some of them.
pub fn add_precomputed(
    request: &mut Request<RequestBody>,
    precomputed: &[&PrecomputedHeaders],
) -> Result<(), UpstreamError> {
    let headers = request.headers_mut();
    precomputed.iter().try_for_each(|fields| fields.append_to(headers)).map_err(UpstreamError::Fields)
}

/// Converts the request to the origin form: HTTP/1.1 has the host in a header and only the path in
/// the request line.
fn to_origin_form(request: &mut Request<RequestBody>) {
    *request.version_mut() = http::Version::HTTP_11;
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    if let Some(authority) = parts.authority.take()
        && !request.headers().contains_key(HOST)
        && let Ok(host) = http::HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    parts.scheme = None;
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// Counts an attempt and returns whether it is within the limit.
fn count(times: &mut u32, most: u32) -> bool {
    *times += 1;
    *times <= most
}

/// Returns whether the server reported that it did not process this stream: it sent GOAWAY before
/// (RFC 9113, section 6.8), or refused the stream (section 8.7).
fn was_not_processed(error: &h2::Error) -> bool {
    error.is_remote()
        && match error.reason() {
            Some(h2::Reason::NO_ERROR) => error.is_go_away(),
            Some(h2::Reason::REFUSED_STREAM) => error.is_reset(),
            _ => false,
        }
}

/// Returns whether the connection broke, and the server did not close it because of an error of
/// this client.
fn has_broken(error: &h2::Error) -> bool {
    !error.is_reset() && matches!(error.reason(), None | Some(h2::Reason::NO_ERROR))
}

/// Copies the head for h2, which consumes its argument; the request may have to be sent again.
fn copy_of(request: &Request<RequestBody>) -> Request<()> {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = http::Version::HTTP_2;
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Returns whether a request with this method may be sent twice (RFC 9110, section 9.2.1).
fn is_safe_method(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
