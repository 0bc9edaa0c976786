//! Tests of an API server that is killed and restarted under load: clients wait for its reviews
//! instead of getting an error.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use pinniped_concierge::apiserver::{self, Health};
use pinniped_concierge::token_issuer::{IssuedToken, TokenIssuer, TokenIssuerError};
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_delegated_auth::cluster::{Authorizer, TokenReviewer};
use pinniped_delegated_auth::cluster_auth_config::{ClusterAuthConfig, ClusterAuthConfigWatch};
use pinniped_http_server::metrics::Metrics;
use pinniped_http_server::{Limits, Listener, ServerHandle};
use pinniped_impersonation_proxy::impersonator::{
    self, ImpersonatorMetrics, ImpersonatorParams, InFlightLimits, PROBE_INTERVAL,
};
use pinniped_kube_client::{Upstream, UpstreamParams, kube_client, review_client};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::tls::CipherRestriction;
use pinniped_pki::{CaBundle, CertificateAuthority, CertificateStore, Validity};
use pinniped_secret::{Token, TokenSource};
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::{wait, wire};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";
const ACCOUNT: &str = "default";
const PROXIED: &str = "/api/v1/namespaces/default/configmaps?limit=1";
const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
/// The authenticator does not exist, so the login fails like one with an invalid token: 201, after
/// all reviews.
const LOGIN_BODY: &str = r#"{"spec":{"token":"t","authenticator":{"kind":"k","name":"n"}}}"#;
/// Number of concurrent requests of each kind.
const CLIENTS: usize = 8;
/// Tokens for one request each, so that no review is cached.
const TOKENS: usize = 3000;
/// Number of successful requests of each kind before the API server is killed, and after it is
/// back.
const ENOUGH: usize = 40;

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
async fn token(client: &kube::Client) -> anyhow::Result<String> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await?;
    answer.status.and_then(|status| status.token).context("no token")
}

fn holder(ca: &CertificateAuthority, validity: &Validity) -> anyhow::Result<CertificateStore> {
    let pair = ca.issue_server(&["localhost".to_owned()], &[], validity)?;
    let serving = CertificateStore::serving("serving");
    serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes())?;
    Ok(serving)
}

/// The impersonation proxy and the aggregated API of one Concierge.
struct Concierge {
    proxy: impersonator::Impersonator,
    api: ServerHandle,
}

async fn concierge(plane: &ControlPlane, token: String) -> anyhow::Result<Concierge> {
    let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
    let ca = CertificateAuthority::generate("test", &validity)?;
    let signer = CertificateStore::signer("signer");
    signer.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes())?;
    let cluster_ca = CaBundle::from_pem(plane.ca().certificate_pem.as_bytes())?;
    let upstream = Upstream::new(UpstreamParams::new(plane.server().parse()?, cluster_ca))?;
    let tokens: Arc<dyn TokenSource> = Arc::new(Fixed(Arc::new(Token::new(token))));
    let client = kube_client(&upstream, Arc::clone(&tokens), NAMESPACE);
    let reviews = review_client(&upstream, Arc::clone(&tokens), NAMESPACE)?;
    let (reviewer, authorizer) = (TokenReviewer::new(reviews.clone()), Authorizer::new(reviews));
    let cluster_auth = ClusterAuthConfigWatch::fixed(ClusterAuthConfig::default());
    let proxy = impersonator::start(ImpersonatorParams {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        serving: holder(&ca, &validity)?,
        signer,
        ciphers: CipherRestriction::default(),
        upstream,
        client,
        reviewer: reviewer.clone(),
        authorizer: authorizer.clone(),
        cluster_auth: cluster_auth.clone(),
        impersonator_token: tokens,
        impersonator_username: format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"),
        uid_impersonation: true,
        probe_interval: PROBE_INTERVAL,
        limits: Limits::default(),
        in_flight: InFlightLimits::default(),
        metrics: ImpersonatorMetrics::default(),
    })
    .await?;
    let api = apiserver::serve(
        Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?,
        apiserver::Params {
            serving: holder(&ca, &validity)?,
            registry: Registry::new(),
            issuers: Vec::new(),
            tokens: Arc::new(Off),
            suffix: GroupSuffix::default(),
            cluster_auth,
            reviewer,
            authorizer,
            log_usernames_and_groups: false,
            credential_lifetime: Duration::from_secs(300),
            health: Health::new(),
            metrics: Metrics::new(),
            limits: pinniped_http_server::Limits::default(),
        },
    );
    Ok(Concierge { proxy, api })
}

/// Requests in a loop, each with a new token.
struct Load {
    answers: Mutex<Vec<(u16, String)>>,
    succeeded: AtomicUsize,
}

impl Load {
    async fn run(&self, address: SocketAddr, tokens: &Mutex<Vec<String>>, login: bool) -> anyhow::Result<()> {
        let tcp = TcpStream::connect(address).await?;
        let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], None).await?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        loop {
            let token =
                tokens.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.pop().context("no tokens left")?;
            let (method, path, body) = if login { ("POST", LOGIN, LOGIN_BODY) } else { ("GET", PROXIED, "") };
            let request = Request::builder()
                .method(method)
                .uri(format!("https://localhost{path}"))
                .header("content-type", "application/json")
                .header("authorization", format!("Bearer {token}"))
                .body(Full::new(Bytes::from_static(body.as_bytes())))?;
            sender.ready().await?;
            let (head, body) = sender.send_request(request).await?.into_parts();
            // A forwarded request may be interrupted together with the API server, even in the
            // middle of its body.
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            if head.status.is_success() {
                self.succeeded.fetch_add(1, Ordering::SeqCst);
            } else {
                let text = String::from_utf8_lossy(&body).into_owned();
                self.answers
                    .lock()
                    .map_err(|_| anyhow::anyhow!("poisoned"))?
                    .push((head.status.as_u16(), text));
            }
        }
    }

    fn succeeded(&self) -> usize {
        self.succeeded.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_api_server_fails_no_review() -> anyhow::Result<()> {
    let plane = ControlPlane::start(ControlPlaneParams::default()).await?;
    let admin = plane.client().await?;
    let all = [
        "create",
        "clusterrolebinding",
        "all",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:default",
    ];
    plane.kubectl().output(&all).await?;
    let mut minting = JoinSet::new();
    for _ in 0..20 {
        let admin = admin.clone();
        minting.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..TOKENS / 20 {
                tokens.push(token(&admin).await?);
            }
            anyhow::Ok(tokens)
        });
    }
    let minted = minting.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat();
    let tokens = Arc::new(Mutex::new(minted));
    let concierge = concierge(&plane, token(&admin).await?).await?;

    let load = || Arc::new(Load { answers: Mutex::default(), succeeded: AtomicUsize::new(0) });
    let (proxied, logins) = (load(), load());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        for (load, address, login) in
            [(&proxied, concierge.proxy.local_addr(), false), (&logins, concierge.api.local_addr(), true)]
        {
            let (load, tokens) = (Arc::clone(load), Arc::clone(&tokens));
            clients.spawn(async move { load.run(address, &tokens, login).await });
        }
    }
    let progress = async |from: (usize, usize), when: &str| {
        wait::until_ok(PATIENCE, format!("requests to succeed {when}"), async || {
            let now = (proxied.succeeded(), logins.succeeded());
            ensure!(now.0 >= from.0 + ENOUGH && now.1 >= from.1 + ENOUGH, "{now:?} after {from:?}");
            Ok(())
        })
        .await
    };
    for round in 0..2 {
        progress((proxied.succeeded(), logins.succeeded()), "before the restart").await?;
        plane.restart_api_server().await.with_context(|| format!("restart {round}"))?;
        progress((proxied.succeeded(), logins.succeeded()), "after the restart").await?;
    }
    if let Some(ended) = clients.try_join_next() {
        ended??;
    }
    clients.shutdown().await;

    // A forwarded request may end in a 502, if the API server goes away during the request or does
    // not listen. A review is retried.
    let refused = |load: &Load| {
        let answers = load.answers.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        anyhow::Ok(answers.iter().filter(|(status, _)| *status != 502).cloned().collect::<Vec<_>>())
    };
    let (proxied, logins) = (refused(&proxied)?, refused(&logins)?);
    ensure!(proxied.is_empty() && logins.is_empty(), "proxied: {proxied:?}, logins: {logins:?}");
    Ok(())
}
