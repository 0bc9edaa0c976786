//! A scripted provider that counts its requests.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use pinniped_http_client::https::{Connections, HttpsClient, HttpsClientParams, Redirects};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{ALPN_HTTP, Profile, Roots, client_config};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use url::Url;

/// A response.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) location: Option<String>,
    pub(crate) body: String,
    /// The response is sent when a permit is available.
    pub(crate) gate: Option<Arc<Semaphore>>,
}

impl Reply {
    pub(crate) fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain", location: None, body: body.into(), gate: None }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self { content_type: "application/json", ..Self::text(200, value.to_string()) }
    }

    pub(crate) fn redirect(location: impl Into<String>) -> Self {
        Self { location: Some(location.into()), ..Self::text(302, "") }
    }

    pub(crate) fn after(self, gate: &Arc<Semaphore>) -> Self {
        Self { gate: Some(Arc::clone(gate)), ..self }
    }
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
}

type Script = dyn FnMut(&Seen) -> Reply + Send;

/// The provider; it stops when it is dropped.
pub(crate) struct Provider {
    port: u16,
    bundle: CaBundle,
    seen: Arc<Mutex<Vec<Seen>>>,
    arrived: Arc<Semaphore>,
    script: Arc<Mutex<Box<Script>>>,
    tasks: JoinSet<()>,
}

impl Provider {
    pub(crate) async fn start(script: impl FnMut(&Seen) -> Reply + Send + 'static) -> Self {
        let (acceptor, bundle) = tls_acceptor(ALPN_HTTP);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let script: Arc<Mutex<Box<Script>>> = Arc::new(Mutex::new(Box::new(script)));
        let (seen, arrived) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(Semaphore::new(0)));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, Arc::clone(&script), Arc::clone(&seen), Arc::clone(&arrived)));
        Self { port, bundle, seen, arrived, script, tasks }
    }

    /// A provider that returns the same for every request.
    pub(crate) async fn constant(reply: Reply) -> Self {
        Self::start(move |_| reply.clone()).await
    }

    pub(crate) fn now_returns(&self, reply: Reply) {
        *self.script.lock().unwrap() = Box::new(move |_| reply.clone());
    }

    /// Stops, and returns when the port refuses connections.
    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    pub(crate) fn parsed_url(&self, path: &str) -> Url {
        self.url(path).parse().unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Waits until this many requests have arrived.
    pub(crate) async fn wait_for(&self, count: usize) {
        let arrived = self.arrived.acquire_many(u32::try_from(count).unwrap());
        drop(
            tokio::time::timeout(Duration::from_secs(60), arrived)
                .await
                .expect("the requests arrive")
                .unwrap(),
        );
    }

    pub(crate) fn client(&self) -> HttpsClient {
        self.client_with(Redirects::Follow, Some(Duration::from_secs(60)))
    }

    pub(crate) fn client_with(&self, redirects: Redirects, timeout: Option<Duration>) -> HttpsClient {
        HttpsClient::new(HttpsClientParams { timeout, redirects, ..client_params(&self.bundle) })
    }
}

/// Returns the parameters of a client that trusts a server of this bundle.
pub(crate) fn client_params(bundle: &CaBundle) -> HttpsClientParams {
    let roots = Roots::Bundle(bundle.clone());
    HttpsClientParams {
        dialer: TcpDialer::default(),
        tls: client_config(Profile::Default, roots, ALPN_HTTP).unwrap(),
        user_agent: HeaderValue::from_static("some-agent"),
        max_body: 5 << 20,
        timeout: None,
        redirects: Redirects::Return,
        connections: Connections::Close,
    }
}

/// Returns the acceptor of a TLS server on this machine with these protocols, and its certificate.
pub(crate) fn tls_acceptor(protocols: &[&[u8]]) -> (TlsAcceptor, CaBundle) {
    pinniped_pki::install_crypto_provider();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pair = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()));
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(tls)), CaBundle::from_ders(vec![pair.cert.der().clone()]))
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    script: Arc<Mutex<Box<Script>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    arrived: Arc<Semaphore>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        let (script, seen, arrived) = (Arc::clone(&script), Arc::clone(&seen), Arc::clone(&arrived));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request: Request<Incoming>| {
                let (path, headers) = (request.uri().path().to_owned(), request.headers().clone());
                let one = Seen { path, headers };
                let reply = (script.lock().unwrap())(&one);
                seen.lock().unwrap().push(one);
                arrived.add_permits(1);
                respond(reply)
            });
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(reply: Reply) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Some(gate) = &reply.gate {
        gate.acquire().await.unwrap().forget();
    }
    let mut response = Response::builder().status(reply.status).header("content-type", reply.content_type);
    if let Some(location) = &reply.location {
        response = response.header("location", location);
    }
    Ok(response.body(Full::new(Bytes::from(reply.body))).unwrap())
}
