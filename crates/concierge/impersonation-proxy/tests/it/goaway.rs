//! Requests on a connection that the API server closes with GOAWAY. The server is scripted frame by
//! frame, because a complete server cannot be made to do this at the right moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use pinniped_kube_client::{RequestBody, Upstream, UpstreamError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::tls_server::TlsServer;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM_AND_HEADERS: u8 = 5;
/// `:status: 200` in HPACK's static table.
const STATUS_200: u8 = 0x88;
const PROTOCOL_ERROR: u8 = 1;
const INTERNAL_ERROR: u8 = 2;
const ENHANCE_YOUR_CALM: u8 = 11;
const REFUSED_STREAM: u8 = 7;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads frames up to the head of a request; returns its stream.
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

/// The reaction of a server to a request.
#[derive(Clone, Copy, Debug)]
enum Reaction {
    /// Sends GOAWAY without having processed the stream.
    SendAway,
    /// Sends GOAWAY and responds nevertheless.
    AnswerAndSendAway,
    /// Resets the stream with this code.
    Reset(u8),
    /// Closes the connection because of this stream, with this code.
    Condemn(u8),
}

impl Reaction {
    fn bytes(self, stream: u32) -> Vec<u8> {
        match self {
            // No stream was processed; NO_ERROR.
            Self::SendAway => frame(GOAWAY, 0, 0, &[0; 8]),
            Self::AnswerAndSendAway => {
                let last = [&stream.to_be_bytes()[..], &[0; 4]].concat();
                [frame(GOAWAY, 0, 0, &last), respond(stream)].concat()
            }
            Self::Reset(code) => frame(RST_STREAM, 0, stream, &[0, 0, 0, code]),
            Self::Condemn(code) => {
                frame(GOAWAY, 0, 0, &[&stream.to_be_bytes()[..], &[0, 0, 0, code]].concat())
            }
        }
    }
}

fn respond(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM_AND_HEADERS, stream, &[STATUS_200])
}

#[derive(Debug, Default)]
struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
}

impl Seen {
    /// Returns the numbers of connections and requests so far.
    fn so_far(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

/// Starts a server that reacts like this to its first `times` requests, and responds normally to
/// the others.
async fn server(times: usize, reaction: Reaction) -> (Upstream, Arc<Seen>, JoinSet<()>) {
    let server = TlsServer::bind(&[b"h2"]).await;
    let params = server.params();
    let seen = Arc::new(Seen::default());
    let counted = Arc::clone(&seen);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = server.listener.accept().await {
            counted.connections.fetch_add(1, Ordering::SeqCst);
            let (tls, counted) = (server.acceptor.clone(), Arc::clone(&counted));
            connections.spawn(async move {
                let mut io = tls.accept(tcp).await.unwrap();
                let mut preface = [0; 24];
                io.read_exact(&mut preface).await.unwrap();
                io.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
                while let Ok(stream) = next_request(&mut io).await {
                    let odd = counted.requests.fetch_add(1, Ordering::SeqCst) < times;
                    let bytes = if odd { reaction.bytes(stream) } else { respond(stream) };
                    io.write_all(&bytes).await.unwrap();
                    if odd && matches!(reaction, Reaction::Condemn(_)) {
                        return io.shutdown().await.unwrap();
                    }
                }
            });
        }
    });
    (Upstream::new(params).unwrap(), seen, tasks)
}

fn request(method: Method, body: RequestBody) -> Request<RequestBody> {
    Request::builder().method(method).uri("/api/v1/pods").body(body).unwrap()
}

/// Sends an ordinary request and checks the response.
async fn ordinary(upstream: &Upstream) {
    let response = upstream.send(request(Method::GET, RequestBody::Empty)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_that_the_server_did_not_process_is_retried() {
    for (reaction, connections) in [(Reaction::SendAway, 2), (Reaction::Reset(REFUSED_STREAM), 1)] {
        for method in [Method::GET, Method::DELETE, Method::POST] {
            let (upstream, seen, _tasks) = server(1, reaction).await;
            let response = upstream.send(request(method.clone(), RequestBody::Empty)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{method} {reaction:?}");
            assert_eq!(seen.so_far(), (connections, 2), "{method} {reaction:?}");
        }
    }
}

#[tokio::test]
async fn a_request_that_may_have_run_or_has_a_body_is_not_retried() {
    let body = || RequestBody::Full(Bytes::from_static(b"once"));
    for (reaction, method, body) in [
        (Reaction::Reset(INTERNAL_ERROR), Method::GET, RequestBody::Empty),
        (Reaction::Reset(INTERNAL_ERROR), Method::POST, RequestBody::Empty),
        (Reaction::Reset(REFUSED_STREAM), Method::POST, body()),
        (Reaction::SendAway, Method::PUT, body()),
    ] {
        let (upstream, seen, _tasks) = server(1, reaction).await;
        let error = upstream.send(request(method.clone(), body)).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Http2(_)), "{error}");
        assert_eq!(seen.so_far(), (1, 1), "{method} {reaction:?}");
        // A reset stream does not close the connection.
        ordinary(&upstream).await;
        let connections = if matches!(reaction, Reaction::Reset(_)) { 1 } else { 2 };
        assert_eq!(seen.so_far(), (connections, 2), "{method} {reaction:?}");
    }
}

#[tokio::test]
async fn a_request_that_may_have_caused_the_close_is_not_retried() {
    for code in [PROTOCOL_ERROR, INTERNAL_ERROR, ENHANCE_YOUR_CALM] {
        let (upstream, seen, _tasks) = server(1, Reaction::Condemn(code)).await;
        let error = upstream.send(request(Method::GET, RequestBody::Empty)).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Http2(_)), "{error}");
        assert_eq!(seen.so_far(), (1, 1), "{code}");
        ordinary(&upstream).await;
        assert_eq!(seen.so_far(), (2, 2), "{code}");
    }
}

#[tokio::test]
async fn a_connection_with_goaway_finishes_its_streams_and_opens_no_others() {
    let (upstream, seen, _tasks) = server(1, Reaction::AnswerAndSendAway).await;
    for connections in [1, 2, 2] {
        ordinary(&upstream).await;
        assert_eq!(seen.so_far().0, connections);
    }
}

#[tokio::test]
async fn repeated_goaways_are_an_error() {
    let (upstream, seen, _tasks) = server(usize::MAX, Reaction::SendAway).await;
    let error = upstream.send(request(Method::GET, RequestBody::Empty)).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Http2(_)), "{error}");
    assert!(seen.so_far().0 <= 8);
}

#[tokio::test]
async fn a_separate_pool_shares_no_connection() {
    let (upstream, seen, _tasks) = server(0, Reaction::SendAway).await;
    let other = upstream.separate().unwrap();
    for pool in [&upstream, &other, &upstream, &other] {
        ordinary(pool).await;
    }
    assert_eq!(seen.so_far(), (2, 4));
}

#[tokio::test]
async fn a_request_that_is_invalid_in_http2_does_not_close_the_connection() {
    let (upstream, seen, _tasks) = server(0, Reaction::SendAway).await;
    ordinary(&upstream).await;
    for (name, value) in [("connection", "close"), ("te", "gzip"), ("keep-alive", "5")] {
        let mut unfit = request(Method::GET, RequestBody::Empty);
        unfit.headers_mut().insert(name, http::HeaderValue::from_static(value));
        let error = upstream.send(unfit).await.unwrap_err();
        assert!(matches!(error, UpstreamError::Http2(_)), "{error}");
        ordinary(&upstream).await;
    }
    assert_eq!(seen.so_far(), (1, 4));
}
