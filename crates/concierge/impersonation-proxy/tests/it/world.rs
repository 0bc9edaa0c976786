//! An impersonation proxy in front of a scripted API server, and its clients.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_apiserver::metrics::RequestMetrics;
use pinniped_delegated_auth::cluster_auth_config::{
    ClusterAuthConfig, ClusterAuthConfigWatch, RequestHeaderConfig,
};
use pinniped_delegated_auth::reviews::{Authorizer, TokenReviewer};
use pinniped_http_server::{Body, Listeners};
use pinniped_impersonation_proxy::proxy::{
    self, Impersonator, ImpersonatorMetrics, ImpersonatorParams, InFlightLimits,
};
use pinniped_kube_audit::auditor::Auditor;
use pinniped_kube_client::{Upstream, UpstreamParams, kube_client, review_client};
use pinniped_metrics::Metrics;
use pinniped_pki::{CertificateAuthority, CertificateDer, CertificateStore, ClientSubject, Validity};
use pinniped_secret::{Token, TokenSource};
use pinniped_session_recording::Recorder;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::api_server::{ApiServer, Script};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub(crate) const OUR_TOKEN: &str = "impersonator-token";

/// A token that never changes, and the number of its reported refusals.
pub(crate) struct Fixed(Option<Arc<Token>>, AtomicUsize);

impl TokenSource for Fixed {
    fn token(&self) -> Option<Arc<Token>> {
        self.0.clone()
    }
    fn refused(&self, token: &Arc<Token>) {
        assert!(self.0.as_ref().is_some_and(|held| Arc::ptr_eq(held, token)));
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

impl Fixed {
    pub(crate) fn refusals(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

pub(crate) fn token_source(token: Option<&str>) -> Arc<Fixed> {
    Arc::new(Fixed(token.map(|text| Arc::new(Token::new(text))), AtomicUsize::new(0)))
}

/// The options of a world in addition to the script.
pub(crate) struct Options {
    pub(crate) uid_impersonation: bool,
    pub(crate) impersonator_token: bool,
    /// Whether there is a front proxy, see [`World::front_proxy`].
    pub(crate) front_proxy: bool,
    pub(crate) in_flight: InFlightLimits,
    pub(crate) probe_interval: Duration,
    pub(crate) limits: pinniped_http_server::Limits,
    pub(crate) tracer: Option<pinniped_traces::Tracer>,
    pub(crate) audit: Option<Arc<Auditor>>,
    pub(crate) recorder: Option<Recorder>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            uid_impersonation: false,
            impersonator_token: true,
            front_proxy: false,
            in_flight: InFlightLimits::PROXY,
            probe_interval: proxy::PROBE_INTERVAL,
            limits: pinniped_http_server::Limits::default(),
            tracer: None,
            audit: None,
            recorder: None,
        }
    }
}

pub(crate) struct World {
    pub(crate) api: ApiServer,
    pub(crate) upstream: Upstream,
    pub(crate) proxy: Impersonator,
    /// The token of our own service account.
    pub(crate) impersonator_token: Arc<Fixed>,
    pub(crate) listeners: Listeners,
    pub(crate) metrics: Metrics,
    serving_ca: CertificateAuthority,
    signer: CertificateAuthority,
    front_proxy_ca: CertificateAuthority,
    validity: Validity,
}

pub(crate) fn upstream_of(api: &ApiServer) -> Upstream {
    let server = format!("https://{}", api.address).parse().unwrap();
    Upstream::new(UpstreamParams::new(server, api.roots.clone())).unwrap()
}

/// Returns the front-proxy configuration that kube-apiserver writes.
fn request_header(ca: &CertificateAuthority) -> RequestHeaderConfig {
    let name = http::HeaderName::from_static;
    RequestHeaderConfig {
        ca: pinniped_pki::CaBundle::from_pem(ca.certificate_pem().as_bytes()).unwrap(),
        allowed_names: vec!["front-proxy-client".to_owned()],
        username_headers: vec![name("x-remote-user")],
        uid_headers: vec![name("x-remote-uid")],
        group_headers: vec![name("x-remote-group")],
        extra_prefixes: vec!["x-remote-extra-".to_owned()],
    }
}

impl World {
    pub(crate) async fn start(script: Script) -> Self {
        Self::try_start(script, Options::default()).await.unwrap()
    }

    pub(crate) async fn start_with(script: Script, options: Options) -> Self {
        Self::try_start(script, options).await.unwrap()
    }

    pub(crate) async fn try_start(script: Script, options: Options) -> Result<Self, proxy::StartError> {
        let api = ApiServer::start(script).await;
        let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
        let serving_ca = CertificateAuthority::generate("proxy", &validity).unwrap();
        let pair = serving_ca.issue_server(&[], &["127.0.0.1".parse().unwrap()], &validity).unwrap();
        let serving = CertificateStore::serving("impersonation-proxy-serving-cert");
        serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).unwrap();
        let signer = CertificateAuthority::generate("signer", &validity).unwrap();
        let signing = CertificateStore::signer("impersonation-proxy-signing-cert");
        signing.set(signer.certificate_pem().as_bytes(), signer.private_key_pem().as_bytes()).unwrap();

        let front_proxy_ca = CertificateAuthority::generate("front-proxy", &validity).unwrap();
        let request_header = options.front_proxy.then(|| request_header(&front_proxy_ca));

        let upstream = upstream_of(&api);
        let client = kube_client(&upstream, token_source(Some("concierge-token")), "concierge");
        let reviews = review_client(&upstream, token_source(Some("concierge-token")), "concierge").unwrap();
        let impersonator_token = token_source(options.impersonator_token.then_some(OUR_TOKEN));
        let (metrics, listeners, requests) =
            (Metrics::new(), Listeners::default(), RequestMetrics::default());
        requests.register(&metrics);
        let proxy_metrics = ImpersonatorMetrics::new(&requests, listeners.clone());
        proxy_metrics.register(&metrics);
        let proxy = proxy::start(ImpersonatorParams {
            listen: "127.0.0.1:0".parse().unwrap(),
            serving,
            signer: signing,
            ciphers: pinniped_pki::tls::CipherRestriction::default(),
            upstream: upstream.clone(),
            client,
            reviewer: TokenReviewer::new(reviews.clone()),
            authorizer: Authorizer::new(reviews),
            cluster_auth: ClusterAuthConfigWatch::fixed(ClusterAuthConfig {
                client_ca: None,
                request_header,
            }),
            impersonator_token: impersonator_token.clone(),
            impersonator_username: "system:serviceaccount:concierge:impersonation-proxy".to_owned(),
            uid_impersonation: options.uid_impersonation,
            probe_interval: options.probe_interval,
            limits: options.limits,
            in_flight: options.in_flight,
            metrics: proxy_metrics,
            tracer: options.tracer,
            audit: options.audit,
            recorder: options.recorder,
        })
        .await?;
        Ok(Self {
            api,
            upstream,
            proxy,
            impersonator_token,
            listeners,
            metrics,
            serving_ca,
            signer,
            front_proxy_ca,
            validity,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.local_addr()
    }

    /// Returns a client with a certificate of the proxy's signer.
    pub(crate) fn certificate(&self, username: &str, groups: &[&str]) -> Client<'_> {
        self.signed_by(&self.signer, username, groups, &self.validity)
    }

    /// Like [`Self::certificate`], valid for this long.
    pub(crate) fn certificate_for(&self, lifetime: Duration, username: &str) -> Client<'_> {
        let validity = Validity::starting(jiff::Timestamp::now(), lifetime);
        self.signed_by(&self.signer, username, &[], &validity)
    }

    /// Returns a client with a certificate of an untrusted CA.
    pub(crate) fn foreign_certificate(&self, username: &str) -> Client<'_> {
        let foreign = CertificateAuthority::generate("foreign", &self.validity).unwrap();
        self.signed_by(&foreign, username, &[], &self.validity)
    }

    /// Returns the front proxy, which names the user in headers.
    pub(crate) fn front_proxy(&self) -> Client<'_> {
        self.signed_by(&self.front_proxy_ca, "front-proxy-client", &[], &self.validity)
    }

    fn signed_by(
        &self,
        authority: &CertificateAuthority,
        username: &str,
        groups: &[&str],
        validity: &Validity,
    ) -> Client<'_> {
        let subject = ClientSubject {
            username: username.to_owned(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            extra: BTreeMap::new(),
        };
        let pair = authority.issue_client(&subject, validity).unwrap();
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pair.certificate_pem.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes()).unwrap();
        Client { world: self, identity: Some((chain, key)), from: LOCALHOST }
    }

    /// Returns a client without a certificate.
    pub(crate) fn anonymous(&self) -> Client<'_> {
        Client { world: self, identity: None, from: LOCALHOST }
    }
}

/// A client of the proxy.
pub(crate) struct Client<'a> {
    world: &'a World,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    from: Ipv4Addr,
}

impl Client<'_> {
    /// Returns the same client at another loopback address.
    pub(crate) fn at(self, from: Ipv4Addr) -> Self {
        Self { from, ..self }
    }

    pub(crate) async fn tls(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.world.serving_ca.certificate_der().clone()).unwrap();
        let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((self.from, 0).into()).unwrap();
        let tcp = socket.connect(self.world.address()).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
    }

    pub(crate) async fn h2<B>(&self) -> http2::SendRequest<B>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let io = TokioIo::new(self.tls(b"h2").await);
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(1 << 20)
            .initial_max_send_streams(1000)
            .handshake(io)
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    pub(crate) async fn h1(&self) -> http1::SendRequest<Body> {
        let io = TokioIo::new(self.tls(b"http/1.1").await);
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
    }

    pub(crate) async fn send(&self, request: Request<()>) -> ReceivedResponse {
        let mut sender = self.h2().await;
        let response = sender.send_request(request.map(|()| Empty::<Bytes>::new())).await.unwrap();
        ReceivedResponse::read(response).await
    }

    pub(crate) async fn get(&self, path: &str) -> ReceivedResponse {
        self.send(self.request(path).body(()).unwrap()).await
    }

    /// Sends a GET request with these headers.
    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> ReceivedResponse {
        let mut builder = self.request(path);
        for (name, value) in headers {
            builder = builder.header(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        self.send(builder.body(()).unwrap()).await
    }

    pub(crate) fn request(&self, path: &str) -> http::request::Builder {
        Request::get(format!("https://proxy.example:8444{path}"))
    }
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl ReceivedResponse {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Self {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    /// Returns the `message` of a `Status`.
    pub(crate) fn message(&self) -> String {
        let value: serde_json::Value = serde_json::from_str(&self.text).unwrap();
        value["message"].as_str().unwrap().to_owned()
    }
}

/// Waits until a condition is true.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}
