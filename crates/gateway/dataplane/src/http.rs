//! HTTP requests: routing, and the action of the selected route.
//!
//! ```text
//! 1 host                 Host or :authority; none: 400                   here
//! 2 path normalization   dot segments, double slashes                    routing::prepare
//! 3 route                in the current table: 404, 421, 301 to https    routing, here
//! 4 redirect, response   direct responses of the route                   redirect, direct_response
//! 5 headers              removes hop-by-hop headers,                     headers
//!                        sets x-forwarded-* and x-request-id
//! 6 backend              by weight, then endpoint; upgrades if allowed  exchange
//! 7 response             streamed, within its timeouts                   reverse_proxy::relay
//! ```
//!
//! The service reads the routing table for each request, not for each connection. If a host
//! requires more client validation than it did when the connection was opened, the response is 421,
//! and the client retries on a new connection.

use std::future::ready;
use std::sync::{Arc, OnceLock};

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use pinniped_gateway_routing::table::{
    Action, ClientValidation, Decision, RequestParts, TlsTarget, host_of, prepare,
};
use pinniped_http_server::Incoming;
use pinniped_http_server::{Body, Connection, ResponseFuture, Service, layers};
use tokio_util::sync::CancellationToken;

use crate::active_table::ActiveTable;
use crate::gateway::Inner;
use crate::termination::{same_validation, validation};

mod client_certificate;
mod direct_response;
mod exchange;
mod metrics;
mod redirect;
mod request_headers;
mod trace;
mod upload;

use exchange::{Exchange, RequestDetails, Upgrade};
use metrics::Received;

pub use metrics::RequestMetrics;
pub use trace::Traces;

/// The entry point of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Port 80.
    Plain,
    /// Port 443 with this server name and the client validation of the handshake. `ended`
    /// terminates upgraded connections.
    Host { name: Box<str>, validation: Option<Arc<ClientValidation>>, ended: CancellationToken },
    /// Port 443 without a server name, or with an unknown one.
    Fallback { name: Option<Box<str>> },
}

impl Entry {
    fn scheme(&self) -> &'static str {
        match self {
            Self::Plain => "http",
            Self::Host { .. } | Self::Fallback { .. } => "https",
        }
    }
}

/// The HTTP service of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Http(Arc<PerConnection>);

#[derive(Debug)]
struct PerConnection {
    inner: Arc<Inner>,
    entry: Entry,
    /// The value of `x-forwarded-client-cert`.
    certificate: OnceLock<Option<HeaderValue>>,
    /// The client address for `x-forwarded-for`.
    client: OnceLock<Option<HeaderValue>>,
}

impl Http {
    pub(crate) fn new(inner: Arc<Inner>, entry: Entry) -> Self {
        Self(Arc::new(PerConnection { inner, entry, certificate: OnceLock::new(), client: OnceLock::new() }))
    }
}

impl Service for Http {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        // All synchronous work runs before the future is created; otherwise the future would
        // reserve space for it. A panic must not terminate the other requests of the connection.
        let received = Received::now(request.method());
        let traces = self.0.inner.traces.as_ref();
        let span = traces.and_then(|traces| traces.begin(self.0.entry.scheme(), &request));
        let response = match layers::catch_panic(|| self.0.decide(connection, request, received)) {
            Ok(Next::Respond(response)) => response,
            Ok(Next::Send(mut exchange)) => {
                connection.permit.confirm();
                return match span {
                    None => Box::pin(async move { exchange.send().await }),
                    Some(span) => Box::pin(async move { exchange.send_recorded(&span).await }),
                };
            }
            Ok(Next::Upgrade(upgrade)) => {
                connection.permit.confirm();
                return Box::pin(upgrade.run(span));
            }
            Err(panicked) => {
                tracing::error!(error = %panicked, "no route was chosen");
                direct_response::status(StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        self.0.inner.requests.responded(received, Some(response.status()));
        if let Some(span) = span {
            span.end(response.status());
        }
        Box::pin(ready(response))
    }
}

/// The next step for a request.
enum Next {
    Respond(Response<Body>),
    Send(Exchange),
    Upgrade(Upgrade),
}

impl PerConnection {
    /// Executes steps 1 to 6.
    fn decide(&self, connection: &Connection, request: Request<Incoming>, received: Received) -> Next {
        let is_h1 = request.version() < Version::HTTP_2;
        let (parts, body) = request.into_parts();
        let Some(authority) = authority(&parts) else {
            return Next::Respond(direct_response::status(StatusCode::BAD_REQUEST));
        };
        // The gateway offers no tunnels to arbitrary destinations, whatever the routes contain.
        if parts.method == Method::CONNECT {
            return Next::Respond(direct_response::status(StatusCode::NOT_FOUND));
        }
        let path = prepare(parts.uri.path());
        let request_parts = RequestParts {
            method: &parts.method,
            authority: authority.as_str(),
            path: &path,
            query: parts.uri.query(),
            headers: &parts.headers,
        };
        let active = self.inner.active();
        let route = match self.route(&active, &request_parts) {
            Decision::Take(route) => Arc::clone(route),
            Decision::UpgradeToHttps => {
                return Next::Respond(redirect::to_https(authority.as_str(), &path, parts.uri.query()));
            }
            Decision::NotFound => {
                self.inner.counts.not_found.one();
                return Next::Respond(direct_response::status(StatusCode::NOT_FOUND));
            }
            Decision::Misdirected => {
                self.inner.counts.misdirected.one();
                return Next::Respond(direct_response::status(StatusCode::MISDIRECTED_REQUEST));
            }
        };
        match &route.action {
            Action::Redirect(redirect) => {
                let from = redirect::From {
                    scheme: self.entry.scheme(),
                    authority: authority.as_str(),
                    path: &path,
                    query: parts.uri.query(),
                };
                Next::Respond(redirect::redirect(redirect, &from))
            }
            Action::Respond(response) => Next::Respond(direct_response::of_route(response)),
            Action::Forward(forward) => {
                // An unchanged path is forwarded as it was received.
                let path = (*path != *parts.uri.path()).then(|| path.into_owned());
                let certificate = self.certificate(connection);
                let details = RequestDetails { received, authority, path, is_h1, certificate };
                exchange::begin(self, connection, &active, forward, details, parts, body)
            }
        }
    }

    fn route<'a>(&self, active: &'a ActiveTable, request_parts: &RequestParts<'_>) -> Decision<'a> {
        let table = &active.table;
        match &self.entry {
            Entry::Plain => table.plain.route(request_parts),
            Entry::Host { name, validation: shown, .. } => match table.tls.by_sni(Some(name)) {
                Some(TlsTarget::Host(host)) if same_validation(validation(host), shown.as_ref()) => {
                    host.route(name, request_parts)
                }
                // The client validation has changed, or the fallback serves the name now: the
                // client must open a new connection.
                Some(TlsTarget::Host(_) | TlsTarget::Fallback(_)) => Decision::Misdirected,
                None => Decision::NotFound,
            },
            Entry::Fallback { name } => match table.tls.by_sni(name.as_deref()) {
                Some(TlsTarget::Fallback(fallback)) => fallback.route(request_parts),
                Some(TlsTarget::Host(_)) => Decision::Misdirected,
                None => Decision::NotFound,
            },
        }
    }

    /// Returns the token that terminates an upgraded connection to this host; `None` if the host no
    /// longer exists.
    fn end_of_upgraded(&self, authority: &Authority) -> Option<CancellationToken> {
        match &self.entry {
            Entry::Plain => Some(self.inner.draining.clone()),
            Entry::Host { ended, .. } => Some(ended.clone()),
            Entry::Fallback { .. } => self.inner.revocation_of_fallback_host(host_of(authority.as_str())),
        }
    }

    /// Returns the value of `x-forwarded-client-cert`, computed once for each connection.
    fn certificate(&self, connection: &Connection) -> Option<HeaderValue> {
        let Entry::Host { validation: Some(validation), .. } = &self.entry else { return None };
        let wanted = validation.forward?;
        let made = || client_certificate::header(wanted, &connection.peer_certificates);
        self.certificate.get_or_init(made).clone()
    }

    /// Returns the client address for `x-forwarded-for`, computed once for each connection.
    fn client(&self, connection: &Connection) -> Option<HeaderValue> {
        let made = || connection.peer_addr.ip().to_canonical().to_string().try_into().ok();
        self.client.get_or_init(made).clone()
    }
}

/// Returns the host of a request, with the port if there is one. HTTP/2 clients and proxies send it
/// in the URI, other clients in one `Host` header. User information is refused in both, because a
/// backend could parse it as another host.
fn authority(parts: &Parts) -> Option<Authority> {
    let without_user = |authority: &Authority| !authority.as_str().contains('@');
    if let Some(authority) = parts.uri.authority() {
        return Some(authority.clone()).filter(without_user);
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next()?;
    if hosts.next().is_some() {
        return None;
    }
    host.to_str().ok()?.parse().ok().filter(without_user)
}
