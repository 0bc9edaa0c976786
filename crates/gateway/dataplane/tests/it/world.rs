//! A gateway with routing tables, backends and clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_dataplane::{Gateway, GatewayParams};
use pinniped_gateway_routing::RoutingTable;
use pinniped_gateway_routing::table::{
    Action, Backends, Balance, ClientValidation, Forward, HostPattern, PathMatch, Protocol, Route, Routes,
    ServicePort, TcpProxy, Terminated, Termination, Timeouts, TlsAction, TlsHost, TlsVersions, Upstream,
    UpstreamId, UpstreamValidation,
};
use pinniped_pki::{CaBundle, CertificatePair};
use pinniped_test_support::certs::{Authority, Pair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The maximum time that a test waits for a condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.expect("nothing happened within the deadline")
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(2));
    let waiting = async {
        while !condition() {
            tick.tick().await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, waiting).await.is_ok(), "never came true: {what}");
}

/// The CA of all certificates in these tests.
pub(crate) static CA: LazyLock<Authority> = LazyLock::new(|| Authority::new("test CA").unwrap());

/// Returns a server certificate and key for these names.
pub(crate) fn pair(names: &[&str]) -> Pair {
    CA.server(names[0], names, &[]).unwrap()
}

pub(crate) fn certificate(pair: &Pair) -> Arc<CertificatePair> {
    let parsed = CertificatePair::parse(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes());
    Arc::new(parsed.unwrap())
}

pub(crate) fn bundle(authority: &Authority) -> Arc<CaBundle> {
    Arc::new(CaBundle::from_pem(authority.certificate_pem.as_bytes()).unwrap())
}

/// Starts a gateway on free ports.
pub(crate) fn gateway() -> Gateway {
    gateway_with(|_| {})
}

pub(crate) fn gateway_with(change: impl FnOnce(&mut GatewayParams)) -> Gateway {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut params = GatewayParams::new(any, any);
    change(&mut params);
    pinniped_gateway_dataplane::start(&params).unwrap()
}

/// A routing table under construction.
#[derive(Default)]
pub(crate) struct Table(pub(crate) RoutingTable);

impl Table {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn tls(mut self, host: &str, action: TlsAction) -> Self {
        let pattern = HostPattern::parse(host);
        let host = TlsHost { pattern: pattern.clone(), action };
        self.0.tls.hosts.insert(pattern, Arc::new(host));
        self
    }

    pub(crate) fn passthrough(self, host: &str, backends: Backends) -> Self {
        self.tls(host, TlsAction::Passthrough(TcpProxy { backends }))
    }

    /// Adds an HTTPS host.
    pub(crate) fn https(self, host: &str, pair: &Pair, routes: Vec<Route>) -> Self {
        let inside = Terminated::Http(Arc::new(Routes::new(routes.into_iter().map(Arc::new))));
        self.tls(host, TlsAction::Terminate(termination(pair, inside)))
    }

    /// Adds a host of port 80.
    pub(crate) fn plain(mut self, host: &str, routes: Vec<Route>) -> Self {
        let routes = Arc::new(Routes::new(routes.into_iter().map(Arc::new)));
        self.0.plain.hosts.insert(HostPattern::parse(host), routes);
        self
    }

    pub(crate) fn serve(self, gateway: &Gateway) {
        gateway.update(Arc::new(self.0));
    }
}

pub(crate) fn termination(pair: &Pair, inside: Terminated) -> Termination {
    Termination {
        certificate: certificate(pair),
        secret: SecretReference { namespace: "ns".into(), name: "certificate".into() },
        versions: TlsVersions::default(),
        client_validation: None,
        inside,
    }
}

pub(crate) fn demand(ca: &Authority) -> ClientValidation {
    ClientValidation {
        ca: bundle(ca),
        revocations: None,
        revocations_of_leaf_only: false,
        optional: false,
        forward: None,
    }
}

/// Returns a backend named after its protocol.
pub(crate) fn upstream(protocol: Protocol, endpoints: &[SocketAddr]) -> Arc<Upstream> {
    service(&format!("{protocol:?}"), protocol, None, endpoints)
}

/// Returns a backend with the name of its Service.
pub(crate) fn service(
    name: &str,
    protocol: Protocol,
    validation: Option<UpstreamValidation>,
    endpoints: &[SocketAddr],
) -> Arc<Upstream> {
    let service = ServicePort { namespace: "ns".into(), name: name.into(), port: 80 };
    let id =
        UpstreamId { service, protocol, balance: Balance::RoundRobin, validation, idle_connection: None };
    Arc::new(Upstream { id, client_certificate: None, endpoints: endpoints.into() })
}

pub(crate) fn one(upstream: Arc<Upstream>) -> Backends {
    Backends::new(vec![(0, upstream)]).unwrap()
}

/// Returns backends for plain HTTP/1.1 or for raw bytes.
pub(crate) fn to(endpoints: &[SocketAddr]) -> Backends {
    one(upstream(Protocol::Http1, endpoints))
}

pub(crate) fn forward(backends: Backends) -> Forward {
    Forward { backends, timeouts: Timeouts::default(), websockets: false, rewrite: None }
}

pub(crate) fn prefix(prefix: &str, action: Action) -> Route {
    Route {
        path: PathMatch::Prefix(prefix.into()),
        headers: Box::default(),
        query: Box::default(),
        upgrade_to_https: false,
        action,
    }
}

/// Returns a route that forwards all requests to one backend.
pub(crate) fn all_to(backends: Backends) -> Vec<Route> {
    vec![prefix("/", Action::Forward(forward(backends)))]
}

/// A server behind the gateway. Dropping it stops the server.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    /// The number of accepted connections.
    pub(crate) accepted: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Backend {
    /// Starts a server that runs `serve` for each connection.
    pub(crate) async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream));
            }
        });
        Self { address, accepted, _tasks: tasks }
    }

    /// Starts a plain HTTP server for both versions that describes each request in its response.
    pub(crate) async fn http(name: &'static str) -> Self {
        Self::start(move |stream| report_request(name, stream)).await
    }

    /// Starts an HTTPS server with this certificate that describes each request in its response.
    pub(crate) async fn https(name: &'static str, pair: &Pair, alpn: &'static [u8]) -> Self {
        let acceptor = TlsAcceptor::from(server_config(pair, alpn));
        Self::start(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    report_request(name, stream).await;
                }
            }
        })
        .await
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

pub(crate) fn server_config(pair: &Pair, alpn: &[u8]) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots(&[&CA.certificate_pem])),
        Arc::clone(&provider),
    );
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes()).unwrap(),
        )
        .unwrap();
    if !alpn.is_empty() {
        config.alpn_protocols = vec![alpn.to_vec()];
    }
    Arc::new(config)
}

fn roots(pems: &[&str]) -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    for pem in pems {
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    }
    roots
}

/// Responds to each request with the server's name and the head and body of the request.
async fn report_request<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(name: &'static str, stream: T) {
    let service = service_fn(move |request: Request<Incoming>| async move {
        let (parts, body) = request.into_parts();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Err(error),
        };
        let mut report = format!("{name}\n{} {} {:?}\n", parts.method, parts.uri, parts.version);
        for (header, value) in &parts.headers {
            report.push_str(&format!("{header}: {}\n", value.to_str().unwrap_or("?")));
        }
        report.push('\n');
        report.push_str(&String::from_utf8_lossy(&body));
        Ok(Response::new(Full::new(Bytes::from(report))))
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let _client_gone = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// A TLS client that trusts the [`CA`].
pub(crate) struct Client {
    config: rustls::ClientConfig,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self::with_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
    }

    pub(crate) fn with_versions(versions: &[&'static rustls::SupportedProtocolVersion]) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots(&[&CA.certificate_pem]))
            .with_no_client_auth();
        Self { config }
    }

    pub(crate) fn alpn(mut self, protocols: &[&[u8]]) -> Self {
        self.config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self
    }

    pub(crate) fn no_sni(mut self) -> Self {
        self.config.enable_sni = false;
        self
    }

    pub(crate) fn showing(self, pair: &Pair) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots(&[&CA.certificate_pem]))
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = self.config.alpn_protocols;
        Self { config }
    }

    /// Opens a connection and completes the handshake.
    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        name: &str,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        within(TlsConnector::from(Arc::new(self.config.clone())).connect(name, stream)).await
    }

    /// Returns the bytes of a ClientHello.
    pub(crate) fn hello(&self, name: &str) -> Vec<u8> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = rustls::ClientConnection::new(Arc::new(self.config.clone()), name).unwrap();
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        hello
    }
}

/// A response to a test request.
#[derive(Debug)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl ReceivedResponse {
    pub(crate) async fn read(response: Response<Incoming>) -> Result<Self, hyper::Error> {
        let (parts, body) = response.into_parts();
        let body = within(body.collect()).await?.to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Ok(Self { status: parts.status, headers: parts.headers, body })
    }

    /// Returns the name of the backend that responded.
    pub(crate) fn backend_name(&self) -> &str {
        self.body.lines().next().unwrap_or_default()
    }

    /// Returns a request header as the backend received it.
    pub(crate) fn report(&self, header: &str) -> Option<&str> {
        let head = self.body.split("\n\n").next()?;
        head.lines().find_map(|line| line.strip_prefix(header)?.strip_prefix(": "))
    }

    pub(crate) fn location(&self) -> &str {
        self.headers.get("location").map_or("", |location| location.to_str().unwrap())
    }
}

/// An HTTP/1.1 connection.
pub(crate) struct Http1 {
    pub(crate) sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    _tasks: JoinSet<()>,
}

impl Http1 {
    pub(crate) async fn over<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: T) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ended = connection.with_upgrades().await;
        });
        Self { sender, _tasks: tasks }
    }

    pub(crate) async fn plain(gateway: &Gateway) -> Self {
        Self::over(TcpStream::connect(gateway.plain_addr()).await.unwrap()).await
    }

    pub(crate) async fn tls(gateway: &Gateway, name: &str) -> Self {
        Self::over(Client::new().connect(gateway.tls_addr(), name).await.unwrap()).await
    }

    pub(crate) async fn get(&mut self, host: &str, path: &str) -> ReceivedResponse {
        let request = Request::get(path).header("host", host).body(Full::default()).unwrap();
        self.send(request).await.unwrap()
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<ReceivedResponse, hyper::Error> {
        ReceivedResponse::read(within(self.sender.send_request(request)).await?).await
    }
}

/// An HTTP/2 connection.
pub(crate) struct Http2 {
    pub(crate) sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    tasks: JoinSet<()>,
}

impl Http2 {
    pub(crate) async fn tls(gateway: &Gateway, name: &str) -> Self {
        let stream = Client::new().alpn(&[b"h2"]).connect(gateway.tls_addr(), name).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ended = connection.await;
        });
        Self { sender, tasks }
    }

    pub(crate) async fn get(&mut self, authority: &str, path: &str) -> ReceivedResponse {
        let request = Request::get(format!("https://{authority}{path}")).body(Full::default()).unwrap();
        ReceivedResponse::read(within(self.sender.send_request(request)).await.unwrap()).await.unwrap()
    }

    /// Waits until the server has closed the connection.
    pub(crate) async fn ended(&mut self) {
        within(self.tasks.join_next()).await;
    }
}
