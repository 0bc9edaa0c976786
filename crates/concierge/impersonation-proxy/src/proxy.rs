//! The impersonation proxy: a handler chain whose last step forwards to the API server.
//!
//! `chain.rs` of the crate `apiserver` contains the steps before the last one, in order. The last
//! step consists of:
//!
//! ```text
//! 1 check                forward             500 for headers that only the proxy may add
//! 2 identity             kubernetes request  impersonate, pass through, or refuse
//! 3 forward or upgrade   reverse_proxy       streamed in both directions; 502
//! ```

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use pinniped_apiserver::audit::BodyRules;
use pinniped_apiserver::audit::tee::Tee;
use pinniped_apiserver::chain::{Chain, Handler, RequestContext, RequestResult};
use pinniped_apiserver::refusal::Refusal;
use pinniped_apiserver::response_headers::AUDIT_ID;
use pinniped_apiserver::trace;
use pinniped_delegated_auth::reviews::{ReviewError, TokenReviewer};
use pinniped_http_client::upstream::{RequestBody, add_precomputed};
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::Incoming;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Body, Connection, ResponseFuture, Service};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::User;
use pinniped_kube_request::impersonation::{BearerTokenReview, Plan, needs_token_review, plan};
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_logging::value::TRACE;
use pinniped_reverse_proxy::{ClientUpgrade, ForwardError, ProtocolPolicy, ResponseDeadline};
use pinniped_secret::Token;
use pinniped_session_recording::{Begun, Recorder, Refused, SessionRequest, session_of};
use pinniped_traces::SpanKind;
use scopeguard::ScopeGuard;
use tokio_util::sync::CancellationToken;

mod anonymous_probe;
mod credential;
mod forward;
mod metrics;
mod request_guard;
mod server;

pub use anonymous_probe::{PROBE_INTERVAL, ProbeError};
pub use metrics::ImpersonatorMetrics;
pub use pinniped_apiserver::in_flight::InFlightLimits;
pub use server::{Impersonator, ImpersonatorParams, StartError, start};

use anonymous_probe::Capabilities;
use credential::Credential;
use forward::Identity;
use metrics::ResultLabel;
use request_guard::{Held, RequestGuard};

/// The suffix of every reason that this proxy returns, so that users can find the component that
/// decided.
const DECIDED_BY: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";

/// The annotation of audit events with the result of a request for this proxy. Its values are those
/// of the metric `pinniped_impersonation_proxy_requests_total`.
const AUDIT_RESULT: &str = "impersonation-proxy.concierge.pinniped.dev/result";
/// The annotations with the reasons why an audit event has no body of the request, or of the
/// response.
const AUDIT_OBJECTS: [&str; 2] = [
    "impersonation-proxy.concierge.pinniped.dev/request-object",
    "impersonation-proxy.concierge.pinniped.dev/response-object",
];

/// The annotation of audit events with the file in which a session is recorded.
const AUDIT_RECORDING: &str = "impersonation-proxy.concierge.pinniped.dev/recording";

/// The handler chain as a service. Clones share the chain.
#[derive(Clone)]
pub(crate) struct Stack(Arc<Chain<ForwardHandler>>);

/// The last step of the chain: forwards a request to the API server.
struct ForwardHandler {
    reviewer: TokenReviewer,
    upstream: pinniped_kube_client::Upstream,
    /// For requests with the client's own credential: the API server may reject the credential and
    /// close the connection.
    passthrough_upstream: pinniped_kube_client::Upstream,
    /// For requests to a pod, service or node: its responses may exhaust the connection.
    foreign_upstream: pinniped_kube_client::Upstream,
    impersonator: Credential,
    capabilities: Arc<Capabilities>,
    tunnels: Tunnels,
    /// Cancelled when the proxy has terminated.
    ended: CancellationToken,
    metrics: ImpersonatorMetrics,
    /// Records sessions in pods; `None` if they are not recorded.
    recorder: Option<Recorder>,
}

impl Service for Stack {
    fn call(&self, connection: &Arc<Connection>, request: Request<Incoming>) -> ResponseFuture {
        let (chain, connection) = (Arc::clone(&self.0), Arc::clone(connection));
        let mut request = request.map(RequestBody::from);
        Box::pin(async move { chain.respond(Some(&connection), &mut request).await })
    }

    fn recognizes_client(&self, connection: &Connection) -> bool {
        self.0.recognizes_client(connection)
    }
}

impl Handler<RequestBody> for ForwardHandler {
    async fn handle(
        &self,
        request: &mut Request<RequestBody>,
        context: &mut RequestContext<'_>,
    ) -> Result<Response<Body>, Refusal> {
        let upgrade = hop_by_hop::wants_http1(request.headers());
        // The body of other responses has the audit already.
        let held = Held {
            permit: context.permit.take(),
            audit: context.audit.filter(|_| upgrade).cloned(),
            bytes: self.metrics.bytes().clone(),
        };
        let guard = RequestGuard::new(held, context.request_uri, request.method(), upgrade);
        tracing::debug!(target: TRACE, username = context.user.name, "impersonation proxy servicing request was for user");
        forward::check_clean(request)?;
        let token = context.token.take();
        let request_line = (request.method(), request.uri());
        let identity = self.identity(token, context, request_line, upgrade).await?;
        self.send(request, &identity, context, guard).await
    }

    fn admits_anonymous(&self, info: &RequestInfo) -> bool {
        self.capabilities.anonymous().admits(info)
    }

    fn observe(&self, result: &RequestResult<'_>) {
        self.metrics.ended(ResultLabel::of(result));
    }

    fn body_rules(&self, attributes: &Attributes) -> Option<BodyRules> {
        Some(BodyRules { are_secret: is_login(attributes), annotations: AUDIT_OBJECTS })
    }

    fn audit_annotation(&self, result: &RequestResult<'_>) -> Option<(&'static str, &'static str)> {
        Some((AUDIT_RESULT, ResultLabel::of(result).name()))
    }
}

impl ForwardHandler {
    /// Returns the identity with which the request reaches the API server.
    async fn identity<'a>(
        &self,
        token: Option<Token>,
        context: &RequestContext<'a>,
        (method, uri): (&Method, &Uri),
        upgrade: bool,
    ) -> Result<Identity<'a>, Refusal> {
        let (user, original) = (context.user, context.impersonated_by);
        let token_owner = match &token {
            Some(token) if needs_token_review(user, original.is_some()) => {
                Box::pin(self.token_owner(token, context.connection)).await?
            }
            _ => BearerTokenReview::None,
        };
        let refusal = match (plan(user, original, &token_owner, self.capabilities.uids()), token) {
            (Plan::Impersonate(impersonation), _) => return Ok(Identity::Impersonate(user, impersonation)),
            (Plan::Passthrough, Some(token)) => return Ok(Identity::Passthrough(token)),
            (Plan::Passthrough, None) => pinniped_kube_request::impersonation::Refusal::NoToken,
            (Plan::Refuse(refusal), _) => refusal,
        };
        static REFUSALS: Repetitions = Repetitions::each_minute();
        // By the reason: clients choose parts of some texts, which would hide other reasons.
        if let Some(Line { repetitions }) = REFUSALS.record(refusal.reason(), Instant::now()) {
            tracing::warn!(
                url = %uri,
                method = %method,
                isUpgradeRequest = upgrade,
                repetitions,
                error = %refusal,
                "rejecting request as we cannot act as the current user"
            );
        }
        Err(Refusal::Internal("unimplemented functionality - unable to act as current user"))
    }

    async fn token_owner(
        &self,
        token: &Token,
        connection: Option<&Connection>,
    ) -> Result<BearerTokenReview, Refusal> {
        let address = connection.map(|connection| connection.peer_addr.ip());
        match self.reviewer.review(token, address).await {
            Ok(Some(user)) => Ok(BearerTokenReview::User(User::clone(&user).with_authenticated_group())),
            Ok(None) => Ok(BearerTokenReview::Rejected),
            Err(ReviewError::Overloaded) => Err(Refusal::Overloaded),
            Err(error @ ReviewError::Call(_)) => Ok(BearerTokenReview::Failed(error.to_string())),
        }
    }

    /// Forwards the request to the API server.
    async fn send(
        &self,
        request: &mut Request<RequestBody>,
        identity: &Identity<'_>,
        context: &RequestContext<'_>,
        guard: RequestGuard,
    ) -> Result<Response<Body>, Refusal> {
        let deadline = context.deadline;
        let policy = ProtocolPolicy::of(identity.is_exact_in_http1());
        let protocol = hop_by_hop::upgrade_type(request.headers());
        let client = request.extensions_mut().remove::<OnUpgrade>();
        let ours = self.impersonator.header();
        let address = context.forwarded_for().cloned();
        let added = forward::rewrite(request, identity, ours, address)?;
        let mut span = pinniped_traces::child("Forward", SpanKind::Client).map(Box::new);
        if let Some(span) = &span {
            trace::describe_call(span, request.method(), context.attributes);
            span.inject(request.headers_mut());
        }
        let precomputed = added.ready();
        let upstream = match identity {
            Identity::Impersonate(..) if is_proxy_subresource(context.attributes) => &self.foreign_upstream,
            Identity::Impersonate(..) => &self.upstream,
            Identity::Passthrough(_) => &self.passthrough_upstream,
        };
        self.metrics.bytes().count_body(request.body_mut());
        if let Some(audit) = context.audit
            && !request.body().is_empty()
            && let Some(capture) = audit.capture_request(request.headers())
        {
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = RequestBody::Boxed(Tee::new(body, capture).boxed_unsync());
        }
        let sent = match (protocol, client) {
            // An upgrade requires HTTP/1.1.
            (Some(_), Some(_)) if policy == ProtocolPolicy::Http2 => {
                return Err(forward::identity_does_not_fit());
            }
            (Some(protocol), Some(client)) => {
                add_precomputed(request, &precomputed).map_err(|error| forward::refusal_of(error.into()))?;
                let request = std::mem::take(request);
                // Boxed because it is large and rare; otherwise every request future would reserve
                // space for it.
                Box::pin(self.upgrade(upstream, request, (protocol, client), context, guard)).await?
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
        match (&mut span, &sent) {
            (None, _) => {}
            (Some(span), Ok(response)) => span.respond(response.status()),
            (Some(span), Err(_)) => span.fail("no_response"),
        }
        let response = sent.map_err(forward::refusal_of)?;
        // The 401 may come from the API server, or from a server behind it that requires its own
        // credential. The source of the token checks which one it is.
        if response.status() == StatusCode::UNAUTHORIZED && matches!(identity, Identity::Impersonate(..)) {
            self.impersonator.refused(added.authorization());
        }
        Ok(response)
    }
}

impl ForwardHandler {
    /// Forwards a request for an upgrade.
    async fn upgrade(
        &self,
        upstream: &pinniped_kube_client::Upstream,
        request: Request<RequestBody>,
        (protocol, client): (HeaderValue, OnUpgrade),
        context: &RequestContext<'_>,
        guard: RequestGuard,
    ) -> Result<Result<Response<Body>, ForwardError>, Refusal> {
        let begun = match &self.recorder {
            None => None,
            Some(recorder) => {
                let has_body = !request.body().is_empty();
                record(recorder, request.headers(), has_body, &protocol, context).await?
            }
        };
        let (tap, file) = begun.map(|Begun { tap, file }| (tap, file)).unzip();
        // The file stays unless the server refuses the session, also if the client leaves before.
        let annotated = scopeguard::guard(file, |file| {
            if let (Some(audit), Some(file)) = (context.audit, file) {
                audit.annotate(AUDIT_RECORDING, file);
            }
        });
        let wanted = ClientUpgrade { protocol, client, ended: self.ended.clone(), idle: None, tap };
        let (tunnels, deadline) = (&self.tunnels, context.deadline);
        let sent = pinniped_reverse_proxy::upgrade(upstream, request, wanted, tunnels, deadline, guard).await;
        if sent.as_ref().is_ok_and(|response| response.status() != StatusCode::SWITCHING_PROTOCOLS) {
            let _removed = ScopeGuard::into_inner(annotated);
        }
        Ok(sent)
    }
}

/// Begins the recording of a session in a pod.
async fn record(
    recorder: &Recorder,
    headers: &HeaderMap,
    has_body: bool,
    protocol: &HeaderValue,
    context: &RequestContext<'_>,
) -> Result<Option<Begun>, Refusal> {
    let Some(attributes) = session_of(context.attributes) else { return Ok(None) };
    let audit_id = headers.get(AUDIT_ID).and_then(|value| value.to_str().ok());
    let session = SessionRequest {
        attributes,
        uri: context.request_uri,
        user: context.user,
        impersonated_by: context.impersonated_by,
        audit_id: audit_id.unwrap_or_default(),
        protocol,
        headers,
        has_body,
    };
    recorder.begin(&session).await.map_err(|Refused(status)| Refusal::Status(status))
}

/// Returns whether a pod, service or node answers the request through the API server's proxy
/// subresource.
fn is_proxy_subresource(attributes: &Attributes) -> bool {
    matches!(attributes, Attributes::Resource(resource) if resource.subresource == "proxy")
}

/// Returns whether the bodies of a request contain the tokens and credentials of a login. A cluster
/// may have several Concierges, each with an API group suffix of its own.
fn is_login(attributes: &Attributes) -> bool {
    matches!(attributes, Attributes::Resource(resource)
        if resource.resource == "tokencredentialrequests"
            && resource.group.starts_with("login.concierge."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn logins_are_recognized_for_each_api_group_suffix() {
        for (path, wanted) in [
            ("/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests", true),
            ("/apis/login.concierge.tuna.io/v1alpha1/tokencredentialrequests", true),
            ("/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests", false),
            ("/api/v1/pods", false),
            ("/version", false),
        ] {
            let info = RequestInfo::parse(&Method::POST, &path.parse().unwrap()).unwrap();
            assert_eq!(is_login(&info.into()), wanted, "{path}");
        }
    }

    #[test]
    fn the_future_of_a_request_is_small() {
        let size = size_of_future(Chain::<ForwardHandler>::respond::<RequestBody>);
        assert!(size <= 2976, "{size} bytes");
    }
}
