//! The aggregated API: `login.concierge.<suffix>` and `identity.concierge.<suffix>`.
//!
//! It behaves like a server built on k8s.io/apiserver, including the texts of errors, because its
//! clients are kubectl, the API server's aggregator and upstream's own clients.
//!
//! `chain.rs` of the crate `apiserver` contains the steps before the last one, in order. The last
//! step calls a handler: `discovery.rs`, `openapi.rs`, `health.rs` and `statusz.rs` of the crate
//! `apiserver`, or `resources.rs`. A login continues in `exchange.rs`, which also shares the
//! permits of logins fairly between authenticators.
//!
//! Admission is not implemented: a cluster's admission webhooks and policies do not apply to these
//! objects. A controller reports those that match (`admission_report.rs` of the controllers), and
//! `resources.rs` refuses the requests that the controller selects. Only OpenAPI documents are
//! compressed; they are static, so this is done at start.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use jiff::Timestamp;
use pinniped_apiserver::authorize::Authorization;
use pinniped_apiserver::chain::{Chain, ChainParams, Handler, RequestContext, ResponseHeaders};
use pinniped_apiserver::deadline;
use pinniped_apiserver::draining::Draining;
use pinniped_apiserver::in_flight::{InFlight, InFlightLimits};
use pinniped_apiserver::metrics::{RequestMetrics, Server};
use pinniped_apiserver::refusal::Refusal;
use pinniped_apiserver::respond::{self, Encoding, accept};
use pinniped_apiserver::response_headers;
use pinniped_apiserver::statusz::Statusz;
use pinniped_concierge_api::names::VERSION;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_controllers::admission_report::AdmissionGate;
use pinniped_concierge_metrics::listeners;
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfigWatch;
use pinniped_delegated_auth::request::{RequestAuthenticator, RequestAuthenticatorParams};
use pinniped_delegated_auth::reviews::{Authorizer, TokenReviewer};
use pinniped_go_compat::url;
use pinniped_http_server::Incoming;
use pinniped_http_server::{
    Body, BoxError, Connection, Limits, Listener, Listeners, ResponseFuture, ServerHandle, Service, body,
};
use pinniped_kube_metrics::permits;
use pinniped_kube_request::anonymous::is_health;
use pinniped_kube_request::client_impersonation::intake::leftover;
use pinniped_kube_request::identity::User;
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_kube_types::status::Status;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_metrics::Metrics;
use pinniped_pki::CertificateStore;
use pinniped_pki::tls::{self, CipherRestriction, ClientCertificates, Profile};
use pinniped_traces::Tracer;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::audit::Auditor;
use crate::client_cert_issuer::ClientCertIssuer;
use crate::debug_state::DebugState;
use crate::token_issuer::TokenIssuer;

mod bodies;
mod catalog;
mod decode;
mod discovery;
mod encode;
pub mod exchange;
pub mod fuzz_bridge;
mod openapi;
mod resources;

pub use pinniped_apiserver::health::{Health, StartStep, Stopping};

use bodies::Bodies;
use catalog::Kind;
use discovery::DiscoveryDocument;
use exchange::{Exchange, LoginMetrics};
use openapi::{Document, Documents};

/// The parameters of the server.
pub struct Params {
    /// The serving certificate and its key.
    pub serving: CertificateStore,
    /// The authenticators that are ready.
    pub registry: Registry,
    /// The issuers of client certificates, in the order in which they are tried.
    pub issuers: Vec<Arc<dyn ClientCertIssuer>>,
    /// The issuer of service account tokens.
    pub tokens: Arc<dyn TokenIssuer>,
    /// Suffix of this installation's API groups.
    pub suffix: GroupSuffix,
    /// The cluster's client CA and front proxy.
    pub cluster_auth: ClusterAuthConfigWatch,
    /// Reviews bearer tokens.
    pub reviewer: TokenReviewer,
    /// Decides which requests a user is allowed to make.
    pub authorizer: Authorizer,
    /// Whether audit events contain user names and groups.
    pub log_usernames_and_groups: bool,
    /// The lifetime of issued credentials, which may change.
    pub credential_lifetime: watch::Receiver<Duration>,
    /// The resources that no client can create.
    pub admission: AdmissionGate,
    /// The checks of the health endpoints.
    pub health: Health,
    /// The metrics of `/metrics`.
    pub metrics: Metrics,
    /// The state of the process, for `/debug/state`.
    pub debug_state: DebugState,
    /// The metrics of requests.
    pub requests: RequestMetrics,
    /// The listeners, to which the server adds its own.
    pub listeners: Listeners,
    /// Limits on connections.
    pub limits: Limits,
    /// Records requests; `None` if there are no traces.
    pub tracer: Option<Tracer>,
}

/// The running server. Dropping it terminates it without a graceful shutdown.
#[derive(Debug)]
pub struct ApiServer {
    handle: ServerHandle,
    draining: Draining,
}

impl ApiServer {
    /// Returns the address on which the server listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    /// Resolves with the reason when the server terminates unexpectedly.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        self.handle.failed()
    }

    /// Shuts down: closes the port, refuses requests of clients that have been notified, and gives
    /// requests `grace` to finish.
    pub async fn drain(self, grace: Duration) {
        self.draining.begin();
        self.handle.drain(grace).await;
    }
}

/// Serves the API over TLS 1.3. Client certificates are requested, and verified for each request.
pub fn serve(listener: Listener, params: Params) -> ApiServer {
    let authenticator = RequestAuthenticator::new(RequestAuthenticatorParams {
        cluster: params.cluster_auth,
        extra_client_ca: None,
        reviewer: params.reviewer,
    });
    let hints = authenticator.clone();
    let tls = tls::server_config(
        Profile::Secure,
        &CipherRestriction::default(),
        &params.serving,
        ClientCertificates::Request(Arc::new(move || hints.client_ca_hints())),
        &[b"h2", b"http/1.1"],
    );
    let handler = ApiHandler::new(HandlerParams {
        registry: params.registry,
        issuers: params.issuers,
        tokens: params.tokens,
        suffix: params.suffix,
        audit: Auditor::new(params.log_usernames_and_groups),
        health: params.health,
        metrics: params.metrics,
        debug_state: params.debug_state,
        credential_lifetime: params.credential_lifetime,
        admission: params.admission,
        clock: Timestamp::now,
    });
    let draining = Draining::default();
    let chain = chain(
        authenticator,
        params.authorizer,
        InFlight::new(&InFlightLimits::AGGREGATED_API, params.requests.of(Server::AggregatedApi)),
        draining.clone(),
        params.tracer,
        handler,
    );
    let handle = pinniped_http_server::serve(listener, tls, Api(Arc::new(chain)), params.limits);
    params.listeners.add(listeners::AGGREGATED_API, handle.stats_source());
    ApiServer { handle, draining }
}

fn chain(
    authenticator: RequestAuthenticator,
    authorizer: Authorizer,
    in_flight: InFlight,
    draining: Draining,
    tracer: Option<Tracer>,
    handler: ApiHandler,
) -> Chain<ApiHandler> {
    Chain::new(ChainParams {
        authenticator,
        // Members of `system:masters` get 405 for a method without a verb.
        authorization: Authorization { authorizer, decided_by: None, masters_need_no_verb: true },
        in_flight,
        draining,
        response_headers: ResponseHeaders::CacheControl,
        tracer,
        audit: None,
        handler,
    })
}

/// The handler chain as an HTTP service.
#[derive(Clone)]
struct Api(Arc<Chain<ApiHandler>>);

impl Service for Api {
    fn call(&self, connection: &Arc<Connection>, mut request: Request<Incoming>) -> ResponseFuture {
        let (chain, connection) = (Arc::clone(&self.0), Arc::clone(connection));
        Box::pin(async move { chain.respond(Some(&connection), &mut request).await })
    }

    fn recognizes_client(&self, connection: &Connection) -> bool {
        self.0.recognizes_client(connection)
    }
}

/// The parameters of [`ApiHandler`].
struct HandlerParams {
    registry: Registry,
    issuers: Vec<Arc<dyn ClientCertIssuer>>,
    tokens: Arc<dyn TokenIssuer>,
    suffix: GroupSuffix,
    audit: Auditor,
    health: Health,
    metrics: Metrics,
    debug_state: DebugState,
    credential_lifetime: watch::Receiver<Duration>,
    admission: AdmissionGate,
    /// Returns the current time.
    clock: fn() -> Timestamp,
}

/// The last step of the chain: serves the API and the documents about it.
struct ApiHandler {
    exchange: Exchange,
    health: Health,
    metrics: Metrics,
    debug_state: DebugState,
    openapi: Documents,
    aggregated: DiscoveryDocument,
    aggregated_etag: String,
    clock: fn() -> Timestamp,
    started: Timestamp,
    bodies: Bodies,
    admission: AdmissionGate,
}

impl<B> Handler<B> for ApiHandler
where
    B: HttpBody + Send + Unpin,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    async fn handle(
        &self,
        request: &mut Request<B>,
        context: &mut RequestContext<'_>,
    ) -> Result<Response<Body>, Refusal> {
        // Taken from the request, because the body is read while they are in use.
        let method = std::mem::take(request.method_mut());
        let uri = std::mem::take(request.uri_mut());
        let headers = std::mem::take(request.headers_mut());
        let authorized = AuthorizedRequest {
            method: &method,
            path: &url::path_text(uri.path()).ok_or(Refusal::BadPath)?,
            headers: &headers,
            query: uri.query(),
            connection: context.connection,
            user: context.user,
            client: *context.client,
            audit_id: headers
                .get(response_headers::AUDIT_ID)
                .and_then(|id| id.to_str().ok())
                .unwrap_or_default(),
            now: (self.clock)(),
        };
        let response = self.route(&authorized, request.body_mut()).await?;
        // No response of this server is long-running.
        Ok(response.map(|body| body.with_deadline(Instant::now() + deadline::LONGEST)))
    }

    fn serves_long_running(&self) -> bool {
        false
    }

    fn is_exempt_from_limits(&self, info: &RequestInfo, headers: &HeaderMap) -> bool {
        // The kubelet's probes cost no review, and excess requests of other clients must not cause
        // a restart of the pod. A request that impersonates may need reviews.
        is_health(info) && !headers.contains_key(AUTHORIZATION) && leftover(headers).is_none()
    }
}

impl ApiHandler {
    fn new(params: HandlerParams) -> Self {
        let HandlerParams {
            registry,
            issuers,
            tokens,
            suffix,
            audit,
            health,
            metrics,
            debug_state,
            credential_lifetime,
            admission,
            clock,
        } = params;
        let (logins, login_permits) = (LoginMetrics::default(), Exchange::logins());
        logins.register(&metrics);
        permits::register(&metrics, permits::LOGINS, &login_permits);
        let started = clock();
        let aggregated = discovery::aggregated(&suffix);
        Self {
            openapi: Documents::new(&suffix),
            aggregated_etag: Document::json(&aggregated.json).etag(),
            aggregated,
            exchange: Exchange {
                registry,
                issuers,
                tokens,
                suffix,
                credential_lifetime,
                audit,
                started,
                logins: login_permits,
                metrics: logins,
            },
            health,
            metrics,
            debug_state,
            clock,
            started,
            bodies: Bodies::new(),
            admission,
        }
    }

    async fn route<B>(&self, request: &AuthorizedRequest<'_>, body: B) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let trimmed = request.path.trim_start_matches('/');
        let segments: Vec<&str> = trimmed.trim_end_matches('/').split('/').collect();
        match segments.as_slice() {
            [""] => Ok(encode::pretty(StatusCode::OK, &json!({ "paths": self.paths() }))),
            ["version"] => Ok(encode::pretty(StatusCode::OK, &version())),
            ["metrics"] => Ok(pinniped_program::metrics::respond(&self.metrics, request.headers).await),
            ["metrics", "slis"] => Ok(encode::respond(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                self.health.slis(),
            )),
            ["statusz"] => self.statusz(request),
            ["debug", "state"] => {
                Ok(encode::pretty(StatusCode::OK, &self.debug_state.read(&self.metrics).await))
            }
            [endpoint @ ("healthz" | "livez" | "readyz"), ..] => {
                let check = trimmed.split_once('/').map(|(_, check)| check).filter(|check| !check.is_empty());
                let response = self.health.respond(endpoint, check, request.query.unwrap_or_default());
                Ok(response.unwrap_or_else(|| self.unknown()))
            }
            ["openapi", version @ ("v2" | "v3"), key @ ..] => {
                let response =
                    openapi::serve::respond(&self.openapi, version, &key.join("/"), request, self.started);
                Ok(response.unwrap_or_else(|| self.unknown()))
            }
            ["apis"] => request.get_only(|| self.groups(request)),
            ["apis", group, rest @ ..] => match Kind::of_group(group, &self.exchange.suffix) {
                Some(kind) => self.group(kind, rest, request, body).await,
                None => Ok(self.unknown()),
            },
            _ => Ok(self.unknown()),
        }
    }

    async fn group<B>(
        &self,
        kind: Kind,
        rest: &[&str],
        request: &AuthorizedRequest<'_>,
        body: B,
    ) -> Result<Response<Body>, Box<Status>>
    where
        B: HttpBody + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let suffix = &self.exchange.suffix;
        let document =
            |document: DiscoveryDocument| encode::document(&document, request.headers, request.query);
        match rest {
            [] => request.get_only(|| document(discovery::group(kind, suffix))),
            [VERSION] => request.get_only(|| document(discovery::resources(kind, suffix))),
            [VERSION, resource] if *resource == kind.plural() => {
                let call = resources::Call {
                    kind,
                    headers: request.headers,
                    query: request.query,
                    user: request.user,
                    client: request.client,
                    audit_id: request.audit_id,
                    now: request.now,
                    bodies: &self.bodies,
                    admission: &self.admission,
                };
                call.respond(request.method, body, &self.exchange).await
            }
            _ => Err(Box::new(Status::not_found())),
        }
    }

    /// Responds to `/apis` in the newest format that the client supports.
    fn groups(&self, request: &AuthorizedRequest<'_>) -> Response<Body> {
        for clause in accept::parse_all(request.headers) {
            let params = (clause.param("g"), clause.param("v"), clause.param("as"));
            let encoding = Encoding::ALL.into_iter().find(|encoding| encoding.is_covered_by(&clause));
            if params == (Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList"))
                && let Some(encoding) = encoding
            {
                let pretty = clause.param("pretty") == Some("1")
                    || respond::wants_pretty(request.headers, request.query);
                return self.aggregated_groups(request, encoding, pretty);
            }
        }
        let address =
            request.connection.map_or_else(String::new, |connection| connection.local_addr.to_string());
        let groups = discovery::groups(&self.exchange.suffix, &address);
        encode::document(&groups, request.headers, request.query)
    }

    fn aggregated_groups(
        &self,
        request: &AuthorizedRequest<'_>,
        encoding: Encoding,
        pretty: bool,
    ) -> Response<Body> {
        // All formats have the same tag; they differ in the `Accept` header.
        let mut response = encode::tagged(request.headers, &self.aggregated_etag, || {
            let mut response = Response::new(body::full(self.aggregated.encode(encoding, pretty)));
            let media_type = format!("{}{}", encoding.media_type(), discovery::AGGREGATED);
            if let Ok(media_type) = HeaderValue::try_from(media_type) {
                response.headers_mut().insert(CONTENT_TYPE, media_type);
            }
            response
        });
        let headers = response.headers_mut();
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }

    fn statusz(&self, request: &AuthorizedRequest<'_>) -> Result<Response<Body>, Box<Status>> {
        let page = Statusz {
            component: "apiserver",
            started: self.started,
            now: request.now,
            version: pinniped_version::VERSION.trim_start_matches('v'),
            // An API server lists the paths before it adds this one.
            paths: &self.paths().into_iter().filter(|path| path != "/statusz").collect::<Vec<_>>(),
        };
        page.respond(request.headers, request.query)
    }

    fn paths(&self) -> Vec<String> {
        discovery::paths(&self.exchange.suffix, &self.health.alive_names(), &self.health.ready_names())
    }

    fn unknown(&self) -> Response<Body> {
        encode::pretty(StatusCode::NOT_FOUND, &json!({ "paths": self.paths() }))
    }
}

/// A request that is authorized.
struct AuthorizedRequest<'a> {
    method: &'a Method,
    path: &'a str,
    headers: &'a HeaderMap,
    query: Option<&'a str>,
    connection: Option<&'a Connection>,
    user: &'a User,
    /// The client to which permits and reviews are charged.
    client: ClientKey<'a>,
    audit_id: &'a str,
    now: Timestamp,
}

impl AuthorizedRequest<'_> {
    fn get_only(&self, respond: impl FnOnce() -> Response<Body>) -> Result<Response<Body>, Box<Status>> {
        if self.method == Method::GET { Ok(respond()) } else { Err(Box::new(Status::method_not_allowed())) }
    }
}

/// Returns the version document. Members without a meaning here are empty, as in a Go program
/// without build flags.
fn version() -> Value {
    let (major, minor) = pinniped_version::numbers();
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": pinniped_version::VERSION,
        "gitCommit": pinniped_version::COMMIT.unwrap_or_default(),
        "gitTreeState": pinniped_version::COMMIT.map_or("", |_| pinniped_version::TREE_STATE),
        "buildDate": pinniped_version::BUILD_DATE,
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

#[cfg(test)]
mod tests;
