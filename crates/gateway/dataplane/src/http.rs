//! Requests: which route they take, and what becomes of them there.
//!
//! ```text
//! 1 whom it is for        Host or :authority; none: 400                             here
//! 2 the path made plain   dot segments, double slashes                              routing::prepare
//! 3 the route             by the table of this moment: 404, 421, 301 to https       routing, here
//! 4 redirect, or answer   from the route                                            redirect, answer
//! 5 headers               hop-by-hop off; x-forwarded-*, x-request-id on            headers
//! 6 a backend             by weight, then an endpoint; upgrades only where allowed  exchange
//! 7 the answer            streamed, within its time                                 forward::relay
//! ```
//!
//! The table is asked for each request, not for each connection. A connection that was opened when a host demanded
//! less of its clients than now gets 421, and its client comes again over a new one.

use std::future::ready;
use std::sync::{Arc, OnceLock};

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use pinniped_gateway_routing::table::{
    Action, ClientValidation, Decision, RequestFacts, TlsTarget, host_of, prepare,
};
use pinniped_http_server::Incoming;
use pinniped_http_server::{Answer, Body, Connection, Service, layers};
use tokio_util::sync::CancellationToken;

use crate::gateway::Inner;
use crate::live::Live;
use crate::termination::{same_validation, validation};

mod answer;
mod client_certificate;
mod exchange;
mod headers;
mod redirect;
mod upload;

use exchange::{Asked, Exchange, Upgrade};

/// How a connection came in.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Port 80.
    Plain,
    /// Port 443, for this name, with this demanded in the handshake. What leaves HTTP ends with `ended`.
    Host { name: Box<str>, validation: Option<Arc<ClientValidation>>, ended: CancellationToken },
    /// Port 443, for no name, or one that nobody had.
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

/// The service of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Http(Arc<PerConnection>);

#[derive(Debug)]
struct PerConnection {
    inner: Arc<Inner>,
    entry: Entry,
    /// What backends are told of the client's certificate.
    certificate: OnceLock<Option<HeaderValue>>,
    /// What they are told of its address.
    client: OnceLock<Option<HeaderValue>>,
}

impl Http {
    pub(crate) fn new(inner: Arc<Inner>, entry: Entry) -> Self {
        Self(Arc::new(PerConnection { inner, entry, certificate: OnceLock::new(), client: OnceLock::new() }))
    }
}

impl Service for Http {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> Answer {
        // All that needs no waiting is done before there is a future, which would keep room for it. The connection has
        // other requests, so a panic must not get through to it.
        match layers::catch_panic(|| self.0.decide(connection, request)) {
            Ok(Next::Answer(response)) => Box::pin(ready(response)),
            Ok(Next::Send(mut exchange)) => {
                connection.permit.confirm();
                Box::pin(async move { exchange.send().await })
            }
            Ok(Next::Upgrade(upgrade)) => {
                connection.permit.confirm();
                Box::pin(upgrade.run())
            }
            Err(panicked) => {
                tracing::error!(error = %panicked, "no route was chosen");
                Box::pin(ready(answer::status(StatusCode::INTERNAL_SERVER_ERROR)))
            }
        }
    }
}

/// What becomes of a request.
enum Next {
    Answer(Response<Body>),
    Send(Exchange),
    Upgrade(Upgrade),
}

impl PerConnection {
    /// 1 to 6.
    fn decide(&self, connection: &Connection, request: Request<Incoming>) -> Next {
        self.inner.counts.requests.one();
        let is_h1 = request.version() < Version::HTTP_2;
        let (parts, body) = request.into_parts();
        let Some(authority) = authority(&parts) else {
            return Next::Answer(answer::status(StatusCode::BAD_REQUEST));
        };
        // Whatever the routes say of its path, a tunnel to somewhere else is nothing that a gateway has.
        if parts.method == Method::CONNECT {
            return Next::Answer(answer::status(StatusCode::NOT_FOUND));
        }
        let path = prepare(parts.uri.path());
        let facts = RequestFacts {
            method: &parts.method,
            authority: authority.as_str(),
            path: &path,
            query: parts.uri.query(),
            headers: &parts.headers,
        };
        let live = self.inner.live();
        let route = match self.route(&live, &facts) {
            Decision::Take(route) => Arc::clone(route),
            Decision::UpgradeToHttps => {
                return Next::Answer(redirect::to_https(authority.as_str(), &path, parts.uri.query()));
            }
            Decision::NotFound => {
                self.inner.counts.not_found.one();
                return Next::Answer(answer::status(StatusCode::NOT_FOUND));
            }
            Decision::Misdirected => {
                self.inner.counts.misdirected.one();
                return Next::Answer(answer::status(StatusCode::MISDIRECTED_REQUEST));
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
                Next::Answer(redirect::redirect(redirect, &from))
            }
            Action::Respond(response) => Next::Answer(answer::of_route(response)),
            Action::Forward(forward) => {
                // What is as it came stays as it came.
                let path = (*path != *parts.uri.path()).then(|| path.into_owned());
                let asked = Asked { authority, path, is_h1, certificate: self.certificate(connection) };
                exchange::begin(self, connection, &live, forward, asked, parts, body)
            }
        }
    }

    fn route<'a>(&self, live: &'a Live, facts: &RequestFacts<'_>) -> Decision<'a> {
        let table = &live.table;
        match &self.entry {
            Entry::Plain => table.plain.route(facts),
            Entry::Host { name, validation: shown, .. } => match table.tls.by_sni(Some(name)) {
                Some(TlsTarget::Host(host)) if same_validation(validation(host), shown.as_ref()) => {
                    host.route(name, facts)
                }
                // Demands have changed, or the name has gone to the fallback: a new connection is asked for.
                Some(TlsTarget::Host(_) | TlsTarget::Fallback(_)) => Decision::Misdirected,
                None => Decision::NotFound,
            },
            Entry::Fallback { name } => match table.tls.by_sni(name.as_deref()) {
                Some(TlsTarget::Fallback(fallback)) => fallback.route(facts),
                Some(TlsTarget::Host(_)) => Decision::Misdirected,
                None => Decision::NotFound,
            },
        }
    }

    /// What ends an upgraded connection to this host; `None` if the host is gone meanwhile.
    fn end_of_upgraded(&self, authority: &Authority) -> Option<CancellationToken> {
        match &self.entry {
            Entry::Plain => Some(self.inner.draining.clone()),
            Entry::Host { ended, .. } => Some(ended.clone()),
            Entry::Fallback { .. } => self.inner.end_of_fallback_host(host_of(authority.as_str())),
        }
    }

    /// The value of `x-forwarded-client-cert`, made once a connection.
    fn certificate(&self, connection: &Connection) -> Option<HeaderValue> {
        let Entry::Host { validation: Some(validation), .. } = &self.entry else { return None };
        let wanted = validation.forward?;
        let made = || client_certificate::header(wanted, &connection.peer_certificates);
        self.certificate.get_or_init(made).clone()
    }

    /// The client's address in `x-forwarded-for`, made once a connection.
    fn client(&self, connection: &Connection) -> Option<HeaderValue> {
        let made = || connection.peer_addr.ip().to_canonical().to_string().try_into().ok();
        self.client.get_or_init(made).clone()
    }
}

/// Whom a request is for, with the port if there is one. HTTP/2 and proxies say it in the URI, everybody else in one
/// `Host` header. A user beside the host has no business in either, and could be read as another host by the backend.
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
