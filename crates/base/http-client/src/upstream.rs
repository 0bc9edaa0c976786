//! The way to the API server: our own pool of HTTP/2 connections.
//!
//! An API server lets one HTTP/2 connection carry a limited number of streams (100 unless told otherwise), and every
//! watch is one. hyper-util's pooled client keeps a single connection a host and waits for ever at that limit, so
//! this pool counts streams and dials again when a connection is full, as Go's client does.
//!
//! ```text
//! send() ──► Pool::lease ── room on a connection? ── yes ──► HTTP/2 stream, counted until its body ends
//!                  └── no ──► one dial at a time, the others wait for it
//! upgrade_connection() ──► one HTTP/1.1 connection for one request, never pooled
//! try_send_keep_alive() ──► HTTP/1.1 connections that wait for the next request, driven by the request's own task (kept.rs)
//! try_send_short() ─► one of these if one waits, else send(); where none waits too often, one is dialled beside (growth.rs)
//! ```
//!
//! Each [worker](pinniped_http_server::workers) has a pool of its own.
//!
//! A head is measured before it is sent (head.rs): what a Go server would end the whole connection for is refused, and a large
//! one goes over a connection that nothing else uses. A stream that a client gave up counts for a moment longer (lingering.rs).
//!
//! Nothing of a user is kept on a connection: credentials are headers of single requests. A request is sent again only
//! if it never reached a connection, if the server said that it never looked at it and there is no body to repeat, or if
//! its connection died and the request has neither body nor side effects. It is never sent again after the server ended the
//! connection with an error such as PROTOCOL_ERROR or ENHANCE_YOUR_CALM: this request may be the reason.
//!
//! An API server tells the connection of a client that it does not know to go away (its mitigation of HTTP/2 rapid
//! resets), and some are told to send connections away now and then (`--goaway-chance`). So requests that carry
//! somebody else's credential, or none, go over [separate](Upstream::separate) connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, MaxSizeReached};
use http::uri::Authority;
use http::{Method, Request, Response, Uri};
use hyper::client::conn::http1::SendRequest;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_http_server::{BoxError, workers};
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::Semaphore;

mod body;
mod connector;
mod dial;
mod dial_policy;
mod head;
mod http2;
mod idle_pool;
mod keep_alive;
mod pool;
mod upload;

pub use body::is_ours_behind;
pub use body::{RequestBody, ResponseBody};
pub use connector::DialError;
pub use dial::Dial;
pub use keep_alive::{Http1Error, WholeAnswer, read_whole};

use connector::Connector;
use head::Sharing;
use http2::Failure as Http2Failure;
use keep_alive::Failure;
use pool::Pool;

/// The size of a header list that a Go server takes unless told otherwise: 1 MiB, and 32 bytes for each of ten fields.
/// kube-apiserver announces it.
const GO_HEADER_LIST: usize = (1 << 20) + 320;

/// Bounds and timeouts of the way to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// For TCP to connect.
    pub dial_timeout: Duration,
    /// For the TLS handshake.
    pub handshake_timeout: Duration,
    /// A connection on which nothing was read for this long is pinged.
    pub ping_interval: Duration,
    /// A ping that is not answered within this time ends the connection.
    pub ping_timeout: Duration,
    /// A connection without streams for this long is closed, unless it is the only one.
    pub idle_timeout: Duration,
    /// For the head of an answer to one of our own requests. Watches begin at once, too. Requests of clients have
    /// their own deadlines.
    pub answer_timeout: Duration,
    /// HTTP/2 connections at most, for each worker.
    pub connections: usize,
    /// HTTP/1.1 connections for [short reads](Upstream::try_send_short) at most, for each worker. Without any they go over
    /// HTTP/2.
    pub short_reads: usize,
    /// HTTP/2 connections at most that carry one request with a large head each.
    pub unshared: usize,
    /// Size of a request's header list at most, as HTTP/2 counts it (RFC 9113, section 6.5.2): what the server takes.
    pub request_header_list: usize,
    /// Streams of one connection at most, where the server allows more.
    pub streams_per_connection: usize,
    /// What the server may send ahead of a slow reader of one stream, in bytes. The window of a connection is as large
    /// as those of all its streams, so that slow readers never stop the others.
    pub stream_window: u32,
    /// Request bytes of one stream that may wait for the server.
    pub send_buffer: usize,
    /// Bytes of all headers of one response.
    pub header_bytes: u32,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self {
            dial_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            // An API server closes it after 90 s, and a request on its way then would meet that.
            idle_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(60),
            connections: 256,
            short_reads: 32,
            unshared: 32,
            request_header_list: GO_HEADER_LIST,
            streams_per_connection: 250,
            stream_window: 64 << 10,
            send_buffer: 64 << 10,
            header_bytes: 1 << 20,
        }
    }
}

/// What an [`Upstream`] needs.
#[derive(Clone, Debug)]
pub struct UpstreamParams {
    /// `https://host[:port]` of the API server.
    pub server: Uri,
    /// Whom to trust for the API server's certificate.
    pub roots: Roots,
    /// Versions and suites of TLS.
    pub profile: Profile,
    /// The name that the certificate must have, where it is not the host of `server`.
    pub server_name: Option<ServerName<'static>>,
    /// Another way to get there than a plain TCP connection.
    pub dial: Option<Arc<dyn Dial>>,
    /// Bounds.
    pub limits: UpstreamLimits,
}

impl UpstreamParams {
    /// Parameters with default limits for a server of our own cluster: TLS 1.3, and nothing between us and it.
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

/// What an [`Upstream`] to one server of many needs, which is known by its address.
#[derive(Clone, Debug)]
pub struct AddressParams {
    /// Where it is.
    pub address: SocketAddr,
    /// How to speak TLS with it, and the name to ask for, if there is one; without TLS it is spoken to in the clear.
    pub tls: Option<(Arc<ClientConfig>, Option<ServerName<'static>>)>,
    /// Bounds.
    pub limits: UpstreamLimits,
}

/// The parameters of an [`Upstream`] cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamConfigError {
    /// Not of the form `https://host[:port]`.
    #[error("could not use {0} as the address of the API server")]
    Server(Uri),
    /// The roots or the TLS library do not agree.
    #[error("could not make the TLS configuration for the API server")]
    Tls(#[from] pinniped_pki::tls::TlsError),
    /// What stands between us and the server cannot be used.
    #[error(transparent)]
    Dial(BoxError),
}

/// A request got no response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection could be made.
    #[error("could not connect to the API server")]
    Dial(#[source] Arc<DialError>),
    /// All connections that we may have are full.
    #[error("all {0} connections to the API server are full")]
    Full(usize),
    /// All connections for large heads are in use.
    #[error("all {0} connections to the API server for requests with large heads are in use")]
    UnsharedFull(usize),
    /// The server does not take such a head, or would end the connection over it.
    #[error("the head of the request counts {size} bytes, which may be too much for the limit of {limit}")]
    HeadTooLarge {
        /// As HTTP/2 counts it.
        size: usize,
        /// What the server takes.
        limit: usize,
    },
    /// The name of a header field is no token.
    #[error("the name of a header field holds a quotation mark")]
    FieldName,
    /// The request has more fields than a message can have.
    #[error("the request has too many header fields")]
    Fields(#[source] MaxSizeReached),
    /// The connection lives, but there was no answer in time.
    #[error("the API server did not answer in time")]
    Silent,
    /// The HTTP/1.1 connection failed, or the server broke its rules.
    #[error("request to the API server failed")]
    Http(#[source] hyper::Error),
    /// The HTTP/1.1 connection of a server that is known by its address failed, or the server broke its rules.
    #[error("request to the API server failed")]
    Http1(#[source] Http1Error),
    /// The HTTP/2 stream or connection failed, or the server broke its rules.
    #[error("request to the API server failed")]
    Http2(#[source] h2::Error),
}

impl UpstreamError {
    /// Whether the server has nothing more to do for the request.
    pub fn is_over(&self) -> bool {
        !matches!(self, Self::Http2(error) if is_ours(error))
    }
}

/// Whether we ended a stream, because its client broke its body off or because the answer broke the rules. The server may
/// still be at work then.
pub(crate) fn is_ours(error: &h2::Error) -> bool {
    error.is_reset() && !error.is_remote()
}

/// How much of the pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamStats {
    /// Open HTTP/2 connections.
    pub connections: usize,
    /// Open streams on them.
    pub streams: usize,
}

/// The way to one API server. Cheap to clone; clones share the connections, which close when the last clone is gone.
#[derive(Clone, Debug)]
pub struct Upstream {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connector: Arc<Connector>,
    /// One for each worker, and one for who is on none.
    pools: Box<[Pool]>,
}

impl Upstream {
    /// Makes the pool. Nothing is dialled before the first request.
    ///
    /// # Errors
    /// When the address is not `https://host[:port]` or there is no usable root.
    pub fn new(params: UpstreamParams) -> Result<Self, UpstreamConfigError> {
        Ok(Self::through(Connector::new(params)?))
    }

    /// The way to a server by its address. Nothing is dialled before the first request.
    pub fn to_address(params: &AddressParams) -> Self {
        Self::through(Connector::to_address(params))
    }

    fn through(connector: Connector) -> Self {
        let connector = Arc::new(connector);
        let unshared = Arc::new(Semaphore::new(connector.limits.unshared));
        let pool = |_| Pool::new(Arc::clone(&connector), Arc::clone(&unshared));
        let pools = (0..=workers::most()).map(pool).collect();
        Self { inner: Arc::new(Inner { connector, pools }) }
    }

    /// Another way to the same API server that shares no connection with this one.
    ///
    /// # Errors
    /// As [`Upstream::new`], though what worked there works here.
    pub fn separate(&self) -> Result<Self, UpstreamConfigError> {
        Ok(Self::through(self.inner.connector.another()))
    }

    /// Host and port of the API server.
    pub fn authority(&self) -> &Authority {
        self.inner.connector.authority()
    }

    /// Sends a request over HTTP/2. Dropping the future resets the stream; so does dropping the response body before
    /// its end. A URI without authority gets the server's.
    ///
    /// # Errors
    /// When there is no response head. A failure after it shows in the body.
    pub async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.try_send(&mut request, &[]).await
    }

    /// The same with what is `ready`, of which no field may have the name of one of the request's own. If no connection
    /// took the request, it is still there.
    ///
    /// # Errors
    /// As [`Upstream::send`]; with [`UpstreamError::Dial`] and [`UpstreamError::Full`] the request is as it was, and has what
    /// is ready.
    pub async fn try_send(
        &self,
        request: &mut Request<RequestBody>,
        ready: &[&PrecomputedHeaders],
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.complete(request.uri_mut());
        let sharing = head::measure(request, ready, self.inner.connector.limits.request_header_list)?;
        add_ready(request, ready)?;
        let empty = request.body().is_empty();
        let harmless = is_harmless(request.method());
        let (mut unsent, mut ignored, mut died) = (0, 0, 0);
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
            if !matches!(&error, Http2Failure::Sent(error) if is_ours(error)) {
                lease.stream.finish();
            }
            let (again, error) = match error {
                // The connection was about to close. The next one may be, too, but not for ever.
                Http2Failure::Unsent(error) => (count(&mut unsent, 3), error),
                Http2Failure::Unfit(error) => (false, error),
                Http2Failure::Sent(error) if empty && was_ignored(&error) => (count(&mut ignored, 3), error),
                Http2Failure::Sent(error) => {
                    (empty && harmless && has_died(&error) && count(&mut died, 1), error)
                }
            };
            if !again {
                return Err(UpstreamError::Http2(error));
            }
        }
    }

    /// An HTTP/1.1 connection for one request, for upgrades. It closes when the sender, the response body and the
    /// upgraded connection are gone.
    ///
    /// # Errors
    /// When no connection can be made.
    pub async fn upgrade_connection(&self) -> Result<SendRequest<RequestBody>, UpstreamError> {
        self.pool().http1().await
    }

    /// Sends one request over an HTTP/1.1 connection of its own. The `Host` header is set from the URI unless there
    /// is one.
    ///
    /// # Errors
    /// When there is no response head.
    pub async fn send_http1(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.complete(request.uri_mut());
        to_origin_form(&mut request);
        let mut sender = self.upgrade_connection().await?;
        let response = sender.send_request(request).await.map_err(UpstreamError::Http)?;
        Ok(response.map(ResponseBody::http1))
    }

    /// Sends one request over an HTTP/1.1 connection that is kept for the next one. The `Host` header is set as by
    /// [`Upstream::send_http1`]. If no connection took the request, it is still there.
    ///
    /// # Errors
    /// When there is no response head; with [`UpstreamError::Dial`] the request is as it was.
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
        if let Some(kept) = pool.waiting.take(connector.limits.idle_timeout) {
            let again = is_harmless(request.method()) && request.body().is_empty();
            match kept.send(request, &[], pool.keeper(), &connector.tasks).await {
                Ok(response) => return Ok(response),
                // The server closed the connection at the same moment: one that is new gets the request, if that does no
                // harm a second time.
                Err(Failure { unanswered: true, .. }) if again => {}
                Err(failure) => return Err(UpstreamError::Http1(failure.error)),
            }
        }
        let kept = pool.kept().await?;
        let sent = kept.send(request, &[], pool.keeper(), &connector.tasks).await;
        sent.map_err(|failure| UpstreamError::Http1(failure.error))
    }

    /// Sends a read without a body whose answer comes all at once, the cheapest way there is: over an HTTP/1.1 connection
    /// if one waits, since the server writes a large answer to it without being asked for windows, and neither side has
    /// a head to code; else as [`Upstream::try_send`]. Header values arrive without spaces around them.
    ///
    /// What is `ready` goes with the request's own fields, of which none may have the same name.
    ///
    /// # Errors
    /// As [`Upstream::try_send`].
    pub async fn try_send_short(
        &self,
        request: &mut Request<RequestBody>,
        ready: &[&PrecomputedHeaders],
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        debug_assert!(is_harmless(request.method()) && request.body().is_empty(), "it may be sent twice");
        self.complete(request.uri_mut());
        let pool = self.pool();
        let connector = &self.inner.connector;
        match pool.waiting.take(connector.limits.idle_timeout) {
            Some(kept) => match kept.send(request, ready, pool.keeper(), &connector.tasks).await {
                Ok(response) => return Ok(response),
                // The server closed the connection at the same moment.
                Err(Failure { unanswered: true, .. }) => {}
                Err(failure) => return Err(UpstreamError::Http1(failure.error)),
            },
            None => pool.grow(),
        }
        // Not the usual way, and a large future, for which all others would keep room.
        Box::pin(self.try_send(request, ready)).await
    }

    /// Whether [`Upstream::try_send_short`] is for this request, if its answer comes all at once.
    pub fn is_read(request: &Request<RequestBody>, ready: &[&PrecomputedHeaders]) -> bool {
        is_harmless(request.method()) && request.body().is_empty() && has_small_head(request, ready)
    }

    /// How long the head of an answer to a request of our own may take.
    pub fn answer_timeout(&self) -> Duration {
        self.inner.connector.limits.answer_timeout
    }

    /// How much is in use now.
    pub fn stats(&self) -> UpstreamStats {
        self.inner.pools.iter().map(Pool::stats).fold(UpstreamStats::default(), |all, one| UpstreamStats {
            connections: all.connections + one.connections,
            streams: all.streams + one.streams,
        })
    }

    /// That of the worker that this runs on, so that a request and its stream stay on one thread.
    fn pool(&self) -> &Pool {
        let pools = &self.inner.pools;
        workers::current().and_then(|worker| pools.get(worker)).unwrap_or(&pools[pools.len() - 1])
    }

    /// Adds scheme and authority where they are missing. The path stays as it is, byte for byte.
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

/// Fields of a short read over HTTP/1.1 at most, and bytes of its head. Servers often take no more than a hundred and some
/// ten thousand there.
const SMALL_HEAD: (usize, usize) = (64, 8 << 10);

fn has_small_head(request: &Request<RequestBody>, ready: &[&PrecomputedHeaders]) -> bool {
    let headers = request.headers();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = headers.len() + ready.iter().map(|ready| ready.len()).sum::<usize>();
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
        + ready.iter().map(|ready| ready.as_http1().len()).sum::<usize>();
    fields <= SMALL_HEAD.0 && target + bytes <= SMALL_HEAD.1
}

/// Puts what is ready among the request's own fields.
///
/// # Errors
/// [`UpstreamError::Fields`], and the request has some of it.
pub fn add_ready(
    request: &mut Request<RequestBody>,
    ready: &[&PrecomputedHeaders],
) -> Result<(), UpstreamError> {
    let headers = request.headers_mut();
    ready.iter().try_for_each(|fields| fields.append_to(headers)).map_err(UpstreamError::Fields)
}

/// HTTP/1.1 has the host in a header and only the path in the request line.
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

/// Once more, if it was not often enough.
fn count(times: &mut u32, most: u32) -> bool {
    *times += 1;
    *times <= most
}

/// The server said that it did nothing with this stream: it went away in good order before (RFC 9113, section 6.8), or
/// refused the stream (section 8.7).
fn was_ignored(error: &h2::Error) -> bool {
    error.is_remote()
        && match error.reason() {
            Some(h2::Reason::NO_ERROR) => error.is_go_away(),
            Some(h2::Reason::REFUSED_STREAM) => error.is_reset(),
            _ => false,
        }
}

/// The connection ended, and not because the server found fault with what came over it.
fn has_died(error: &h2::Error) -> bool {
    !error.is_reset() && matches!(error.reason(), None | Some(h2::Reason::NO_ERROR))
}

/// The head as h2 takes it: it keeps what it is given, and the request may have to be sent again.
fn copy_of(request: &Request<RequestBody>) -> Request<()> {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = http::Version::HTTP_2;
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Whether it may be sent twice (RFC 9110, section 9.2.1).
fn is_harmless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
