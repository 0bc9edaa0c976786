//! A request to a backend and its response.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures::future::Either;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use pinniped_error::chain;
use pinniped_gateway_routing::table::{Forward, Protocol, Timeouts, Upstream};
use pinniped_http_client::upstream::{RequestBody, ResponseBody, UpstreamError};
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::Incoming;
use pinniped_http_server::{Body, Connection};
use pinniped_reverse_proxy::{ClientUpgrade, Direction, ForwardError, Guard, PauseLimit, TimeLimits, relay};
use pinniped_traces::{RequestSpan, Span};
use tokio::time::{Instant, sleep_until};

use super::direct_response::{status, text};
use super::metrics::{InFlight, Received};
use super::request_headers::{self, ClientConnection};
use super::upload::Upload;
use super::{Next, PerConnection, trace};
use crate::active_table::ActiveTable;
use crate::backend::{Backend, EndpointOrder, Server};
use crate::gateway::Inner;

/// The same text as Envoy's, which users search for.
const NO_ENDPOINT: &str = "no healthy upstream";
const LATE: &str = "upstream request timeout";
const NO_RESPONSE: &str = "upstream connect error or disconnect/reset before headers";

/// Properties of a request that its head does not contain.
pub(super) struct RequestDetails {
    pub(super) received: Received,
    /// The host of the request.
    pub(super) authority: Authority,
    /// The normalized path that selected the route, if it differs from the received one.
    pub(super) path: Option<String>,
    pub(super) is_h1: bool,
    /// The value of `x-forwarded-client-cert`.
    pub(super) certificate: Option<HeaderValue>,
}

/// A request to a backend.
pub(super) struct Exchange {
    to: Destination,
    request: Request<RequestBody>,
    upload: Option<Upload>,
}

/// An upgrade request to a backend.
pub(super) struct Upgrade {
    to: Destination,
    request: Request<RequestBody>,
    wanted: ClientUpgrade,
}

/// The destination of a request.
struct Destination {
    in_flight: InFlight,
    upstream: Arc<Upstream>,
    backend: Arc<Backend>,
    turn: EndpointOrder,
    timeouts: Timeouts,
}

/// The reason why there is no response from a backend.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the backend has no endpoint")]
    NoEndpoint,
    #[error("the backend did not respond in time")]
    Late,
    #[error("TLS with the backend cannot be configured: {0}")]
    Tls(#[from] Arc<pinniped_pki::tls::TlsError>),
    #[error("{}", of_upstream(.0))]
    Upstream(#[from] UpstreamError),
    #[error("{}", of_forward(.0))]
    Forward(#[from] ForwardError),
}

impl Failure {
    /// Returns the kind of the failure for traces.
    fn error_type(&self) -> &'static str {
        let of_upstream = |error: &UpstreamError| match error {
            UpstreamError::HeadTooLarge { .. } | UpstreamError::FieldName | UpstreamError::Fields(_) => {
                "not_sent"
            }
            _ => "no_response",
        };
        match self {
            Self::NoEndpoint => "no_endpoint",
            Self::Late => "timeout",
            Self::Tls(_) => "not_sent",
            Self::Upstream(error) | Self::Forward(ForwardError::Upstream(error)) => of_upstream(error),
            Self::Forward(ForwardError::UnrequestedSwitch | ForwardError::OtherProtocol) => {
                "unexpected_switch"
            }
        }
    }
}

/// Returns an error text that calls the server a backend.
fn of_upstream(error: &UpstreamError) -> String {
    match error {
        UpstreamError::Dial(why) => format!("could not connect to the backend: {}", chain(&**why)),
        UpstreamError::Full(connections) => format!("all {connections} connections to the backend are full"),
        UpstreamError::UnsharedFull(connections) => {
            format!("all {connections} connections to the backend for requests with large headers are in use")
        }
        UpstreamError::HeadTooLarge { .. } | UpstreamError::FieldName => {
            format!("the request cannot be sent to a backend: {error}")
        }
        UpstreamError::Fields(_) => "the request has too many header fields".to_owned(),
        UpstreamError::Http(why) => format!("the request to the backend failed: {}", chain(why)),
        UpstreamError::Http1(why) => format!("the request to the backend failed: {}", chain(why)),
        UpstreamError::Http2(why) => format!("the request to the backend failed: {}", chain(why)),
    }
}

fn of_forward(error: &ForwardError) -> String {
    match error {
        ForwardError::Upstream(error) => of_upstream(error),
        ForwardError::UnrequestedSwitch => {
            "the backend switched protocols without a request to do so".to_owned()
        }
        ForwardError::OtherProtocol => {
            "the backend switched to another protocol than the client requested".to_owned()
        }
    }
}

impl Failure {
    fn response(&self) -> Response<Body> {
        match self {
            Self::NoEndpoint => text(StatusCode::SERVICE_UNAVAILABLE, NO_ENDPOINT),
            Self::Late => text(StatusCode::GATEWAY_TIMEOUT, LATE),
            Self::Upstream(UpstreamError::HeadTooLarge { .. }) => {
                status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
            }
            Self::Upstream(UpstreamError::FieldName) => status(StatusCode::BAD_REQUEST),
            Self::Tls(_) | Self::Upstream(_) | Self::Forward(_) => {
                text(StatusCode::SERVICE_UNAVAILABLE, NO_RESPONSE)
            }
        }
    }

    /// Returns whether the request has not reached a server.
    fn is_unconnected(&self) -> bool {
        matches!(
            self,
            Self::Upstream(UpstreamError::Dial(_) | UpstreamError::Full(_))
                | Self::Forward(ForwardError::Upstream(UpstreamError::Dial(_) | UpstreamError::Full(_)))
        )
    }
}

/// Prepares a request as far as possible without a connection to the backend.
pub(super) fn begin(
    connection: &PerConnection,
    client: &Connection,
    active: &ActiveTable,
    forward: &Forward,
    details: RequestDetails,
    mut parts: Parts,
    body: Incoming,
) -> Next {
    let RequestDetails { received, authority, path, is_h1, certificate } = details;
    let upgrade = if is_h1 { hop_by_hop::upgrade_type(&parts.headers) } else { None };
    // An `h2c` offer is ignored: the response uses HTTP/1.1, as RFC 9110, section 7.8, permits.
    let upgrade = upgrade.filter(|protocol| !protocol.as_bytes().eq_ignore_ascii_case(b"h2c"));
    let allowed =
        |protocol: &HeaderValue| forward.websockets && protocol.as_bytes().eq_ignore_ascii_case(b"websocket");
    if upgrade.as_ref().is_some_and(|protocol| !allowed(protocol)) {
        return Next::Respond(status(StatusCode::FORBIDDEN));
    }
    let inner = &connection.inner;
    let upstream = inner.weights.pick(&forward.backends);
    let Some(backend) = active.backend(upstream) else {
        return Next::Respond(failed(inner, upstream, &Failure::NoEndpoint));
    };
    let upgrade = match upgrade {
        None => None,
        Some(protocol) => match connection.end_of_upgraded(&authority) {
            Some(ended) => Some((protocol, ended)),
            None => return Next::Respond(status(StatusCode::NOT_FOUND)),
        },
    };
    let uri = std::mem::take(&mut parts.uri);
    let Some(target) = target(forward, uri, path) else {
        return Next::Respond(status(StatusCode::BAD_REQUEST));
    };
    let client_connection = ClientConnection {
        scheme: connection.entry.scheme(),
        client: connection.client(client),
        certificate,
    };
    request_headers::rewrite(&mut parts.headers, client_connection);
    let addressed = match upstream.id.protocol {
        Protocol::Http1 | Protocol::Tls => {
            request_headers::set_host(&mut parts.headers, &authority).then(|| target.into())
        }
        Protocol::H2 | Protocol::H2c => absolute(connection.entry.scheme(), authority, target),
    };
    let Some(addressed) = addressed else { return Next::Respond(status(StatusCode::BAD_REQUEST)) };
    parts.uri = addressed;
    let wanted = upgrade.zip(parts.extensions.remove::<OnUpgrade>());
    parts.extensions.clear();
    let to = Destination {
        in_flight: InFlight::begin(inner, received),
        upstream: Arc::clone(upstream),
        backend: Arc::clone(backend),
        turn: backend.turn(&upstream.endpoints),
        timeouts: forward.timeouts,
    };
    match wanted {
        Some(((protocol, ended), client)) => {
            let wanted = ClientUpgrade { protocol, client, ended, idle: forward.timeouts.idle, tap: None };
            let request = Request::from_parts(parts, RequestBody::from(body));
            Next::Upgrade(Upgrade { to, request, wanted })
        }
        None => {
            let (body, upload) = Upload::of(body, inner);
            Next::Send(Exchange { to, request: Request::from_parts(parts, body), upload })
        }
    }
}

/// Returns the path, normalized or rewritten by the route, with the query. `None` if the path
/// cannot be sent.
fn target(forward: &Forward, uri: Uri, path: Option<String>) -> Option<PathAndQuery> {
    let path = match &forward.rewrite {
        Some(rewrite) => Some(rewrite.forward(path.as_deref().unwrap_or(uri.path()))?),
        None => path,
    };
    match (path, uri.query()) {
        (None, _) => Some(uri.into_parts().path_and_query.unwrap_or(PathAndQuery::from_static("/"))),
        (Some(path), Some(query)) => PathAndQuery::try_from(format!("{path}?{query}")).ok(),
        (Some(path), None) => PathAndQuery::try_from(path).ok(),
    }
}

/// Returns the absolute URI that HTTP/2 requests need.
fn absolute(scheme: &str, authority: Authority, target: PathAndQuery) -> Option<Uri> {
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(if scheme == "https" { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority);
    uri.path_and_query = Some(target);
    Uri::from_parts(uri).ok()
}

fn failed(inner: &Inner, upstream: &Upstream, failure: &Failure) -> Response<Body> {
    inner.counts.failed.one();
    tracing::debug!(error = %failure, service = %upstream.id.service, "no response from a backend");
    failure.response()
}

/// Keeps a server until the last byte of an exchange, counts the bytes, and ends the request.
struct Hold {
    _server: Arc<Server>,
    inner: Arc<Inner>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.requests.ended();
    }
}

impl Guard for Hold {
    fn transferred(&self, direction: Direction, bytes: u64) {
        let counts = &self.inner.counts;
        match direction {
            Direction::FromClient => counts.request_bytes_from_clients.add(bytes),
            Direction::ToClient => counts.request_bytes_to_clients.add(bytes),
        }
    }
}

impl Destination {
    /// Returns the next server to try.
    fn next(&mut self) -> Option<Arc<Server>> {
        self.turn.next().map(|at| self.backend.server(self.upstream.endpoints[at]))
    }

    /// Returns the guard of the response of a server.
    fn guard(&mut self, server: Arc<Server>) -> Hold {
        self.in_flight.end_with_response();
        Hold { _server: server, inner: Arc::clone(self.in_flight.inner()) }
    }

    /// Returns the response for the client.
    fn response(&mut self, sent: Result<Response<Body>, Failure>) -> Response<Body> {
        let response =
            sent.unwrap_or_else(|failure| failed(self.in_flight.inner(), &self.upstream, &failure));
        self.in_flight.responded(response.status());
        response
    }
}

/// Records the result of the request to a backend.
fn record(span: Option<Span>, result: &Result<Response<Body>, Failure>) {
    let Some(mut span) = span else { return };
    match result {
        Ok(response) => span.respond(response.status()),
        Err(failure) => span.fail(failure.error_type()),
    }
}

impl Exchange {
    pub(super) async fn send(&mut self) -> Response<Body> {
        let sent = self.try_send().await;
        self.to.response(sent)
    }

    /// Sends the request of this span, which ends when the response begins.
    pub(super) async fn send_recorded(&mut self, span: &RequestSpan) -> Response<Body> {
        let forward = trace::forward(span, &self.to.upstream, &mut self.request);
        let sent = self.try_send().await;
        record(forward, &sent);
        let response = self.to.response(sent);
        span.end(response.status());
        response
    }

    async fn try_send(&mut self) -> Result<Response<Body>, Failure> {
        let mut failure = Failure::NoEndpoint;
        while let Some(server) = self.to.next() {
            failure = match self.send_request(&server).await {
                Ok(response) => return Ok(relay(response, self.pace(), self.to.guard(server))),
                Err(failure) => failure,
            };
            if !failure.is_unconnected() {
                break;
            }
            tracing::debug!(error = %failure, server = %server.address, "an endpoint does not accept requests");
        }
        Err(failure)
    }

    /// Sends the request to a server. If no connection accepted it, another server can be tried.
    async fn send_request(&mut self, server: &Server) -> Result<Response<ResponseBody>, Failure> {
        let requests = self.to.backend.requests(server)?;
        let request = &mut self.request;
        let pending = match self.to.upstream.id.protocol {
            Protocol::Http1 | Protocol::Tls => Either::Left(requests.try_send_keep_alive(request)),
            Protocol::H2 | Protocol::H2c => Either::Right(Box::pin(requests.try_send(request, &[]))),
        };
        let began = self.to.in_flight.received();
        let response = in_time(pin!(pending), began, &self.to.timeouts, self.upload.as_ref()).await??;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ForwardError::UnrequestedSwitch.into());
        }
        Ok(response)
    }

    fn pace(&self) -> TimeLimits {
        pace(self.to.in_flight.received(), self.to.timeouts, self.upload.as_ref())
    }
}

/// Returns the time limits for the rest of a response.
fn pace(began: Instant, timeouts: Timeouts, upload: Option<&Upload>) -> TimeLimits {
    let Timeouts { response, idle } = timeouts;
    // If the response starts while the request body is still being sent, both continue in
    // parallel without a limit on the total time.
    let sent = upload.map_or(Some(began), Upload::ended);
    let alive = upload.map(Upload::alive);
    TimeLimits {
        deadline: sent.zip(response).map(|(sent, response)| sent + response),
        idle: idle.map(|after| PauseLimit { after, keep_alive: alive.cloned() }),
    }
}

impl Upgrade {
    pub(super) async fn run(self, span: Option<Box<RequestSpan>>) -> Response<Body> {
        let Self { mut to, mut request, wanted } = self;
        let forward = span.as_ref().and_then(|span| trace::forward(span, &to.upstream, &mut request));
        let response = async {
            let server = to.next().ok_or(Failure::NoEndpoint)?;
            let requests = to.backend.requests(&server)?;
            let hold = to.guard(Arc::clone(&server));
            let upgrade = pinniped_reverse_proxy::upgrade(
                requests,
                request,
                wanted,
                &to.in_flight.inner().tunnels,
                None,
                hold,
            );
            match to.timeouts.response {
                None => Ok(upgrade.await?),
                Some(response) => {
                    Ok(tokio::time::timeout(response, upgrade).await.map_err(|_| Failure::Late)??)
                }
            }
        };
        let response = response.await;
        record(forward, &response);
        let response = to.response(response);
        if let Some(span) = span {
            span.end(response.status());
        }
        response
    }
}

/// Waits for the head of a response within the route's timeouts: the response timeout starts with
/// the last byte of the request, the idle timeout with the last transfer in either direction.
async fn in_time<T>(
    mut response: Pin<&mut impl Future<Output = T>>,
    began: Instant,
    timeouts: &Timeouts,
    upload: Option<&Upload>,
) -> Result<T, Failure> {
    let mut limits = ResponseTimeLimits { began, silent_since: Instant::now() };
    loop {
        let Some(next) = limits.check(timeouts, upload)? else { return Ok(response.await) };
        tokio::select! {
            biased;
            result = response.as_mut() => return Ok(result),
            () = sleep_until(next) => {}
        }
    }
}

/// The time limits of the wait for a response.
struct ResponseTimeLimits {
    began: Instant,
    silent_since: Instant,
}

impl ResponseTimeLimits {
    /// Returns the time of the next check, if any.
    fn check(&mut self, timeouts: &Timeouts, upload: Option<&Upload>) -> Result<Option<Instant>, Failure> {
        let Timeouts { response, idle } = *timeouts;
        let Some(step) = response.into_iter().chain(idle).min() else { return Ok(None) };
        let now = Instant::now();
        let sent = upload.map_or(Some(self.began), Upload::ended);
        if upload.is_some_and(|upload| upload.alive().swap(false, std::sync::atomic::Ordering::Relaxed)) {
            self.silent_since = now;
        }
        let response_end = sent.zip(response).map(|(sent, response)| sent + response);
        let idle_end = idle.map(|idle| self.silent_since + idle);
        let end = response_end.into_iter().chain(idle_end).min();
        if end.is_some_and(|end| end <= now) {
            return Err(Failure::Late);
        }
        // Until the request is sent completely, checks are frequent enough to meet the deadline
        // that starts with its end.
        let check = if sent.is_none() { now + step } else { now + step.max(FAR) };
        Ok(Some(end.map_or(check, |end| end.min(check))))
    }
}

/// Effectively never, without overflow when it is added to the current time.
const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests;
