//! The impersonation proxy: one request's way, outermost first.
//!
//! ```text
//!  1 security headers       serve::layers     on every answer, errors too
//!  2 remember the tokens    bearer            before 8 takes them out of the headers
//!  3 audit id               serve::layers     the client's, or a fresh one
//!  4 panic guard            serve::layers     500, and the connection lives on
//!  5 request info           core              what follows needs verb and resource; a bad path ends here
//!  6 stopping?              (here)            503 once the stop has begun
//!  7 deadline               deadline          60 s or less; none for what is meant to last
//!  8 authenticate           authenticate      certificate, token, front proxy, anonymous; 401
//!  9 permit                 in_flight         429; charged to the client's own name, before anything is reviewed for it
//! 10 client impersonation   nested            the client's Impersonate-* headers, each part reviewed; 403
//! 11 authorize              authorize         SubjectAccessReview; 403
//! 12 identity               core, (here)      impersonate, pass through, or refuse
//! 13 forward or upgrade     reverse_proxy     streamed both ways; 502
//! ```
//!
//! The order from 3 to 11 is that of a Kubernetes API server (`DefaultBuildHandlerChain` in k8s.io/apiserver), which
//! upstream Pinniped embeds: clients can see it. Every refusal is a [`refusal::Refusal`], which alone knows what
//! the client gets to read.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use http::header::{HeaderValue, WARNING};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use pinniped_delegated_auth::bearer::EXTRA_SPACE_WARNING;
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::cluster::{Authorizer, ReviewError, TokenReviewer};
use pinniped_delegated_auth::request::RequestAuthenticator;
use pinniped_http_client::upstream::{RequestBody, add_ready};
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::Incoming;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Answer, Body, Connection, EndBy, Service, layers};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::client_impersonation::intake;
use pinniped_kube_request::identity::{KnownUser, User};
use pinniped_kube_request::impersonation::{Plan, TokenVerdict, needs_token_verdict, plan};
use pinniped_kube_request::request_info::{RequestInfo, RequestInfoError};
use pinniped_logging::value::TRACE;
use pinniped_reverse_proxy::{ProtocolPolicy, ResponseDeadline, Wanted};
use pinniped_secret::Token;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod anonymous_probe;
mod authenticate;
mod authorize;
mod bearer;
mod client_impersonation;
mod credential;
mod deadline;
mod draining;
mod forward;
mod in_flight;
mod metrics;
mod refusal;
mod request_guard;
mod server;

pub use anonymous_probe::{PROBE_INTERVAL, ProbeError};
pub use in_flight::InFlightLimits;
pub use metrics::ImpersonatorMetrics;
pub use server::{Impersonator, ImpersonatorParams, StartError, start};

use anonymous_probe::Capabilities;
use authenticate::Client;
use bearer::Tokens;
use client_impersonation::Impersonations;
use credential::Credential;
use draining::Draining;
use forward::Identity;
use in_flight::InFlight;
use metrics::Outcome;
use refusal::{Presentation, Refusal};
use request_guard::RequestGuard;

/// The stack as a service. Clones are the same stack.
#[derive(Clone)]
pub(crate) struct Stack(Arc<StackInner>);

struct StackInner {
    authenticator: RequestAuthenticator,
    reviewer: TokenReviewer,
    authorizer: Authorizer,
    impersonations: Impersonations,
    upstream: pinniped_kube_client::Upstream,
    /// For requests with a client's own credential: the API server may dislike it, and the connection with it.
    passthrough_upstream: pinniped_kube_client::Upstream,
    /// For requests that a program of some user answers: what it answers may be more than a connection bears.
    foreign_upstream: pinniped_kube_client::Upstream,
    impersonator: Credential,
    capabilities: Arc<Capabilities>,
    in_flight: InFlight,
    tunnels: Tunnels,
    draining: Draining,
    /// Cancelled when the proxy is gone.
    ended: CancellationToken,
    metrics: ImpersonatorMetrics,
}

/// What is known of a request before anybody decides about it.
struct Facts<'a> {
    connection: &'a Connection,
    url: &'a str,
    /// Set when the client deserves to know that its token did not count.
    ignored_token: &'a AtomicBool,
    info: RequestInfo,
    /// A pod, service or node answers, and the API server passes the answer on.
    foreign: bool,
    deadline: Option<Instant>,
}

impl Service for Stack {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> Answer {
        let (stack, connection) = (Arc::clone(&self.0), Arc::clone(connection));
        // It stays where it is until it is sent on: each step that took it over would keep room for it once more.
        let mut request = request.map(RequestBody::from);
        Box::pin(async move { stack.answer(&connection, &mut request).await })
    }

    fn knows(&self, connection: &Connection) -> bool {
        authenticate::knows(&self.0.authenticator, connection)
    }
}

impl StackInner {
    /// 1 to 4: whatever happens below, there is one answer with these headers.
    async fn answer(&self, connection: &Connection, request: &mut Request<RequestBody>) -> Response<Body> {
        let received = Instant::now();
        let asked = Presentation::of(request.uri(), request.version(), request.headers());
        let audit_id = layers::audit_id(request.headers());
        // The API server takes it over: one identifier for the logs of both.
        request.headers_mut().insert(layers::AUDIT_ID, audit_id.clone());
        let tokens = Tokens::of(request.headers());
        let ignored_token = AtomicBool::new(false);

        let serve = pin!(self.serve(connection, request, tokens, &ignored_token, &asked, received));
        let served = layers::guard_panic(serve).await;
        let (mut response, outcome) = match served {
            Ok(Ok(response)) if response.status().as_u16() == 101 => (response, Outcome::Upgraded),
            Ok(Ok(response)) => (response, Outcome::Forwarded),
            Ok(Err(refusal)) => {
                let outcome = refusal.outcome();
                let mut response = refusal.into_response(&asked);
                // Small as it is, a client that does not take it must not keep it, and its connection, for ever.
                response.extensions_mut().insert(EndBy(Instant::now() + deadline::LONGEST));
                (response, outcome)
            }
            Err(panicked) => {
                tracing::error!(error = %panicked, auditID = ?audit_id, "request handler panicked");
                (layers::panic_response(), Outcome::Panicked)
            }
        };
        self.metrics.ended(outcome, received.elapsed());

        if ignored_token.load(Ordering::Relaxed)
            && let Ok(warning) = HeaderValue::try_from(format!("299 - \"{EXTRA_SPACE_WARNING}\""))
        {
            response.headers_mut().append(WARNING, warning);
        }
        layers::add_audit_id(response.headers_mut(), audit_id);
        layers::add_security_headers(response.headers_mut());
        response
    }

    /// 5 to 7: what the request is, and how long it may take.
    async fn serve(
        &self,
        connection: &Connection,
        request: &mut Request<RequestBody>,
        tokens: Tokens,
        ignored_token: &AtomicBool,
        asked: &Presentation,
        received: Instant,
    ) -> Result<Response<Body>, Refusal> {
        let info = request_info(request.method(), request.uri())?;
        let foreign = info.subresource == "proxy";
        let mut facts =
            Facts { connection, url: asked.request_uri(), ignored_token, info, foreign, deadline: None };
        if self.draining.refuses(received) {
            return Err(Refusal::ShuttingDown);
        }
        let deadline = deadline::of(facts.info.is_long_running(), request.uri().query(), received)?;
        facts.deadline = deadline;
        // Pinned here, so that there is one of it, not one for each way to wait for it.
        let admitted = pin!(self.admit(request, &mut facts, tokens));
        match deadline {
            None => admitted.await,
            Some(deadline) => {
                tokio::time::timeout_at(deadline, admitted).await.map_err(|_| Refusal::Deadline)?
            }
        }
    }

    /// 8 to 11: who asks, as whom, and whether they may.
    async fn admit(
        &self,
        request: &mut Request<RequestBody>,
        facts: &mut Facts<'_>,
        tokens: Tokens,
    ) -> Result<Response<Body>, Refusal> {
        let policy = self.capabilities.anonymous();
        let client = Client::of(facts.connection);
        let (headers, info) = (request.headers_mut(), &facts.info);
        let caller =
            authenticate::authenticate(&self.authenticator, policy, info, headers, facts.connection, client)
                .await;
        if tokens.has_extra_space() && !authenticate::by_certificate(&caller) {
            facts.ignored_token.store(true, Ordering::Relaxed);
        }
        let caller = caller?;

        let long_running = facts.info.is_long_running();
        let attributes = Attributes::from(std::mem::take(&mut facts.info));
        let address = Some(facts.connection.peer_addr.ip());
        let key = ClientKey::of(&caller.user, caller.method, address, request.headers());
        let place = self.in_flight.enter(&key, long_running).await?;
        let target = match self.nested(request.headers_mut(), &caller.user, &attributes)? {
            None => None,
            Some(target) => Some(target.await?),
        };
        let (user, original) = match &target {
            None => (&caller.user, None),
            Some(target) => (target, Some(&*caller.user)),
        };

        authorize::authorize(&self.authorizer, key, user, &attributes).await?;

        let upgrade = hop_by_hop::wants_http1(request.headers());
        let hold = RequestGuard::new(place, facts.url, request.method(), upgrade);
        tracing::debug!(target: TRACE, username = user.name, "impersonation proxy servicing request was for user");
        forward::check_clean(request)?;
        let token = tokens.into_token(caller.method);
        let asked = (request.method(), request.uri());
        let identity = self.identity(user, original, token, facts, asked, upgrade).await?;
        let address = client.and_then(|client| client.address.clone());
        self.send(request, &identity, address, facts, hold).await
    }

    /// 10: whom the client wants to be, and whether it may.
    fn nested<'a>(
        &'a self,
        headers: &mut HeaderMap,
        caller: &'a User,
        attributes: &'a Attributes,
    ) -> Result<Option<BoxFuture<'a, Result<KnownUser, Refusal>>>, Refusal> {
        let wanted = intake(headers).map_err(|error| Refusal::BadImpersonation(error.to_string()))?;
        let Some(wanted) = wanted else { return Ok(None) };
        // Rare, and large: every other request would carry its room.
        Ok(Some(Box::pin(async move {
            self.impersonations.become_user(caller, &wanted, attributes).await.map(KnownUser::from)
        })))
    }

    /// 12: as whom the API server will see the request.
    async fn identity<'a>(
        &self,
        user: &'a KnownUser,
        original: Option<&'a User>,
        token: Option<Token>,
        facts: &Facts<'_>,
        (method, uri): (&Method, &Uri),
        upgrade: bool,
    ) -> Result<Identity<'a>, Refusal> {
        let verdict = match &token {
            Some(token) if needs_token_verdict(user, original.is_some()) => {
                Box::pin(self.whose(token, facts.connection)).await?
            }
            _ => TokenVerdict::None,
        };
        let refusal = match (plan(user, original, &verdict, self.capabilities.uids()), token) {
            (Plan::Impersonate(impersonation), _) => return Ok(Identity::Impersonate(user, impersonation)),
            (Plan::Passthrough, Some(token)) => return Ok(Identity::Passthrough(token)),
            (Plan::Passthrough, None) => pinniped_kube_request::impersonation::Refusal::NoToken,
            (Plan::Refuse(refusal), _) => refusal,
        };
        tracing::warn!(
            error = %refusal,
            url = %uri,
            method = %method,
            isUpgradeRequest = upgrade,
            "rejecting request as we cannot act as the current user"
        );
        Err(Refusal::Internal("unimplemented functionality - unable to act as current user"))
    }

    async fn whose(&self, token: &Token, connection: &Connection) -> Result<TokenVerdict, Refusal> {
        match self.reviewer.review(token, Some(connection.peer_addr.ip())).await {
            Ok(Some(user)) => Ok(TokenVerdict::Is(User::clone(&user).with_authenticated_group())),
            Ok(None) => Ok(TokenVerdict::Rejected),
            Err(ReviewError::Overloaded) => Err(Refusal::Overloaded),
            Err(error @ ReviewError::Call(_)) => Ok(TokenVerdict::Unknown(error.to_string())),
        }
    }

    /// 13: to the API server and back.
    async fn send(
        &self,
        request: &mut Request<RequestBody>,
        identity: &Identity<'_>,
        address: Option<HeaderValue>,
        facts: &Facts<'_>,
        hold: RequestGuard,
    ) -> Result<Response<Body>, Refusal> {
        let deadline = facts.deadline;
        let carrier = ProtocolPolicy::of(identity.is_exact_in_http1());
        let protocol = hop_by_hop::upgrade_type(request.headers());
        let client = request.extensions_mut().remove::<OnUpgrade>();
        let ours = self.impersonator.header();
        let added = forward::rewrite(request, identity, ours, address)?;
        let ready = added.ready();
        let upstream = match identity {
            Identity::Impersonate(..) if facts.foreign => &self.foreign_upstream,
            Identity::Impersonate(..) => &self.upstream,
            Identity::Passthrough(_) => &self.passthrough_upstream,
        };
        let sent = match (protocol, client) {
            // An upgrade goes over HTTP/1.1.
            (Some(_), Some(_)) if carrier == ProtocolPolicy::Http2 => {
                return Err(forward::identity_does_not_fit());
            }
            (Some(protocol), Some(client)) => {
                let wanted = Wanted { protocol, client, ended: self.ended.clone(), idle: None };
                add_ready(request, &ready).map_err(|error| forward::refusal_of(&error.into()))?;
                let request = std::mem::take(request);
                let upgrade =
                    pinniped_reverse_proxy::upgrade(upstream, request, wanted, &self.tunnels, deadline, hold);
                // Rare, and large: every other request would carry its room.
                Box::pin(upgrade).await
            }
            _ => {
                // What has no deadline may be silent for long.
                let span = deadline
                    .map_or(ResponseDeadline::Long, |deadline| ResponseDeadline::Short(Some(deadline)));
                pinniped_reverse_proxy::forward(upstream, request, &ready, carrier, span, hold).await
            }
        };
        let response = sent.map_err(|error| forward::refusal_of(&error))?;
        // Of the API server, or of a server behind it that wants a credential of its own: the token's source finds out.
        if response.status() == StatusCode::UNAUTHORIZED && matches!(identity, Identity::Impersonate(..)) {
            self.impersonator.refused(added.authorization());
        }
        Ok(response)
    }
}

fn request_info(method: &Method, uri: &Uri) -> Result<RequestInfo, Refusal> {
    RequestInfo::parse(method, uri).map_err(|error| match error {
        RequestInfoError::BadEscape(_) | RequestInfoError::NoTarget(_) => Refusal::BadPath,
        error @ RequestInfoError::NoKind(_) => Refusal::NoRequestInfo(error.to_string()),
    })
}
