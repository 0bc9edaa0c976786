//! Connections to a provider, which the client of `http-client` keeps on request.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use pinniped_http_client::https::{Connections, HttpsClient, HttpsClientParams, Redirects};
use pinniped_pki::CaBundle;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use url::Url;

use crate::provider::{client_params, tls_acceptor};

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// A server that counts its connections.
struct Server {
    url: Url,
    bundle: CaBundle,
    opened: Arc<AtomicUsize>,
    /// Gets a message for each closed connection.
    closed: mpsc::UnboundedReceiver<()>,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start<S>(
        protocol: &'static [u8],
        serve: impl Fn(TlsStream<TcpStream>) -> S + Send + 'static,
    ) -> Self
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let (acceptor, bundle) = tls_acceptor(&[protocol]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let opened = Arc::<AtomicUsize>::default();
        let (sender, closed) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let count = Arc::clone(&opened);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let stream = accept(&listener, &acceptor).await;
                count.fetch_add(1, Ordering::Relaxed);
                let (connection, sender) = (serve(stream), sender.clone());
                connections.spawn(async move {
                    connection.await;
                    let _ = sender.send(());
                });
            }
        });
        Self { url: url.parse().unwrap(), bundle, opened, closed, _tasks: tasks }
    }

    fn client(&self, connections: Connections) -> HttpsClient {
        HttpsClient::new(HttpsClientParams { connections, ..client_params(&self.bundle) })
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

async fn accept(listener: &TcpListener, acceptor: &TlsAcceptor) -> TlsStream<TcpStream> {
    let (stream, _) = listener.accept().await.unwrap();
    acceptor.accept(stream).await.unwrap()
}

fn ok() -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from_static(b"ok")))
}

/// Serves as long as the client wishes.
async fn serve(stream: TlsStream<TcpStream>) {
    let service = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(ok()));
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Responds to one request, and closes the connection without an announcement over HTTP/1.1, and
/// with `GOAWAY` over HTTP/2.
async fn serve_one(mut stream: TlsStream<TcpStream>) {
    if stream.get_ref().1.alpn_protocol() == Some(HTTP2) {
        let served = Arc::new(Notify::new());
        let serving = Arc::clone(&served);
        let service = service_fn(move |_: Request<Incoming>| {
            serving.notify_one();
            async { Ok::<_, Infallible>(ok()) }
        });
        let connection = http2::Builder::new(TokioExecutor::new());
        let mut connection = pin!(connection.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            _ = connection.as_mut() => return,
            () = served.notified() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
        return;
    }
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "an incomplete request");
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    stream.shutdown().await.unwrap();
}

/// Responds to all requests except the second, which it reads, and gives up.
async fn serve_without_second(stream: TlsStream<TcpStream>, requests: Arc<AtomicUsize>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let requests = Arc::clone(&requests);
        async move {
            let body = request.into_body().collect().await;
            match requests.fetch_add(1, Ordering::Relaxed) {
                1 => Err(std::io::Error::other("no response")),
                _ => Ok(body.map(|_| ok()).unwrap()),
            }
        }
    });
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn get(client: &HttpsClient, server: &Server) {
    assert_eq!(client.get(&server.url).await.unwrap().body, "ok");
}

#[tokio::test]
async fn requests_that_follow_each_other_share_a_connection_on_request() {
    for protocol in [HTTP2, HTTP1] {
        let server = Server::start(protocol, serve).await;
        let client = server.client(Connections::Keep);
        for _ in 0..3 {
            get(&client, &server).await;
            get(&client.with_redirects(Redirects::Follow), &server).await;
        }
        assert_eq!(server.opened(), 1, "{}", protocol.escape_ascii());

        let client = server.client(Connections::Close);
        get(&client, &server).await;
        get(&client, &server).await;
        assert_eq!(server.opened(), 3, "{}", protocol.escape_ascii());
    }
}

#[tokio::test]
async fn requests_at_the_same_time_have_connections_of_their_own() {
    for protocol in [HTTP2, HTTP1] {
        let server = Server::start(protocol, serve).await;
        let client = server.client(Connections::Keep);
        get(&client, &server).await;
        futures::join!(get(&client, &server), get(&client, &server));
        assert_eq!(server.opened(), 2, "{}", protocol.escape_ascii());
    }
}

#[tokio::test]
async fn a_connection_to_another_server_or_name_is_not_used() {
    let (first, second) = (Server::start(HTTP2, serve).await, Server::start(HTTP2, serve).await);
    let both = [&first.bundle, &second.bundle].map(|bundle| bundle.ders().to_vec()).concat();
    let params = client_params(&CaBundle::from_ders(both));
    let client = HttpsClient::new(HttpsClientParams { connections: Connections::Keep, ..params });
    get(&client, &first).await;
    get(&client, &second).await;
    assert_eq!((first.opened(), second.opened()), (1, 1));
    let mut address = second.url.clone();
    address.set_host(Some("127.0.0.1")).unwrap();
    assert_eq!(client.get(&address).await.unwrap().body, "ok");
    assert_eq!(second.opened(), 2);
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced() {
    for protocol in [HTTP2, HTTP1] {
        let mut server = Server::start(protocol, serve_one).await;
        let client = server.client(Connections::Keep);
        for opened in 1..=3 {
            get(&client, &server).await;
            assert_eq!(server.opened(), opened, "{}", protocol.escape_ascii());
            let closed = tokio::time::timeout(Duration::from_secs(60), server.closed.recv()).await;
            closed.expect("the server closes the connection").unwrap();
        }
    }
}

#[tokio::test]
async fn a_request_that_the_server_may_have_received_is_repeated_only_if_its_method_is_safe() {
    for protocol in [HTTP2, HTTP1] {
        for (method, received) in [(Method::POST, 2), (Method::GET, 3)] {
            let requests = Arc::<AtomicUsize>::default();
            let count = Arc::clone(&requests);
            let server =
                Server::start(protocol, move |stream| serve_without_second(stream, Arc::clone(&count))).await;
            let client = server.client(Connections::Keep);
            get(&client, &server).await;
            let second = client.send(&method, &server.url, &[], Bytes::from_static(b"token")).await;
            let case = format!("{method} {}", protocol.escape_ascii());
            assert_eq!(second.is_ok(), method.is_safe(), "{case}");
            assert_eq!(requests.load(Ordering::Relaxed), received, "{case}");
        }
    }
}

#[tokio::test]
async fn a_connection_is_not_used_after_a_pause_of_more_than_a_second() {
    let server = Server::start(HTTP2, serve).await;
    let client = server.client(Connections::Keep);
    for (pause, opened) in [(0, 1), (500, 1), (2000, 2)] {
        tokio::time::pause();
        tokio::time::advance(Duration::from_millis(pause)).await;
        tokio::time::resume();
        get(&client, &server).await;
        assert_eq!(server.opened(), opened, "after {pause} ms");
    }
}
