//! The impersonation proxy: the handler chain of one request, outermost first.
//!
//! ```text
//!  1 security headers      http server layers  on every response, errors included
//!  2 tokens                bearer              copied before step 8 removes them
//!  3 audit ID              http server layers  the client's, or a new one
//!  4 panic guard           http server layers  500; the connection stays open
//!  5 request info          kubernetes request  verb and resource; 400 or 500 for a bad path
//!  6 shutdown              draining            503 once the shutdown has begun
//!  7 deadline              deadline            60 s or less; none for long-running requests
//!  8 authenticate          authenticate        certificate, token, front proxy, anonymous; 401
//!  9 max in flight         in_flight           429; charged to the client itself, before any
//!                                              review for the request
//! 10 client impersonation  client_impersonation  Impersonate-* headers, each part reviewed; 403
//! 11 authorize             authorize           SubjectAccessReview; 403
//! 12 identity              kubernetes request  impersonate, pass through, or refuse
//! 13 forward or upgrade    reverse_proxy       streamed in both directions; 502
//! ```
//!
//! The order of steps 3 to 11 is that of a Kubernetes API server (`DefaultBuildHandlerChain` in
//! k8s.io/apiserver), which upstream Pinniped embeds. Clients can observe it. The exception is step
//! 9, which precedes step 10 so that the reviews of impersonation are limited, too. Every error is
//! a [`refusal::Refusal`], the single place that defines the response of the client.

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

/// The handler chain as a service. Clones share the chain.
#[derive(Clone)]
pub(crate) struct Stack(Arc<StackInner>);

struct StackInner {
    authenticator: RequestAuthenticator,
    reviewer: TokenReviewer,
    authorizer: Authorizer,
    impersonations: Impersonations,
    upstream: pinniped_kube_client::Upstream,
    /// For requests with the client's own credential: the API server may reject the credential and
    /// close the connection.
    passthrough_upstream: pinniped_kube_client::Upstream,
    /// For requests to a pod, service or node: its responses may exhaust the connection.
    foreign_upstream: pinniped_kube_client::Upstream,
    impersonator: Credential,
    capabilities: Arc<Capabilities>,
    in_flight: InFlight,
    tunnels: Tunnels,
    draining: Draining,
    /// Cancelled when the proxy has terminated.
    ended: CancellationToken,
    metrics: ImpersonatorMetrics,
}

/// The context of a request: its attributes before any decision.
struct RequestContext<'a> {
    connection: &'a Connection,
    url: &'a str,
    /// Set when the response must warn the client that its token was ignored.
    ignored_token: &'a AtomicBool,
    info: RequestInfo,
    /// Whether a pod, service or node answers the request through the API server's proxy
    /// subresource.
    foreign: bool,
    deadline: Option<Instant>,
}

impl Service for Stack {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> Answer {
        let (stack, connection) = (Arc::clone(&self.0), Arc::clone(connection));
        // The request is not moved until it is forwarded: each future that took ownership of it
        // would reserve space for it again.
        let mut request = request.map(RequestBody::from);
        Box::pin(async move { stack.respond(&connection, &mut request).await })
    }

    fn knows(&self, connection: &Connection) -> bool {
        authenticate::knows(&self.0.authenticator, connection)
    }
}

impl StackInner {
    /// Steps 1 to 4: one response with these headers, for every result of the steps below.
    async fn respond(&self, connection: &Connection, request: &mut Request<RequestBody>) -> Response<Body> {
        let received = Instant::now();
        let presentation = Presentation::of(request.uri(), request.version(), request.headers());
        let audit_id = layers::audit_id(request.headers());
        // The API server uses the same identifier, so the logs of both can be correlated.
        request.headers_mut().insert(layers::AUDIT_ID, audit_id.clone());
        let tokens = Tokens::of(request.headers());
        let ignored_token = AtomicBool::new(false);

        let serve = pin!(self.serve(connection, request, tokens, &ignored_token, &presentation, received));
        let served = layers::guard_panic(serve).await;
        let (mut response, result) = match served {
            Ok(Ok(response)) if response.status().as_u16() == 101 => (response, Outcome::Upgraded),
            Ok(Ok(response)) => (response, Outcome::Forwarded),
            Ok(Err(refusal)) => {
                let result = refusal.outcome();
                let mut response = refusal.into_response(&presentation);
                // Even a small response must not keep a connection open for ever when the client
                // does not read it.
                response.extensions_mut().insert(EndBy(Instant::now() + deadline::LONGEST));
                (response, result)
            }
            Err(panicked) => {
                tracing::error!(error = %panicked, auditID = ?audit_id, "request handler panicked");
                (layers::panic_response(), Outcome::Panicked)
            }
        };
        self.metrics.ended(result, received.elapsed());

        if ignored_token.load(Ordering::Relaxed)
            && let Ok(warning) = HeaderValue::try_from(format!("299 - \"{EXTRA_SPACE_WARNING}\""))
        {
            response.headers_mut().append(WARNING, warning);
        }
        layers::add_audit_id(response.headers_mut(), audit_id);
        layers::add_security_headers(response.headers_mut());
        response
    }

    /// Steps 5 to 7: the attributes of the request and its deadline.
    async fn serve(
        &self,
        connection: &Connection,
        request: &mut Request<RequestBody>,
        tokens: Tokens,
        ignored_token: &AtomicBool,
        presentation: &Presentation,
        received: Instant,
    ) -> Result<Response<Body>, Refusal> {
        let info = request_info(request.method(), request.uri())?;
        let foreign = info.subresource == "proxy";
        let mut context = RequestContext {
            connection,
            url: presentation.request_uri(),
            ignored_token,
            info,
            foreign,
            deadline: None,
        };
        if self.draining.refuses(received) {
            return Err(Refusal::ShuttingDown);
        }
        let deadline = deadline::of(context.info.is_long_running(), request.uri().query(), received)?;
        context.deadline = deadline;
        // Pinned here, so that both arms share one future instead of each reserving space for its
        // own.
        let admitted = pin!(self.admit(request, &mut context, tokens));
        match deadline {
            None => admitted.await,
            Some(deadline) => {
                tokio::time::timeout_at(deadline, admitted).await.map_err(|_| Refusal::Deadline)?
            }
        }
    }

    /// Steps 8 to 11: authentication, client impersonation and authorization.
    async fn admit(
        &self,
        request: &mut Request<RequestBody>,
        context: &mut RequestContext<'_>,
        tokens: Tokens,
    ) -> Result<Response<Body>, Refusal> {
        let policy = self.capabilities.anonymous();
        let client = Client::of(context.connection);
        let (headers, info) = (request.headers_mut(), &context.info);
        let caller = authenticate::authenticate(
            &self.authenticator,
            policy,
            info,
            headers,
            context.connection,
            client,
        )
        .await;
        if tokens.has_extra_space() && !authenticate::by_certificate(&caller) {
            context.ignored_token.store(true, Ordering::Relaxed);
        }
        let caller = caller?;

        let long_running = context.info.is_long_running();
        let attributes = Attributes::from(std::mem::take(&mut context.info));
        let address = Some(context.connection.peer_addr.ip());
        let key = ClientKey::of(&caller.user, caller.method, address, request.headers());
        let permit = self.in_flight.enter(&key, long_running).await?;
        let target = match self.client_impersonation(request.headers_mut(), &caller.user, &attributes)? {
            None => None,
            Some(target) => Some(target.await?),
        };
        let (user, original) = match &target {
            None => (&caller.user, None),
            Some(target) => (target, Some(&*caller.user)),
        };

        authorize::authorize(&self.authorizer, key, user, &attributes).await?;

        let upgrade = hop_by_hop::wants_http1(request.headers());
        let guard = RequestGuard::new(permit, context.url, request.method(), upgrade);
        tracing::debug!(target: TRACE, username = user.name, "impersonation proxy servicing request was for user");
        forward::check_clean(request)?;
        let token = tokens.into_token(caller.method);
        let request_line = (request.method(), request.uri());
        let identity = self.identity(user, original, token, context, request_line, upgrade).await?;
        let address = client.and_then(|client| client.address.clone());
        self.send(request, &identity, address, context, guard).await
    }

    /// Step 10: the user that the client impersonates, if the client is allowed to.
    fn client_impersonation<'a>(
        &'a self,
        headers: &mut HeaderMap,
        caller: &'a User,
        attributes: &'a Attributes,
    ) -> Result<Option<BoxFuture<'a, Result<KnownUser, Refusal>>>, Refusal> {
        let wanted = intake(headers).map_err(|error| Refusal::BadImpersonation(error.to_string()))?;
        let Some(wanted) = wanted else { return Ok(None) };
        // Boxed because it is large and rare; otherwise every request future would reserve space
        // for it.
        Ok(Some(Box::pin(async move {
            self.impersonations.become_user(caller, &wanted, attributes).await.map(KnownUser::from)
        })))
    }

    /// Step 12: the identity with which the request reaches the API server.
    async fn identity<'a>(
        &self,
        user: &'a KnownUser,
        original: Option<&'a User>,
        token: Option<Token>,
        context: &RequestContext<'_>,
        (method, uri): (&Method, &Uri),
        upgrade: bool,
    ) -> Result<Identity<'a>, Refusal> {
        let token_owner = match &token {
            Some(token) if needs_token_verdict(user, original.is_some()) => {
                Box::pin(self.token_owner(token, context.connection)).await?
            }
            _ => TokenVerdict::None,
        };
        let refusal = match (plan(user, original, &token_owner, self.capabilities.uids()), token) {
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

    async fn token_owner(&self, token: &Token, connection: &Connection) -> Result<TokenVerdict, Refusal> {
        match self.reviewer.review(token, Some(connection.peer_addr.ip())).await {
            Ok(Some(user)) => Ok(TokenVerdict::Is(User::clone(&user).with_authenticated_group())),
            Ok(None) => Ok(TokenVerdict::Rejected),
            Err(ReviewError::Overloaded) => Err(Refusal::Overloaded),
            Err(error @ ReviewError::Call(_)) => Ok(TokenVerdict::Unknown(error.to_string())),
        }
    }

    /// Step 13: forwards the request to the API server.
    async fn send(
        &self,
        request: &mut Request<RequestBody>,
        identity: &Identity<'_>,
        address: Option<HeaderValue>,
        context: &RequestContext<'_>,
        guard: RequestGuard,
    ) -> Result<Response<Body>, Refusal> {
        let deadline = context.deadline;
        let policy = ProtocolPolicy::of(identity.is_exact_in_http1());
        let protocol = hop_by_hop::upgrade_type(request.headers());
        let client = request.extensions_mut().remove::<OnUpgrade>();
        let ours = self.impersonator.header();
        let added = forward::rewrite(request, identity, ours, address)?;
        let precomputed = added.ready();
        let upstream = match identity {
            Identity::Impersonate(..) if context.foreign => &self.foreign_upstream,
            Identity::Impersonate(..) => &self.upstream,
            Identity::Passthrough(_) => &self.passthrough_upstream,
        };
        let sent = match (protocol, client) {
            // An upgrade requires HTTP/1.1.
            (Some(_), Some(_)) if policy == ProtocolPolicy::Http2 => {
                return Err(forward::identity_does_not_fit());
            }
            (Some(protocol), Some(client)) => {
                let wanted = Wanted { protocol, client, ended: self.ended.clone(), idle: None };
                add_ready(request, &precomputed).map_err(|error| forward::refusal_of(&error.into()))?;
                let request = std::mem::take(request);
                let upgrade = pinniped_reverse_proxy::upgrade(
                    upstream,
                    request,
                    wanted,
                    &self.tunnels,
                    deadline,
                    guard,
                );
                // Boxed because it is large and rare; otherwise every request future would reserve
                // space for it.
                Box::pin(upgrade).await
            }
            _ => {
                // A request without a deadline may be silent for a long time.
                let response_deadline = deadline
                    .map_or(ResponseDeadline::Long, |deadline| ResponseDeadline::Short(Some(deadline)));
                pinniped_reverse_proxy::forward(
                    upstream,
                    request,
                    &precomputed,
                    policy,
                    response_deadline,
                    guard,
                )
                .await
            }
        };
        let response = sent.map_err(|error| forward::refusal_of(&error))?;
        // The 401 may come from the API server, or from a server behind it that requires its own
        // credential. The source of the token checks which one it is.
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
