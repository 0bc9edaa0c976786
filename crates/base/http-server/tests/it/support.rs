//! A server with a test service, and clients that trust it.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pinniped_http_server::tunnels::{Tunnels, relay};
use pinniped_http_server::{
    Body, Connection, Limits, Listener, ResponseFuture, ServerHandle, Service, body, serve,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The longest time that a test waits for a condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

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

struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| identity(["localhost".to_owned()]));

/// The identity of a client whose certificate is larger than the bytes that a connection has for
/// free.
static LARGE_IDENTITY: LazyLock<Identity> =
    LazyLock::new(|| identity((0..1000).map(|number| format!("{number}.large.example.com"))));

fn identity(names: impl IntoIterator<Item = String>) -> Identity {
    let names: Vec<String> = names.into_iter().collect();
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    Identity {
        certificate: made.cert.der().clone(),
        key: PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key"),
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

pub(crate) fn server_tls() -> Arc<rustls::ServerConfig> {
    let roots = Arc::new(roots(&LARGE_IDENTITY));
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider());
    let clients = clients.allow_unauthenticated().build().expect("a verifier");
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![IDENTITY.certificate.clone()], IDENTITY.key.clone_key())
        .expect("the pair fits");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

fn roots(identity: &Identity) -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.certificate.clone()).expect("a root");
    roots
}

fn client_tls(alpn: &[&[u8]], identity: Option<&Identity>) -> Arc<rustls::ClientConfig> {
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots(&IDENTITY));
    let mut config = match identity {
        Some(Identity { certificate, key }) => {
            config.with_client_auth_cert(vec![certificate.clone()], key.clone_key()).expect("the pair fits")
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// The service of the tests; its behaviour depends on the path.
#[derive(Clone)]
pub(crate) struct TestService {
    /// Sends a line into every open `/watch`, and completes `/slow`.
    pub(crate) release: Arc<Notify>,
    /// Receives the path of each request whose handler has begun.
    pub(crate) begun: mpsc::UnboundedSender<String>,
    /// Receives the path of each request whose handler was dropped or finished.
    pub(crate) ended: mpsc::UnboundedSender<String>,
    pub(crate) tunnels: Tunnels,
    /// Treats each client as if it had presented the certificate of a user.
    pub(crate) recognizes_clients: bool,
}

struct NotifyOnDrop(mpsc::UnboundedSender<String>, String);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        let _nobody_listens = self.0.send(std::mem::take(&mut self.1));
    }
}

impl Service for TestService {
    fn recognizes_client(&self, _: &Connection) -> bool {
        self.recognizes_clients
    }

    fn call(
        &self,
        connection: &Arc<Connection>,
        mut request: Request<pinniped_http_server::Incoming>,
    ) -> ResponseFuture {
        let service = self.clone();
        let connection = Arc::clone(connection);
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let ended = NotifyOnDrop(service.ended.clone(), path.clone());
            let _nobody_listens = service.begun.send(path.clone());
            match path.as_str() {
                "/slow" => {
                    service.release.notified().await;
                    Response::new(body::full("slow but done"))
                }
                "/watch" => {
                    let lines = futures::stream::unfold(
                        (service, ended, false),
                        |(service, ended, sent)| async move {
                            if sent {
                                service.release.notified().await;
                            }
                            let frame = Frame::data(Bytes::from_static(b"event\n"));
                            Some((Ok::<_, pinniped_http_server::BoxError>(frame), (service, ended, true)))
                        },
                    );
                    Response::new(Body::new(http_body_util::StreamBody::new(lines)))
                }
                "/login" => {
                    connection.permit.confirm();
                    Response::new(body::empty())
                }
                "/echo" => Response::new(body::from_incoming(request.into_body())),
                "/upgrade" => {
                    let upgrade = hyper::upgrade::on(&mut request);
                    service.tunnels.spawn(async move {
                        let upgraded = upgrade.await.expect("the client received 101");
                        let mut near = TokioIo::new(upgraded);
                        let (mut far, mut echo) = tokio::io::duplex(64);
                        let echoing = async {
                            let (mut read, mut write) = tokio::io::split(&mut echo);
                            tokio::io::copy(&mut read, &mut write).await.expect("echo");
                            tokio::io::AsyncWriteExt::shutdown(&mut write).await.expect("echo ends");
                        };
                        let (relayed, ()) = futures::join!(relay(&mut near, &mut far), echoing);
                        relayed.expect("relay");
                    });
                    let mut response = Response::new(body::empty());
                    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                    response.headers_mut().insert("upgrade", http::HeaderValue::from_static("SPDY/3.1"));
                    response.headers_mut().insert("connection", http::HeaderValue::from_static("Upgrade"));
                    response
                }
                "/interim" => {
                    let early = |status: u16| Response::builder().status(status).header("x-early", status);
                    pinniped_http_server::interim(early(102).body(()).expect("a response"));
                    service.release.notified().await;
                    pinniped_http_server::interim(early(103).body(()).expect("a response"));
                    Response::new(body::full("at last"))
                }
                "/many-interim" => {
                    for _ in 0..100 {
                        for status in [101, 103] {
                            let early = Response::builder().status(status);
                            pinniped_http_server::interim(early.body(()).expect("a response"));
                        }
                    }
                    Response::new(body::full("at last"))
                }
                "/of-http1" => Response::builder()
                    .header("connection", "x-mine, close")
                    .header("keep-alive", "timeout=5")
                    .header("proxy-connection", "close")
                    .header("upgrade", "h2c")
                    .header("x-mine", "only for this connection")
                    .header("x-for-all", "stays")
                    .body(body::full("body"))
                    .expect("a response"),
                "/whole" => {
                    let read = request.into_body().collect().await;
                    let reported = match &read {
                        Ok(_) => "it was whole".to_owned(),
                        Err(error) => format!("it was not: {error}"),
                    };
                    let _nobody_listens = service.begun.send(reported);
                    Response::new(body::empty())
                }
                "/breaks" => {
                    let half = Ok(Frame::data(Bytes::from_static(b"half of ")));
                    let broken = async move {
                        service.release.notified().await;
                        Err(pinniped_http_server::BoxError::from("the rest is gone"))
                    };
                    let frames = futures::stream::iter([half]).chain(futures::stream::once(broken));
                    Response::new(Body::new(http_body_util::StreamBody::new(frames)))
                }
                "/trailers" => {
                    let trailers = http::HeaderMap::from_iter([(
                        http::HeaderName::from_static("x-sum"),
                        http::HeaderValue::from_static("7"),
                    )]);
                    let frames = [Frame::data(Bytes::from_static(b"data")), Frame::trailers(trailers)];
                    let frames = futures::stream::iter(frames.map(Ok::<_, pinniped_http_server::BoxError>));
                    Response::new(Body::new(http_body_util::StreamBody::new(frames)))
                }
                _ => {
                    let alpn = connection.alpn.as_deref().map(String::from_utf8_lossy);
                    Response::new(body::full(format!(
                        "{} alpn={alpn:?} tls={:?} headers={}",
                        connection.peer_addr,
                        connection.tls_version,
                        request.headers().len(),
                    )))
                }
            }
        })
    }
}

pub(crate) struct World {
    pub(crate) handle: ServerHandle,
    pub(crate) service: TestService,
    pub(crate) begun: mpsc::UnboundedReceiver<String>,
    pub(crate) ended: mpsc::UnboundedReceiver<String>,
}

impl World {
    pub(crate) fn start(limits: Limits) -> Self {
        Self::on(Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port"), limits)
    }

    pub(crate) fn on(listener: Listener, limits: Limits) -> Self {
        Self::with(listener, limits, false)
    }

    /// Starts a server that recognizes its clients when they connect.
    pub(crate) fn of_known_clients(limits: Limits) -> Self {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        Self::with(listener, limits, true)
    }

    fn with(listener: Listener, limits: Limits, recognizes_clients: bool) -> Self {
        let (begun_tx, begun) = mpsc::unbounded_channel();
        let (ended_tx, ended) = mpsc::unbounded_channel();
        let service = TestService {
            release: Arc::new(Notify::new()),
            begun: begun_tx,
            ended: ended_tx,
            tunnels: Tunnels::new(),
            recognizes_clients,
        };
        let handle = serve(listener, server_tls(), service.clone(), limits);
        Self { handle, service, begun, ended }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    /// Waits until the handler of this path runs.
    pub(crate) async fn handler_runs(&mut self, path: &str) {
        assert_eq!(within(self.begun.recv()).await.as_deref(), Some(path));
    }
}

pub(crate) async fn tls(addr: SocketAddr, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
    connect(addr, client_tls(alpn, None)).await
}

/// Connects with a large client certificate, and returns its size.
pub(crate) async fn tls_with_large_certificate(addr: SocketAddr) -> (TlsStream<TcpStream>, usize) {
    let stream = connect(addr, client_tls(&[b"http/1.1"], Some(&LARGE_IDENTITY))).await;
    (stream, LARGE_IDENTITY.certificate.len())
}

async fn connect(addr: SocketAddr, config: Arc<rustls::ClientConfig>) -> TlsStream<TcpStream> {
    let tcp = within(TcpStream::connect(addr)).await.expect("connect");
    let name = ServerName::try_from("localhost").expect("a name");
    within(TlsConnector::from(config).connect(name, tcp)).await.expect("handshake")
}

pub(crate) struct H2 {
    pub(crate) send: http2::SendRequest<Body>,
    pub(crate) connection: JoinHandle<hyper::Result<()>>,
}

pub(crate) async fn h2(addr: SocketAddr) -> H2 {
    let io = TokioIo::new(tls(addr, &[b"h2"]).await);
    let (send, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(4 << 20)
        .handshake(io)
        .await
        .expect("h2 handshake");
    H2 { send, connection: tokio::spawn(connection) }
}

pub(crate) async fn h1(addr: SocketAddr) -> (http1::SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let io = TokioIo::new(tls(addr, &[b"http/1.1"]).await);
    let (send, connection) = http1::handshake(io).await.expect("h1 handshake");
    (send, tokio::spawn(connection.with_upgrades()))
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(format!("https://localhost{path}"))
        .header("host", "localhost")
        .body(body::empty())
        .expect("a request")
}

pub(crate) async fn text(response: Response<hyper::body::Incoming>) -> String {
    let bytes = within(response.into_body().collect()).await.expect("a whole body").to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}
