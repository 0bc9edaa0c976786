//! A request to a backend, and its answer.

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use pinniped_core::hop;
use pinniped_forward::upstream::{RequestBody, ResponseBody, Upstream as Requests, UpstreamError};
use pinniped_forward::{ForwardError, Idle, Pace, Wanted, relay};
use pinniped_routing::table::{Forward, Protocol, Timeouts};
use pinniped_serve::Body;
use tokio::time::{Instant, sleep_until};

use super::answer::{status, text};
use super::headers::{self, Way};
use super::upload::Upload;
use crate::backend::{Backend, Server};
use crate::gateway::Inner;
use crate::live::Live;

/// What Envoy says, too, and people look for.
const NO_ENDPOINT: &str = "no healthy upstream";
const LATE: &str = "upstream request timeout";
const NO_ANSWER: &str = "upstream connect error or disconnect/reset before headers";

/// One request's way to a backend.
pub(super) struct Exchange<'a> {
    pub(super) inner: &'a Inner,
    pub(super) live: &'a Live,
    pub(super) forward: &'a Forward,
    pub(super) scheme: &'static str,
    pub(super) client: Option<IpAddr>,
    pub(super) certificate: Option<HeaderValue>,
    pub(super) is_h1: bool,
}

/// Why there is no answer of a backend.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the backend has no endpoint")]
    NoEndpoint,
    #[error("the backend did not answer in time")]
    Late,
    #[error("TLS with the backend cannot be: {0}")]
    Tls(#[from] Arc<pinniped_pki::tls::TlsError>),
    #[error("{}", of_upstream(.0))]
    Upstream(#[from] UpstreamError),
    #[error("{}", of_forward(.0))]
    Forward(#[from] ForwardError),
}

/// The words of `pinniped-forward` are about an API server.
fn of_upstream(error: &UpstreamError) -> String {
    match error {
        UpstreamError::Dial(why) => format!("could not connect to the backend: {}", chain(&**why)),
        UpstreamError::Full(connections) => format!("all {connections} connections to the backend are full"),
        UpstreamError::Silent => "the backend did not answer in time".to_owned(),
        UpstreamError::Http(why) => format!("the request to the backend failed: {}", chain(why)),
        UpstreamError::Http2(why) => format!("the request to the backend failed: {}", chain(why)),
    }
}

fn of_forward(error: &ForwardError) -> String {
    match error {
        ForwardError::Upstream(error) => of_upstream(error),
        ForwardError::UnaskedSwitch => {
            "the backend switched protocols, though nobody had asked for it".to_owned()
        }
        ForwardError::OtherProtocol => {
            "the backend switched to another protocol than the client asked for".to_owned()
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

impl Failure {
    fn answer(&self) -> Response<Body> {
        match self {
            Self::NoEndpoint => text(StatusCode::SERVICE_UNAVAILABLE, NO_ENDPOINT),
            Self::Late => text(StatusCode::GATEWAY_TIMEOUT, LATE),
            Self::Tls(_) | Self::Upstream(_) | Self::Forward(_) => {
                text(StatusCode::SERVICE_UNAVAILABLE, NO_ANSWER)
            }
        }
    }

    /// The request has not reached a server.
    fn is_unconnected(&self) -> bool {
        matches!(
            self,
            Self::Upstream(UpstreamError::Dial(_) | UpstreamError::Full(_))
                | Self::Forward(ForwardError::Upstream(UpstreamError::Dial(_) | UpstreamError::Full(_)))
        )
    }
}

impl Exchange<'_> {
    pub(super) async fn run(
        self,
        mut parts: Parts,
        body: Incoming,
        authority: Authority,
        path: &str,
    ) -> Response<Body> {
        let upgrade = if self.is_h1 { hop::upgrade_type(&parts.headers) } else { None };
        // An offer of HTTP/2 is not worth more than an answer in HTTP/1.1.
        let upgrade = upgrade.filter(|protocol| !protocol.as_bytes().eq_ignore_ascii_case(b"h2c"));
        let allowed = |protocol: &HeaderValue| {
            self.forward.websockets && protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
        };
        if upgrade.as_ref().is_some_and(|protocol| !allowed(protocol)) {
            return status(StatusCode::FORBIDDEN);
        }
        let Some(uri) = self.target(&parts.uri, authority, path) else {
            return status(StatusCode::BAD_REQUEST);
        };
        let client = parts.extensions.remove::<OnUpgrade>();
        parts.uri = uri;
        parts.extensions.clear();
        let way = Way { scheme: self.scheme, client: self.client, certificate: self.certificate.clone() };
        headers::rewrite(&mut parts.headers, way);
        let outcome = match (upgrade, client) {
            (Some(protocol), Some(client)) => Box::pin(self.upgrade(parts, body, protocol, client)).await,
            _ => self.send(parts, body).await,
        };
        outcome.unwrap_or_else(|failure| {
            self.inner.counts.failed.one();
            let service = self.forward.backends.choices().iter().map(|choice| &choice.upstream.id.service);
            let services = service.map(ToString::to_string).collect::<Vec<_>>().join(" ");
            tracing::debug!(error = %failure, services, "no answer of a backend");
            failure.answer()
        })
    }

    /// The client's own host, and the path as it was matched, or as the route changes it.
    fn target(&self, uri: &Uri, authority: Authority, path: &str) -> Option<Uri> {
        let rewritten = self.forward.rewrite.as_ref().map(|rewrite| rewrite.apply(path));
        let path_and_query = match &rewritten {
            None if path == uri.path() => {
                uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"))
            }
            rewritten => {
                let path = rewritten.as_deref().unwrap_or(path);
                match uri.query() {
                    Some(query) => PathAndQuery::try_from(format!("{path}?{query}")).ok()?,
                    None => PathAndQuery::try_from(path).ok()?,
                }
            }
        };
        let mut target = http::uri::Parts::default();
        target.scheme = Some(if self.scheme == "https" { Scheme::HTTPS } else { Scheme::HTTP });
        target.authority = Some(authority);
        target.path_and_query = Some(path_and_query);
        Uri::from_parts(target).ok()
    }

    /// The servers to try, and the backend that they are of.
    fn servers(&self) -> (Option<&Arc<Backend>>, impl Iterator<Item = Arc<Server>> + use<'_>) {
        let upstream = self.inner.weights.pick(&self.forward.backends);
        let backend = self.live.backend(upstream);
        (backend, backend.into_iter().flat_map(|backend| backend.order(&upstream.endpoints)))
    }

    async fn send(&self, parts: Parts, body: Incoming) -> Result<Response<Body>, Failure> {
        let (backend, servers) = self.servers();
        let backend = backend.ok_or(Failure::NoEndpoint)?;
        let upload = Upload::new(body);
        let mut servers = servers.peekable();
        let mut parts = Some(parts);
        let mut failure = Failure::NoEndpoint;
        while let (Some(server), Some(head)) = (servers.next(), parts.take()) {
            let again = servers.peek().is_some().then(|| head.clone());
            let requests = backend.requests(&server)?;
            let body = upload.as_ref().map_or(RequestBody::Empty, Upload::body);
            let answer = send(requests, backend.id.protocol, Request::from_parts(head, body));
            match in_time(answer, self.forward.timeouts, upload.as_ref()).await {
                Ok(response) => {
                    let pace = pace(self.forward.timeouts, upload.as_ref());
                    return Ok(relay(response, pace, server));
                }
                Err(error) => failure = error,
            }
            if failure.is_unconnected() && upload.as_ref().is_none_or(Upload::is_whole) {
                tracing::debug!(error = %failure, server = %server.address, "an endpoint takes no request");
                parts = again;
            }
        }
        Err(failure)
    }

    async fn upgrade(
        &self,
        parts: Parts,
        body: Incoming,
        protocol: HeaderValue,
        client: OnUpgrade,
    ) -> Result<Response<Body>, Failure> {
        let (backend, mut servers) = self.servers();
        let (Some(backend), Some(server)) = (backend, servers.next()) else {
            return Err(Failure::NoEndpoint);
        };
        let wanted =
            Wanted { protocol, client, ended: self.inner.draining.clone(), idle: self.forward.timeouts.idle };
        let requests = backend.requests(&server)?;
        let hold = Arc::clone(&server);
        let upgrade =
            pinniped_forward::upgrade(requests, parts, body, wanted, &self.inner.tunnels, None, hold);
        match self.forward.timeouts.response {
            None => Ok(upgrade.await?),
            Some(response) => {
                Ok(tokio::time::timeout(response, upgrade).await.map_err(|_| Failure::Late)??)
            }
        }
    }
}

async fn send(
    requests: &Requests,
    protocol: Protocol,
    request: Request<RequestBody>,
) -> Result<Response<ResponseBody>, Failure> {
    let response = match protocol {
        Protocol::Http1 | Protocol::Tls => requests.send_kept(request).await?,
        Protocol::H2 | Protocol::H2c => requests.send(request).await?,
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(ForwardError::UnaskedSwitch.into());
    }
    Ok(response)
}

/// Waits for the head of an answer, as long as the route allows: from the last byte of the request, and not longer than
/// nothing moves.
async fn in_time<T>(
    answer: impl Future<Output = Result<T, Failure>>,
    timeouts: Timeouts,
    upload: Option<&Upload>,
) -> Result<T, Failure> {
    let mut answer = pin!(answer);
    let Timeouts { response, idle } = timeouts;
    let Some(step) = response.into_iter().chain(idle).min() else { return answer.await };
    let began = Instant::now();
    let mut silent_since = began;
    loop {
        let now = Instant::now();
        let sent = upload.map_or(Some(began), Upload::ended);
        if upload.is_some_and(|upload| upload.alive().swap(false, std::sync::atomic::Ordering::Relaxed)) {
            silent_since = now;
        }
        let response_end = sent.zip(response).map(|(sent, response)| sent + response);
        let idle_end = idle.map(|idle| silent_since + idle);
        let end = response_end.into_iter().chain(idle_end).min();
        if end.is_some_and(|end| end <= now) {
            return Err(Failure::Late);
        }
        // While the request is on its way, its end is looked for often enough not to be late afterwards.
        let next =
            end.unwrap_or(now + step).min(if sent.is_none() { now + step } else { now + step.max(FAR) });
        tokio::select! {
            biased;
            outcome = answer.as_mut() => return outcome,
            () = sleep_until(next) => {}
        }
    }
}

/// As good as never, and no risk for the arithmetic of time.
const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// The time of the rest of an answer.
fn pace(timeouts: Timeouts, upload: Option<&Upload>) -> Pace {
    // While a request is still on its way its answer has begun: the two go on together, without a limit on the whole.
    let sent = upload.map_or_else(|| Some(Instant::now()), Upload::ended);
    Pace {
        deadline: sent.zip(timeouts.response).map(|(sent, response)| sent + response),
        idle: timeouts
            .idle
            .map(|after| Idle { after, alive: upload.map(|upload| Arc::clone(upload.alive())) }),
    }
}
