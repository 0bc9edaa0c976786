//! One request's way through the proxy, outermost first.
//!
//! ```text
//! 1 panic guard          serve::layers     500, and the connection lives on
//! 2 this machine meant?  gate              421
//! 3 the secret           gate              401; nothing below is reached without it
//! 4 the login            logins            a fresh one if need be; 503 with the reason
//! 5 the head             identity, (here)  hop-by-hop headers, credentials and impersonation of the client off, ours on
//! 6 forward or upgrade   reverse_proxy     streamed both ways; 503 with the reason
//! 7 refused?             identity          401 of the API server: the next request logs in again
//! ```
//!
//! There is no deadline: the API server has its own, and so has the client. Answers are passed on as they are.

use std::error::Error;
use std::sync::Arc;

use http::header::{EXPECT, HOST, HeaderValue, WARNING};
use http::{Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use jiff::Timestamp;
use pinniped_apiserver::respond::{self, Negotiated};
use pinniped_http_client::upstream::{RequestBody, Upstream, add_ready};
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::Incoming;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Answer, Body, Connection, Service, layers};
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_kube_types::status::Status;
use pinniped_reverse_proxy::{ForwardError, ProtocolPolicy, ResponseDeadline, Wanted};
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::identity::{Identity, strip};
use super::logins::Logins;

/// What a client hears that wanted to be somebody else.
const NOT_IMPERSONATED: HeaderValue = HeaderValue::from_static(
    "299 - \"pinniped proxy ignores impersonation (such as --as): every request is made as the user who logged in\"",
);

/// The stack as a service. Clones are the same stack.
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

/// Why the proxy itself answers.
enum Refusal {
    OtherHost,
    Stranger,
    Login(String),
    BadPath,
    /// Spaces around a name.
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
    fn call(&self, _: &Arc<Connection>, request: Request<Incoming>) -> Answer {
        let stack = Arc::clone(&self.0);
        let mut request = request.map(RequestBody::from);
        Box::pin(async move { stack.answer(&mut request).await })
    }
}

impl Inner {
    /// 1.
    async fn answer(&self, request: &mut Request<RequestBody>) -> Response<Body> {
        let negotiated = Negotiated::from_headers(request.headers(), request.uri().query());
        let served = std::pin::pin!(self.serve(request));
        match layers::guard_panic(served).await {
            Ok(Ok(response)) => response,
            Ok(Err(refusal)) => refusal.into_response(&negotiated),
            Err(_panicked) => layers::panic_response(),
        }
    }

    /// 2 to 4, and 7.
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

    /// 5 and 6.
    async fn send(
        &self,
        request: &mut Request<RequestBody>,
        identity: &Identity,
    ) -> Result<Response<Body>, Refusal> {
        // What cannot be read is the API server's to refuse.
        let info = RequestInfo::parse(request.method(), request.uri());
        let lasts = info.is_ok_and(|info| info.is_long_running());
        let carrier = ProtocolPolicy::of(identity.headers().is_exact_in_http1());
        let protocol = hop_by_hop::upgrade_type(request.headers());
        let client = request.extensions_mut().remove::<OnUpgrade>();
        let ready = identity.headers();
        let wanted_another = self.rewrite(request)?;
        let mut response = match (protocol, client) {
            // An upgrade goes over HTTP/1.1.
            (Some(_), Some(_)) if carrier == ProtocolPolicy::Http2 => return Err(Refusal::NotForHttp1),
            (Some(protocol), Some(client)) => {
                let wanted = Wanted { protocol, client, idle: None, ended: self.ended.clone() };
                add_ready(request, &[ready]).map_err(|error| Refusal::Forward(error.into()))?;
                let request = std::mem::take(request);
                let upgrade =
                    pinniped_reverse_proxy::upgrade(&self.upstream, request, wanted, &self.tunnels, None, ());
                // Rare, and large: every other request would carry its room.
                Box::pin(upgrade).await
            }
            _ => {
                let span = if lasts { ResponseDeadline::Long } else { ResponseDeadline::Short(None) };
                pinniped_reverse_proxy::forward(&self.upstream, request, &[ready], carrier, span, ()).await
            }
        }
        .map_err(Refusal::Forward)?;
        if wanted_another {
            response.headers_mut().append(WARNING, NOT_IMPERSONATED);
        }
        Ok(response)
    }

    /// Rewrites the head. Hop-by-hop headers go first, so that a client cannot use them to take ours off.
    fn rewrite<B>(&self, request: &mut Request<B>) -> Result<bool, Refusal> {
        let headers = request.headers_mut();
        hop_by_hop::strip_request(headers);
        // The server below us answers it as soon as the body is read.
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
            Self::Login(why) => {
                status(&Status::service_unavailable(format!("pinniped proxy could not log in: {why}")))
            }
            Self::NotForHttp1 => status(&Status::bad_request(
                "your user name, or one of your groups, begins or ends with a space, which HTTP/1.1 does not carry: \
                 exec, attach, port-forward and their like cannot be used",
            )),
            Self::Forward(error) => {
                let text = format!("pinniped proxy got no answer: {}", chain(&error));
                status(&Status::service_unavailable(text))
            }
        }
    }
}

/// An error with what caused it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
