//! The impersonation proxy and the aggregated API in front of a real API server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use pinniped_concierge::apiserver::{self, ApiServer, Health};
use pinniped_concierge::client_cert_issuer::CertificateStoreIssuer;
use pinniped_concierge::token_issuer::{IssuedToken, TokenIssuer, TokenIssuerError};
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_controllers::admission_report::AdmissionGate;
use pinniped_concierge_domain::admission_report::UnappliedAdmission;
use pinniped_delegated_auth::cluster_auth_config::{ClusterAuthConfig, ClusterAuthConfigWatch};
use pinniped_delegated_auth::reviews::{Authorizer, TokenReviewer};
use pinniped_http_server::{Limits, Listener};
use pinniped_impersonation_proxy::proxy::{
    self, ImpersonatorMetrics, ImpersonatorParams, InFlightLimits, PROBE_INTERVAL,
};
use pinniped_kube_audit::auditor::Auditor;
use pinniped_kube_client::{Dial, Upstream, UpstreamLimits, UpstreamParams, kube_client, review_client};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_metrics::Metrics;
use pinniped_pki::tls::CipherRestriction;
use pinniped_pki::{CaBundle, CertificateAuthority, CertificateStore, ClientSubject, Validity};
use pinniped_secret::{Token, TokenSource};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::wait;
use pinniped_traces::Tracer;

const NAMESPACE: &str = "default";
const ACCOUNT: &str = "default";
/// A user with all permissions.
pub(crate) const READER: &str = "reader";

struct Fixed(Arc<Token>);

impl TokenSource for Fixed {
    fn token(&self) -> Option<Arc<Token>> {
        Some(Arc::clone(&self.0))
    }
}

/// An issuer that never issues a token.
struct Off;

impl TokenIssuer for Off {
    fn issue<'a>(
        &'a self,
        _user: &'a ImpersonatedUser,
    ) -> BoxFuture<'a, Result<IssuedToken, TokenIssuerError>> {
        Box::pin(async { Err(TokenIssuerError::Off) })
    }
}

/// Returns a token of the account with all permissions of this cluster.
pub(crate) async fn token(client: &kube::Client) -> anyhow::Result<String> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    let response = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await?;
    response.status.and_then(|status| status.token).context("no token")
}

fn holder(ca: &CertificateAuthority, validity: &Validity) -> anyhow::Result<CertificateStore> {
    let pair = ca.issue_server(&["localhost".to_owned()], &[], validity)?;
    let serving = CertificateStore::serving("serving");
    serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes())?;
    Ok(serving)
}

/// The impersonation proxy and the aggregated API of one Concierge, and their connections to the
/// API server.
pub(crate) struct Concierge {
    pub(crate) proxy: proxy::Impersonator,
    pub(crate) api: ApiServer,
    pub(crate) upstream: Upstream,
    /// A client certificate of [`READER`].
    pub(crate) reader: Pair,
    /// The CA of clients.
    pub(crate) ca: CertificateAuthority,
}

/// Returns a client certificate for the proxy.
pub(crate) fn client_pair(ca: &CertificateAuthority, username: &str) -> anyhow::Result<Pair> {
    let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
    let subject = ClientSubject { username: username.to_owned(), ..ClientSubject::default() };
    let pair = ca.issue_client(&subject, &validity)?;
    Ok(Pair {
        certificate_pem: pair.certificate_pem.clone(),
        private_key_pem: pair.private_key_pem.as_str().to_owned(),
    })
}

pub(crate) async fn concierge(
    plane: &ControlPlane,
    token: String,
    limits: UpstreamLimits,
) -> anyhow::Result<Concierge> {
    concierge_with(plane, token, Options { limits, ..Options::default() }).await
}

/// The parts of a Concierge that tests change.
pub(crate) struct Options {
    /// The limits of connections to the API server.
    pub(crate) limits: UpstreamLimits,
    /// Opens the connections to the API server.
    pub(crate) dial: Option<Arc<dyn Dial>>,
    pub(crate) in_flight: InFlightLimits,
    pub(crate) audit: Option<Arc<Auditor>>,
    /// The client CAs of the aggregated API.
    pub(crate) cluster_auth: ClusterAuthConfigWatch,
    pub(crate) tracer: Option<Tracer>,
    /// The authenticators of the aggregated API.
    pub(crate) registry: Registry,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: UpstreamLimits::default(),
            dial: None,
            in_flight: InFlightLimits::PROXY,
            audit: None,
            cluster_auth: ClusterAuthConfigWatch::fixed(ClusterAuthConfig::default()),
            tracer: None,
            registry: Registry::new(),
        }
    }
}

pub(crate) async fn concierge_with(
    plane: &ControlPlane,
    token: String,
    options: Options,
) -> anyhow::Result<Concierge> {
    let Options { limits, dial, in_flight, audit, cluster_auth, tracer, registry } = options;
    let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
    let ca = CertificateAuthority::generate("test", &validity)?;
    let reader = client_pair(&ca, READER)?;
    let signer = CertificateStore::signer("signer");
    signer.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes())?;
    let cluster_ca = CaBundle::from_pem(plane.ca().certificate_pem.as_bytes())?;
    let mut params = UpstreamParams::new(plane.server().parse()?, cluster_ca);
    (params.limits, params.dial) = (limits, dial);
    let upstream = Upstream::new(params)?;
    let tokens: Arc<dyn TokenSource> = Arc::new(Fixed(Arc::new(Token::new(token))));
    let client = kube_client(&upstream, Arc::clone(&tokens), NAMESPACE);
    let reviews = review_client(&upstream, Arc::clone(&tokens), NAMESPACE)?;
    let (reviewer, authorizer) = (TokenReviewer::new(reviews.clone()), Authorizer::new(reviews));
    let proxy = proxy::start(ImpersonatorParams {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        serving: holder(&ca, &validity)?,
        signer: signer.clone(),
        ciphers: CipherRestriction::default(),
        upstream: upstream.clone(),
        client,
        reviewer: reviewer.clone(),
        authorizer: authorizer.clone(),
        cluster_auth: cluster_auth.clone(),
        impersonator_token: tokens,
        impersonator_username: format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
        uid_impersonation: true,
        probe_interval: PROBE_INTERVAL,
        limits: Limits::default(),
        in_flight,
        metrics: ImpersonatorMetrics::default(),
        tracer: tracer.clone(),
        audit,
        recorder: None,
    })
    .await?;
    let api = apiserver::serve(
        Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?,
        apiserver::Params {
            serving: holder(&ca, &validity)?,
            registry,
            issuers: vec![Arc::new(CertificateStoreIssuer::new(signer.clone()))],
            tokens: Arc::new(Off),
            suffix: GroupSuffix::default(),
            cluster_auth,
            reviewer,
            authorizer,
            log_usernames_and_groups: false,
            credential_lifetime: tokio::sync::watch::channel(Duration::from_secs(300)).1,
            admission: AdmissionGate::new(UnappliedAdmission::Report),
            health: Health::new(),
            metrics: Metrics::new(),
            debug_state: Default::default(),
            requests: Default::default(),
            listeners: Default::default(),
            limits: pinniped_http_server::Limits::default(),
            tracer,
        },
    );
    Ok(Concierge { proxy, api, upstream, reader, ca })
}

/// Starts a control plane on which the account of the Concierge and [`READER`] have all
/// permissions.
pub(crate) async fn control_plane() -> anyhow::Result<ControlPlane> {
    control_plane_with(ControlPlaneParams::default()).await
}

/// Does the same with these parameters.
pub(crate) async fn control_plane_with(params: ControlPlaneParams) -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start(params).await?;
    let all = [
        "create",
        "clusterrolebinding",
        "all",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:default",
        &format!("--user={READER}"),
    ];
    plane.kubectl().output(&all).await?;
    // The authorizer of the API server reads the binding later.
    let may = [
        "auth",
        "can-i",
        "create",
        "subjectaccessreviews.authorization.k8s.io",
        "--as=system:serviceaccount:default:default",
    ];
    wait::until_ok(Duration::from_secs(60), "the permissions", async || plane.kubectl().output(&may).await)
        .await?;
    Ok(plane)
}
