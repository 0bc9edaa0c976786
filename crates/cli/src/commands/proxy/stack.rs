//! The handler chain of the proxy, outermost first.
//!
//! ```text
//! 1 panic guard          http_server::layers  500; the connection stays open
//! 2 this machine's name? gate                 421
//! 3 the secret           gate                 401; required for all further steps
//! 4 the login            logins               a fresh one if necessary; 503 with the reason
//! 5 the head             identity, (here)     removes hop-by-hop headers, credentials and
//!                                             impersonation of the client, adds the identity
//! 6 forward or upgrade   reverse_proxy        streamed in both directions; 503 with the reason
//! 7 token refused?       identity             401 of the API server: the next request logs in
//! ```
//!
//! The proxy sets no deadline: the API server and the client have their own. Responses are returned
//! unchanged.

use std::sync::Arc;

use http::header::{EXPECT, HOST, HeaderValue, WARNING};
use http::{Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use jiff::Timestamp;
use pinniped_apiserver::respond::{self, Negotiated};
use pinniped_apiserver::response_headers;
use pinniped_error::chain;
use pinniped_http_client::upstream::{RequestBody, Upstream, add_precomputed};
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::Incoming;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Body, Connection, ResponseFuture, Service, layers};
use pinniped_kube_client::ApiServerError;
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_kube_types::status::Status;
use pinniped_reverse_proxy::{ClientUpgrade, ForwardError, ProtocolPolicy, ResponseDeadline};
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::identity::{Identity, strip};
use super::logins::{Logins, RenewalError};

/// The warning for a client that requested impersonation.
const NOT_IMPERSONATED: HeaderValue = HeaderValue::from_static(
    "299 - \"pinniped proxy ignores impersonation (such as --as): every request is made as the user who logged in\"",
);

/// The chain as a service. Clones share the same chain.
#[derive(Clone)]
pub(super) struct Stack(Arc<Inner>);

struct Inner {
    gate: Gate,
    logins: Arc<Logins>,
    upstream: Upstream,
    base: String,
    tunnels: Tunnels,
    ended: CancellationToken,
}

/// The reason why the proxy itself responds.
enum Refusal {
    OtherHost,
    Stranger,
    Login(Arc<RenewalError>),
    BadPath,
    /// The name has surrounding spaces.
    NotForHttp1,
    Forward(ForwardError),
}

impl Stack {
    pub(super) fn new(
        gate: Gate,
        logins: Arc<Logins>,
        upstream: Upstream,
        base: String,
        tunnels: Tunnels,
        ended: CancellationToken,
    ) -> Self {
        Self(Arc::new(Inner { gate, logins, upstream, base, tunnels, ended }))
    }
}

impl Service for Stack {
    fn call(&self, _: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        let stack = Arc::clone(&self.0);
        let mut request = request.map(RequestBody::from);
        Box::pin(async move { stack.respond(&mut request).await })
    }
}

impl Inner {
    /// Step 1.
    async fn respond(&self, request: &mut Request<RequestBody>) -> Response<Body> {
        let negotiated = Negotiated::from_headers(request.headers(), request.uri().query());
        let served = std::pin::pin!(self.serve(request));
        match layers::guard_panic(served).await {
            Ok(Ok(response)) => response,
            Ok(Err(refusal)) => refusal.into_response(&negotiated),
            Err(_panicked) => response_headers::panic_response(),
        }
    }

    /// Steps 2 to 4, and 7.
    async fn serve(&self, request: &mut Request<RequestBody>) -> Result<Response<Body>, Refusal> {
        if !Gate::is_meant(request.uri(), request.headers()) {
            return Err(Refusal::OtherHost);
        }
        if !self.gate.admits(request.headers()) {
            return Err(Refusal::Stranger);
        }
        let identity = self.logins.identity().await.map_err(Refusal::Login)?;
        let response = self.send(request, &identity).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            identity.refuse(Timestamp::now());
        }
        Ok(response)
    }

    /// Steps 5 and 6.
    async fn send(
        &self,
        request: &mut Request<RequestBody>,
        identity: &Identity,
    ) -> Result<Response<Body>, Refusal> {
        // The API server refuses requests that cannot be parsed.
        let info = RequestInfo::parse(request.method(), request.uri());
        let lasts = info.is_ok_and(|info| info.is_long_running());
        let policy = ProtocolPolicy::of(identity.headers().is_exact_in_http1());
        let protocol = hop_by_hop::upgrade_type(request.headers());
        let client = request.extensions_mut().remove::<OnUpgrade>();
        let precomputed = identity.headers();
        let wanted_another = self.rewrite(request)?;
        let mut response = match (protocol, client) {
            // An upgrade uses HTTP/1.1.
            (Some(_), Some(_)) if policy == ProtocolPolicy::Http2 => return Err(Refusal::NotForHttp1),
            (Some(protocol), Some(client)) => {
                let wanted =
                    ClientUpgrade { protocol, client, idle: None, ended: self.ended.clone(), tap: None };
                add_precomputed(request, &[precomputed]).map_err(|error| Refusal::Forward(error.into()))?;
                let request = std::mem::take(request);
                let upgrade =
                    pinniped_reverse_proxy::upgrade(&self.upstream, request, wanted, &self.tunnels, None, ());
                // Boxed because it is large and rare; otherwise every request future would reserve
                // space for it.
                Box::pin(upgrade).await
            }
            _ => {
                let response_deadline =
                    if lasts { ResponseDeadline::Long } else { ResponseDeadline::Short(None) };
                pinniped_reverse_proxy::forward(
                    &self.upstream,
                    request,
                    &[precomputed],
                    policy,
                    response_deadline,
                    (),
                )
                .await
            }
        }
        .map_err(Refusal::Forward)?;
        if wanted_another {
            response.headers_mut().append(WARNING, NOT_IMPERSONATED);
        }
        Ok(response)
    }

    /// Rewrites the head. Hop-by-hop headers are removed first, so that a client cannot name the
    /// proxy's headers in `Connection` to have them removed.
    fn rewrite<B>(&self, request: &mut Request<B>) -> Result<bool, Refusal> {
        let headers = request.headers_mut();
        hop_by_hop::strip_request(headers);
        // The server of the proxy sends `100 Continue` when the body is first read.
        headers.remove(EXPECT);
        headers.remove(HOST);
        let wanted_another = strip(headers);
        let target = super::below(&self.base, request.uri()).ok_or(Refusal::BadPath)?;
        *request.uri_mut() = target;
        request.extensions_mut().clear();
        Ok(wanted_another)
    }
}

impl Refusal {
    fn into_response(self, negotiated: &Negotiated) -> Response<Body> {
        let status = |status: &Status| respond::status(status, negotiated);
        match self {
            Self::OtherHost => {
                layers::plain_error(StatusCode::MISDIRECTED_REQUEST, "421 Misdirected Request")
            }
            Self::Stranger => status(&Status::unauthorized()),
            Self::BadPath => layers::plain_error(StatusCode::BAD_REQUEST, "400 Bad Request"),
            Self::Login(error) => {
                let text = format!("pinniped proxy could not log in: {}", chain(&*error));
                status(&Status::service_unavailable(text))
            }
            Self::NotForHttp1 => status(&Status::bad_request(
                "your user name, or one of your groups, begins or ends with a space, which HTTP/1.1 cannot transmit: \
                 exec, attach and port-forward cannot be used",
            )),
            Self::Forward(error) => {
                let text =
                    format!("pinniped proxy received no response: {}", chain(&ApiServerError::from(error)));
                status(&Status::service_unavailable(text))
            }
        }
    }
}
