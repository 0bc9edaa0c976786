//! Bodies that the API server accepts slowly or not at all, and servers that stop responding.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pinniped_http_server::BoxError;
use pinniped_kube_client::{RequestBody, Upstream, UpstreamError, UpstreamParams};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use crate::tls_server::TlsServer;

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the parameters of a pool, and its connection to a server that the test scripts.
async fn server() -> (UpstreamParams, impl Future<Output = TlsStream<TcpStream>>) {
    let server = TlsServer::bind(&[b"h2"]).await;
    (server.params(), async move { server.accept().await })
}

/// Returns a body that the test supplies, as a client of the proxy does. It ends when the sender is
/// dropped. The tasks forward it.
async fn fed() -> (mpsc::Sender<Bytes>, RequestBody, JoinSet<()>) {
    let (sender, receiver) = mpsc::channel(1);
    let chunks = futures::stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
        let chunk = receiver.recv().await?;
        Some((Ok::<_, BoxError>(Frame::data(chunk)), receiver))
    });
    let (near, far) = tokio::io::duplex(1024);
    let (arrived, mut arrivals) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let service = service_fn(|request: Request<Incoming>| {
            let arrived = arrived.clone();
            async move {
                arrived.send(request.into_body()).await.unwrap();
                std::future::pending::<Result<Response<String>, Infallible>>().await
            }
        });
        let _ended = http1::Builder::new().serve_connection(TokioIo::new(far), service).await;
    });
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tasks.spawn(async move {
        let _ended = connection.await;
    });
    let request = post(StreamBody::new(chunks.boxed()));
    tasks.spawn(async move {
        let _never = client.send_request(request).await;
    });
    let body = arrivals.recv().await.unwrap();
    (sender, RequestBody::from(pinniped_http_server::Incoming::from(body)), tasks)
}

fn post<B>(body: B) -> Request<B> {
    Request::builder().method(Method::POST).uri("/api/v1/pods").header("host", "k").body(body).unwrap()
}

/// Boxed because the futures of both sides together are large.
fn in_time<F: Future>(what: F) -> impl Future<Output = F::Output> {
    let bounded = tokio::time::timeout(PATIENCE, Box::pin(what));
    async { bounded.await.expect("an end of it") }
}

#[tokio::test]
async fn an_upload_is_reset_when_its_response_is_dropped() {
    let (params, accept) = server().await;
    let upstream = Upstream::new(params).unwrap();
    let (feed, body, _tasks) = fed().await;
    let (seen, mut first_chunk) = mpsc::channel(1);
    let client = async {
        let send = upstream.send(post(body));
        tokio::select! {
            response = send => panic!("answered: {response:?}"),
            _ = async {
                feed.send(Bytes::from_static(b"begun")).await.unwrap();
                first_chunk.recv().await
            } => {}
        }
    };
    let server = async {
        let mut connection = h2::server::handshake(accept.await).await.unwrap();
        let (request, _respond) = connection.accept().await.unwrap().unwrap();
        let mut body = request.into_body();
        let reading = async {
            assert_eq!(body.data().await.unwrap().unwrap(), "begun");
            seen.send(()).await.unwrap();
            body.data().await.expect("no orderly end").expect_err("a reset")
        };
        tokio::select! {
            error = reading => error,
            next = connection.accept() => panic!("{:?}", next.is_some()),
        }
    };
    let ((), error) = in_time(async { tokio::join!(client, server) }).await;
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
}

#[tokio::test]
async fn an_early_response_stops_the_upload_and_is_returned() {
    let (params, accept) = server().await;
    let upstream = Upstream::new(params).unwrap();
    let (_feed, body, _tasks) = fed().await;
    let client = async {
        let response = upstream.send(post(body)).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    };
    let server = async {
        let mut connection = h2::server::handshake(accept.await).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let received = Response::builder().status(StatusCode::PAYLOAD_TOO_LARGE).body(()).unwrap();
        respond.send_response(received, true).unwrap();
        let mut body = request.into_body();
        tokio::select! {
            more = body.data() => more.expect("no orderly end").expect_err("a reset"),
            next = connection.accept() => panic!("{:?}", next.is_some()),
        }
    };
    let ((), error) = in_time(async { tokio::join!(client, server) }).await;
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
}

/// Sends a body with a trailer, and returns the trailers that arrive.
async fn trailers_of(request: Request<()>) -> Option<HeaderMap> {
    let (params, accept) = server().await;
    let upstream = Upstream::new(params).unwrap();
    let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("5"))]);
    let frames = [Frame::data(Bytes::from_static(b"begun")), Frame::trailers(trailers)];
    let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, BoxError>)));
    let request = request.map(|()| RequestBody::Boxed(body.boxed_unsync()));
    let client = async move {
        let response = upstream.send(request).await.unwrap();
        drop(response);
        // Closes the connection.
        drop(upstream);
    };
    let server = async {
        let mut connection = h2::server::handshake(accept.await).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut body = request.into_body();
        let reading = async {
            assert_eq!(body.data().await.unwrap().unwrap(), "begun");
            while let Some(more) = body.data().await {
                assert_eq!(more.unwrap(), "");
            }
            let trailers = body.trailers().await.unwrap();
            respond.send_response(Response::new(()), true).unwrap();
            trailers
        };
        let trailers = tokio::select! {
            trailers = reading => trailers,
            next = connection.accept() => panic!("{:?}", next.is_some()),
        };
        // Sends the response.
        while connection.accept().await.is_some() {}
        trailers
    };
    in_time(async { tokio::join!(client, server).1 }).await
}

// A server written in Go closes the connection when trailers arrive for a stream that it has closed
// because it had responded before the end of the body.
#[tokio::test]
async fn trailers_that_a_request_does_not_announce_are_not_sent() {
    assert_eq!(trailers_of(post(())).await, None);
}

#[tokio::test]
async fn trailers_that_a_request_announces_are_sent() {
    let mut request = post(());
    request.headers_mut().insert(TRAILER, HeaderValue::from_static("x-sum"));
    assert_eq!(trailers_of(request).await.unwrap()["x-sum"], "5");
}

#[tokio::test]
async fn a_body_larger_than_the_window_is_sent_as_the_window_grows() {
    let (params, accept) = server().await;
    let upstream = Upstream::new(params).unwrap();
    // Eight times the window of a stream, and of the connection.
    let large = Bytes::from(vec![7; 8 * 65_535]);
    let client = upstream.send(post(RequestBody::Full(large.clone())));
    let server = async {
        let mut connection = h2::server::handshake(accept.await).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut body = request.into_body();
        let answering = async {
            let mut length = 0;
            while let Some(chunk) = body.data().await {
                let chunk = chunk.unwrap();
                length += chunk.len();
                body.flow_control().release_capacity(chunk.len()).unwrap();
            }
            let response = Response::builder().header("x-length", length).body(()).unwrap();
            respond.send_response(response, true).unwrap();
            std::future::pending::<()>().await;
        };
        // The actions of the streams are sent when the connection is polled for the next request.
        tokio::join!(answering, connection.accept())
    };
    let response = in_time(async {
        tokio::select! {
            response = client => response.unwrap(),
            ((), _) = server => panic!("the server has ended"),
        }
    })
    .await;
    assert_eq!(response.headers()["x-length"], large.len().to_string());
}

#[tokio::test]
async fn a_connection_to_a_silent_server_is_closed() {
    let (mut params, accept) = server().await;
    params.limits.ping_interval = Duration::from_millis(50);
    params.limits.ping_timeout = Duration::from_millis(50);
    let upstream = Upstream::new(params).unwrap();
    let client = upstream.send(post(RequestBody::Full(Bytes::from_static(b"x"))));
    let server = async {
        let mut connection = h2::server::handshake(accept.await).await.unwrap();
        let request = connection.accept().await.unwrap().unwrap();
        // From here on the connection is not read: the network is gone, the socket remains.
        (request, connection)
    };
    let (response, _silent) = in_time(async { tokio::join!(client, server) }).await;
    assert!(matches!(response, Err(UpstreamError::Http2(_))), "{response:?}");
    assert_eq!(upstream.stats().connections, 0);
}
