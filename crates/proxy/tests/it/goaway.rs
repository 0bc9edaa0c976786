//! What happens to requests on a connection that the API server sends away: frame by frame, since a whole server
//! cannot be made to do it at the right moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, StatusCode};
use pinniped_proxy::upstream::{RequestBody, Upstream, UpstreamError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::tls_server::TlsServer;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM_AND_HEADERS: u8 = 5;
/// `:status: 200` in HPACK's static table.
const STATUS_200: u8 = 0x88;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads frames until the head of a request comes; its stream.
async fn next_request(io: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> std::io::Result<u32> {
    loop {
        let mut head = [0; 9];
        io.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        io.read_exact(&mut payload).await?;
        match (head[3], head[4]) {
            (SETTINGS, 0) => io.write_all(&frame(SETTINGS, ACK, 0, &[])).await?,
            (HEADERS, _) => return Ok(u32::from_be_bytes([head[5], head[6], head[7], head[8]])),
            _ => {}
        }
    }
}

/// A server whose first `ignoring` connections answer nothing but GOAWAY; how many connections it saw.
async fn server(ignoring: usize) -> (Upstream, Arc<AtomicUsize>, JoinSet<()>) {
    let server = TlsServer::bind(&[b"h2"]).await;
    let params = server.params();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = server.listener.accept().await {
            let ignored = count.fetch_add(1, Ordering::SeqCst) < ignoring;
            let tls = server.acceptor.clone();
            connections.spawn(async move {
                let mut io = tls.accept(tcp).await.unwrap();
                let mut preface = [0; 24];
                io.read_exact(&mut preface).await.unwrap();
                io.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
                while let Ok(stream) = next_request(&mut io).await {
                    let answer = if ignored {
                        // No stream was looked at; NO_ERROR.
                        frame(GOAWAY, 0, 0, &[0; 8])
                    } else {
                        frame(HEADERS, END_STREAM_AND_HEADERS, stream, &[STATUS_200])
                    };
                    io.write_all(&answer).await.unwrap();
                }
            });
        }
    });
    (Upstream::new(params).unwrap(), seen, tasks)
}

fn request(method: Method, body: RequestBody) -> Request<RequestBody> {
    Request::builder().method(method).uri("/api/v1/pods").body(body).unwrap()
}

#[tokio::test]
async fn a_request_that_the_server_never_looked_at_is_sent_again() {
    for method in [Method::GET, Method::DELETE, Method::POST] {
        let (upstream, connections, _tasks) = server(1).await;
        let response = upstream.send(request(method.clone(), RequestBody::Empty)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{method}");
        assert_eq!(connections.load(Ordering::SeqCst), 2, "{method}");
    }
}

#[tokio::test]
async fn a_server_that_sends_everybody_away_is_an_error_in_the_end() {
    let (upstream, connections, _tasks) = server(usize::MAX).await;
    let error = upstream.send(request(Method::GET, RequestBody::Empty)).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Http2(_)), "{error}");
    assert!(connections.load(Ordering::SeqCst) <= 8);
}

#[tokio::test]
async fn a_separate_way_shares_no_connection() {
    let (upstream, connections, _tasks) = server(0).await;
    let other = upstream.separate().unwrap();
    for way in [&upstream, &other, &upstream, &other] {
        let response = way.send(request(Method::GET, RequestBody::Empty)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_request_that_http2_cannot_carry_costs_nobody_else_the_connection() {
    let (upstream, connections, _tasks) = server(0).await;
    let ordinary = || upstream.send(request(Method::GET, RequestBody::Empty));
    assert_eq!(ordinary().await.unwrap().status(), StatusCode::OK);
    for (name, value) in [("connection", "close"), ("te", "gzip"), ("keep-alive", "5")] {
        let mut unfit = request(Method::GET, RequestBody::Empty);
        unfit.headers_mut().insert(name, http::HeaderValue::from_static(value));
        let error = upstream.send(unfit).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Http2(_)), "{error}");
        assert_eq!(ordinary().await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}
