//! The handler chain: the steps of every request, in order.
//!
//! ```text
//!  1 response headers      chain                 on every response, errors included
//!  2 audit ID              chain                 the client's, or a new one
//!  3 panic guard           chain                 500; the connection stays open
//!  4 request info          kubernetes request    verb and resource; 400 or 500 for a bad path
//!  5 shutdown              draining              503 once the shutdown has begun
//!  6 deadline              deadline              60 s or less; none for long-running requests
//!  7 authenticate          authenticate          certificate, token, front proxy, anonymous; 401
//!    audit                 audit                 the policy, and the first event; see below
//!  8 max in flight         in_flight             429; charged to the client itself, before any
//!                                                access review for the request
//!  9 client impersonation  client_impersonation  Impersonate-* headers, each part reviewed; 403
//! 10 authorize             authorize             SubjectAccessReview; 403
//! 11 handle                Handler               the last step, which differs between servers
//! ```
//!
//! The order is that of a Kubernetes API server (`DefaultBuildHandlerChain` in k8s.io/apiserver),
//! which clients can observe. The exception is step 8, which the API server performs after step 9:
//! here the reviews of impersonation are limited, too.
//!
//! A request that ends before its client is identified (steps 4 to 7) has one audit event, and
//! others have the events of the API server. The last event is written when the response has ended,
//! or the upgraded connection.
//!
//! `Chain::respond` contains steps 1 to 3, and `Chain::serve` is the list of steps 4 to 11. Every
//! error is a [`Refusal`], which defines the response of the client. The chain is generic over the
//! handler, so that a request needs no virtual call and no additional allocation.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{CACHE_CONTROL, HeaderValue, WARNING};
use http::{HeaderMap, Request, Response};
use pinniped_delegated_auth::bearer::EXTRA_SPACE_WARNING;
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::request::RequestAuthenticator;
use pinniped_http_server::{Body, Connection, layers};
use pinniped_kube_audit::auditor::{Auditor, Delivery};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::{KnownUser, User};
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_secret::Token;
use pinniped_traces::{RequestSpan, Tracer};
use scopeguard::ScopeGuard;
use tokio::time::Instant;

use crate::audit::{AuditResult, BodyRules, RequestAudit};
use crate::authenticate::{self, Client};
use crate::authorize::Authorization;
use crate::client_impersonation::ClientImpersonation;
use crate::deadline;
use crate::draining::Draining;
use crate::in_flight::{InFlight, InFlightPermit, RequestClass};
use crate::metrics::RequestLabels;
use crate::presentation::Presentation;
use crate::refusal::Refusal;
use crate::response_headers;
use crate::tokens::Tokens;
use crate::trace;

/// The last step of a chain for requests with a body of type `B`, and the decisions that differ
/// between servers.
pub trait Handler<B>: Send + Sync {
    /// Serves a request that is authenticated and authorized. The response must have an end: a
    /// client that does not read it must not keep a connection open indefinitely.
    fn handle(
        &self,
        request: &mut Request<B>,
        context: &mut RequestContext<'_>,
    ) -> impl Future<Output = Result<Response<Body>, Refusal>> + Send;

    /// Returns whether a request without credentials continues as the anonymous user.
    fn admits_anonymous(&self, _info: &RequestInfo) -> bool {
        true
    }

    /// Returns whether long-running requests have no deadline. `false` for a server that serves no
    /// watch and no stream: a request of such a form is only refused.
    fn serves_long_running(&self) -> bool {
        true
    }

    /// Returns whether a request continues when there is no permit for it.
    fn is_exempt_from_limits(&self, _info: &RequestInfo, _headers: &HeaderMap) -> bool {
        false
    }

    /// Observes the result of a request.
    fn observe(&self, _result: &RequestResult<'_>) {}

    /// Returns the rules for bodies in audit events; `None` if events never have bodies.
    fn body_rules(&self, _attributes: &Attributes) -> Option<BodyRules> {
        None
    }

    /// Returns the annotation of audit events with the decision of this server.
    fn audit_annotation(&self, _result: &RequestResult<'_>) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// The values that the steps of the chain determine for the last one.
#[derive(Debug)]
pub struct RequestContext<'a> {
    /// The user of the request: the client, or the user that it impersonates.
    pub user: &'a KnownUser,
    /// The client to which permits and reviews are charged.
    pub client: &'a ClientKey<'a>,
    /// The client, if it impersonates `user`.
    pub impersonated_by: Option<&'a User>,
    /// The attributes for which the user is authorized.
    pub attributes: &'a Attributes,
    /// The connection on which the request arrived; `None` in tests without a socket.
    pub connection: Option<&'a Connection>,
    /// Path and query as the client sent them.
    pub request_uri: &'a str,
    /// The token that the client sent, if it can have authenticated with it.
    pub token: Option<Token>,
    /// The deadline; `None` for a long-running request.
    pub deadline: Option<Instant>,
    /// The audit of the request. The last event is written when its last clone is dropped; the
    /// response has one, and an upgraded connection needs one.
    pub audit: Option<&'a Arc<RequestAudit>>,
    /// The permit. It is released when the response begins, unless the handler takes it.
    pub permit: Option<InFlightPermit>,
}

/// The result of a request, for metrics.
#[derive(Debug)]
pub enum RequestResult<'a> {
    /// The handler returned this response.
    Served(&'a Response<Body>),
    /// A step refused the request.
    Refused(&'a Refusal),
    /// A step panicked.
    Panicked,
    /// The request was dropped before its response began: its client cancelled it, or its
    /// connection ended.
    Abandoned,
}

/// The headers of every response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseHeaders {
    /// `Cache-Control`, unless the handler sets it.
    CacheControl,
    /// [`response_headers::SECURITY_HEADERS`], before those of the handler.
    Security,
}

/// Notes of the steps about a request, for the response headers, the metrics, traces and the audit.
struct Notes {
    audit_id: HeaderValue,
    /// The client sent a token that was ignored because of extra space.
    ignored_token: AtomicBool,
    labels: RequestLabels,
    /// The span, if the request is recorded. Boxed because most are not.
    span: Option<Box<RequestSpan>>,
    /// `None` if requests are not audited.
    audit: Option<Arc<RequestAudit>>,
}

/// The parameters of a [`Chain`].
pub struct ChainParams<H> {
    /// Identifies clients.
    pub authenticator: RequestAuthenticator,
    /// Authorizes requests and impersonation.
    pub authorization: Authorization,
    /// Limits the requests in flight.
    pub in_flight: InFlight,
    /// The shutdown of the server.
    pub draining: Draining,
    /// The headers of every response.
    pub response_headers: ResponseHeaders,
    /// Records requests; `None` if there are no traces.
    pub tracer: Option<Tracer>,
    /// The audit of requests; `None` for none.
    pub audit: Option<Arc<Auditor>>,
    /// The last step.
    pub handler: H,
}

/// The handler chain of a server.
pub struct Chain<H> {
    authenticator: RequestAuthenticator,
    authorization: Authorization,
    client_impersonation: ClientImpersonation,
    in_flight: InFlight,
    draining: Draining,
    response_headers: ResponseHeaders,
    tracer: Option<Tracer>,
    audit: Option<Arc<Auditor>>,
    handler: H,
}

impl<H> Chain<H> {
    /// Creates a chain.
    pub fn new(params: ChainParams<H>) -> Self {
        let ChainParams {
            authenticator,
            authorization,
            in_flight,
            draining,
            response_headers,
            tracer,
            audit,
            handler,
        } = params;
        let client_impersonation = ClientImpersonation::new(authorization.clone());
        Self {
            authenticator,
            authorization,
            client_impersonation,
            in_flight,
            draining,
            response_headers,
            tracer,
            audit,
            handler,
        }
    }

    /// Returns the last step.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Returns whether the certificate identifies the client of a new connection.
    pub fn recognizes_client(&self, connection: &Connection) -> bool {
        authenticate::recognizes_client(&self.authenticator, connection)
    }

    /// Steps 1 to 3: one response with these headers, for every result of the steps below.
    ///
    /// The request is not moved until the handler takes it: each future that took ownership of it
    /// would reserve space for it again.
    pub async fn respond<B: Send>(
        &self,
        connection: Option<&Connection>,
        request: &mut Request<B>,
    ) -> Response<Body>
    where
        H: Handler<B>,
    {
        let received = Instant::now();
        let presentation = Presentation::of(request);
        let audit_id = response_headers::audit_id(request.headers());
        // Servers behind this one use the same identifier, so the logs of all can be correlated.
        request.headers_mut().insert(response_headers::AUDIT_ID, audit_id.clone());
        let audit = self.audit.as_ref();
        let notes = Notes {
            audit_id: audit_id.clone(),
            ignored_token: AtomicBool::new(false),
            labels: RequestLabels::default(),
            span: self.span(connection, request.headers(), &audit_id),
            audit: audit.map(|auditor| RequestAudit::new(auditor, &audit_id, request, connection)),
        };
        let abandoned = scopeguard::guard((), |()| {
            let result = RequestResult::Abandoned;
            self.handler.observe(&result);
            if let Some(audit) = &notes.audit {
                let annotation = self.handler.audit_annotation(&result);
                let rules = |attributes: &_| self.handler.body_rules(attributes);
                drop(audit.end(AuditResult::Abandoned, annotation, rules, &presentation));
            }
            self.in_flight.metrics().ended(&notes.labels, None, received.elapsed());
        });

        // In a block, so that the future of the request has no space for what is needed only here:
        // the locals after it are moved, and never borrowed.
        let (response, deliveries) = {
            let served = {
                let serve = pin!(self.serve(connection, request, &notes, &presentation, received));
                match &notes.span {
                    None => layers::guard_panic(serve).await,
                    Some(span) => Box::pin(layers::guard_panic(span.instrument(serve))).await,
                }
            };
            ScopeGuard::into_inner(abandoned);
            // In a block, because a reference to a response must not be held during the delivery.
            let delivery = {
                let result = match &served {
                    Ok(Ok(response)) => RequestResult::Served(response),
                    Ok(Err(refusal)) => RequestResult::Refused(refusal),
                    Err(_) => RequestResult::Panicked,
                };
                self.handler.observe(&result);
                notes.audit.as_ref().and_then(|audit| {
                    let annotation = self.handler.audit_annotation(&result);
                    let rules = |attributes: &_| self.handler.body_rules(attributes);
                    audit.end(AuditResult::of(&result), annotation, rules, &presentation)
                })
            };
            let mut response = match served {
                Ok(Ok(response)) => response,
                Ok(Err(refusal)) => with_deadline(refusal.into_response(&presentation)),
                Err(panicked) => {
                    tracing::error!(error = %panicked, auditID = ?audit_id, "request handler panicked");
                    with_deadline(response_headers::panic_response())
                }
            };

            self.in_flight.metrics().ended(&notes.labels, Some(response.status()), received.elapsed());
            if let Some(span) = &notes.span {
                span.end(response.status());
            }
            let headers = response.headers_mut();
            if notes.ignored_token.load(Ordering::Relaxed)
                && let Ok(warning) = HeaderValue::try_from(format!("299 - \"{EXTRA_SPACE_WARNING}\""))
            {
                headers.append(WARNING, warning);
            }
            response_headers::add_audit_id(headers, audit_id);
            match self.response_headers {
                ResponseHeaders::Security => response_headers::add_security_headers(headers),
                ResponseHeaders::CacheControl => {
                    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
                }
            }
            let mut deliveries = [delivery, None];
            if let Some(audit) = &notes.audit {
                (response, deliveries[1]) = audit.until_end(response);
            }
            (response, deliveries)
        };
        match deliveries {
            [None, None] => response,
            // Boxed because it is rare; otherwise every request future would reserve space for it.
            deliveries => Box::pin(delayed(response, deliveries)).await,
        }
    }

    /// Starts the span of a request. It ends when the response begins.
    fn span(
        &self,
        connection: Option<&Connection>,
        headers: &HeaderMap,
        audit_id: &HeaderValue,
    ) -> Option<Box<RequestSpan>> {
        let span = self.tracer.as_ref()?.begin(headers, || {
            let user = authenticate::user_without_review(&self.authenticator, headers, connection);
            user.is_some_and(|user| trace::may_request_recording(&user))
        })?;
        trace::set_audit_id(&span, audit_id);
        Some(Box::new(span))
    }

    /// Steps 4 to 11, in order.
    async fn serve<B: Send>(
        &self,
        connection: Option<&Connection>,
        request: &mut Request<B>,
        notes: &Notes,
        presentation: &Presentation,
        received: Instant,
    ) -> Result<Response<Body>, Refusal>
    where
        H: Handler<B>,
    {
        // 4. Request info, from which all further steps derive their rules.
        let info = RequestInfo::parse(request.method(), request.uri())?;
        notes.labels.set(&info);
        if let Some(span) = &notes.span {
            trace::describe(span, request.method(), &info);
        }
        // 5. Shutdown, before any work for the request.
        self.draining.check(received, &info)?;
        // 6. Deadline, which covers all further steps.
        let class = RequestClass::of(&info);
        let has_deadline = class != RequestClass::LongRunning || !self.handler.serves_long_running();
        let deadline = deadline::of(has_deadline, request.uri().query(), received)?;
        let admits_anonymous = self.handler.admits_anonymous(&info);
        let is_exempt = self.handler.is_exempt_from_limits(&info, request.headers());
        let attributes = &Attributes::from(info);
        let _slow = self.in_flight.metrics().watch(attributes, &notes.audit_id, received);

        let steps = pin!(async {
            // 7. Authenticate. Tokens are copied, because authentication removes them from the
            // headers.
            let tokens = Tokens::of(request.headers());
            let headers = request.headers_mut();
            let caller =
                authenticate::authenticate(&self.authenticator, admits_anonymous, headers, connection).await;
            if tokens.has_extra_space() && !authenticate::by_certificate(&caller) {
                notes.ignored_token.store(true, Ordering::Relaxed);
            }
            let caller = caller?;
            if let Some(audit) = &notes.audit
                && let rules = self.handler.body_rules(attributes)
                && let Some(delivery) = audit.begin(&caller.user, attributes, class, rules, presentation)
            {
                delivery.await;
            }

            // 8. Max in flight. Before impersonation, unlike in the API server: one request can
            // require dozens of reviews, so it takes a permit of its client before the first one.
            let address = connection.map(|connection| connection.peer_addr.ip());
            let client = ClientKey::of(&caller.user, caller.method, address, request.headers());
            let permit = match is_exempt {
                true => self.in_flight.enter_exempt(&client, class),
                false => Some(self.in_flight.enter(&client, class).await?),
            };

            // 9. Client impersonation, before authorization, which is about the impersonated user.
            let headers = request.headers_mut();
            let target = match self.client_impersonation.become_user(headers, &caller.user, attributes)? {
                None => None,
                Some(target) => Some(target.await?),
            };
            let (user, impersonated_by) = match &target {
                None => (&caller.user, None),
                Some(target) => (target, Some(&*caller.user)),
            };
            if let (Some(audit), Some(target)) = (&notes.audit, &target) {
                audit.impersonates(target);
            }

            // 10. Authorize. The review is charged to the client, also while it impersonates.
            let reviewed = self.authorization.review(client, user, attributes).await;
            if let Some(audit) = &notes.audit {
                audit.authorized(&reviewed);
            }
            reviewed.map_err(|denial| self.authorization.refusal(denial, user, attributes))?;
            notes.labels.authorized();

            // 11. Handle.
            let mut context = RequestContext {
                user,
                client: &client,
                impersonated_by,
                attributes,
                connection,
                request_uri: presentation.request_uri(),
                token: tokens.into_token(caller.method),
                deadline,
                audit: notes.audit.as_ref(),
                permit,
            };
            self.handler.handle(request, &mut context).await
        });
        deadline::within(deadline, steps).await
    }
}

impl RequestContext<'_> {
    /// Returns the address of the client in the format of `X-Forwarded-For`.
    pub fn forwarded_for(&self) -> Option<&HeaderValue> {
        self.connection.and_then(Client::of)?.address.as_ref()
    }
}

/// Returns a response after its events are delivered.
async fn delayed(response: Response<Body>, deliveries: [Option<Delivery>; 2]) -> Response<Body> {
    for delivery in deliveries.into_iter().flatten() {
        delivery.await;
    }
    response
}

/// Even a small response must not keep a connection open indefinitely when the client does not read
/// it.
fn with_deadline(response: Response<Body>) -> Response<Body> {
    response.map(|body| body.with_deadline(Instant::now() + deadline::LONGEST))
}
