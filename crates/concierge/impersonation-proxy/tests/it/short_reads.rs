//! Requests that use HTTP/1.1 to the API server, and the end of such connections.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, Version};
use pinniped_http_server::body;
use pinniped_kube_client::{RequestBody, Upstream, UpstreamError, UpstreamLimits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::api_server::{Handler, Script};
use crate::tls_server::TlsServer;
use crate::world::{Client, PATIENCE, World};

/// Sends reads until the API server receives one over HTTP/1.1.
async fn read_until_http1(world: &World, client: &Client<'_>) {
    let reading = async {
        loop {
            assert_eq!(client.get("/api/v1/namespaces/a/configmaps").await.status, 200);
            if world.api.seen().last().unwrap().version == Version::HTTP_11 {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("there is an HTTP/1.1 connection some time");
}

#[tokio::test]
async fn only_short_reads_of_a_busy_client_use_http1() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("ada", &["dev"]);
    read_until_http1(&world, &client).await;
    let seen = world.api.seen();
    assert!(seen[..8].iter().all(|seen| seen.version == Version::HTTP_2), "a few are not worth a handshake");

    let read = seen.last().unwrap();
    assert_eq!(read.uri, "/api/v1/namespaces/a/configmaps");
    assert_eq!(read.all("host"), ["proxy.example:8444"]);
    assert_eq!(read.all("authorization"), ["Bearer impersonator-token"]);
    assert_eq!(read.all("impersonate-user"), ["ada"]);
    assert_eq!(read.all("impersonate-group"), ["dev", "system:authenticated"]);
    assert_eq!(read.all("content-length"), [""; 0]);

    for (method, path, version) in [
        (Method::HEAD, "/healthz", Version::HTTP_11),
        (Method::OPTIONS, "/api", Version::HTTP_11),
        (Method::GET, "/api/v1/pods?watch=true", Version::HTTP_2),
        (Method::GET, "/api/v1/namespaces/a/pods/p/log?follow=true", Version::HTTP_2),
        (Method::DELETE, "/api/v1/namespaces/a/pods/p", Version::HTTP_2),
        (Method::POST, "/api/v1/namespaces/a/pods", Version::HTTP_2),
    ] {
        // The connection is idle again, because the previous response was read to its end.
        read_until_http1(&world, &client).await;
        let request = client.request(path).method(method.clone()).body(()).unwrap();
        assert_eq!(client.send(request).await.status, 200);
        assert_eq!(world.api.seen().last().unwrap().version, version, "{method} {path}");
    }
}

#[tokio::test]
async fn a_read_whose_head_exceeds_the_http1_limit_uses_http2() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("ada", &[]);
    read_until_http1(&world, &client).await;
    let many: Vec<String> = (0..150).map(|number| format!("x-field-{number}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (&**name, "1")).collect();
    let large = "1".repeat(9000);
    for fields in [&many[..], &[("x-field", &large)]] {
        assert_eq!(client.get_with("/api/v1/namespaces/a/configmaps", fields).await.status, 200);
        assert_eq!(world.api.seen().last().unwrap().version, Version::HTTP_2);
    }
}

#[tokio::test]
async fn an_identity_that_http1_would_change_never_uses_http1() {
    let world = World::start(Script::default()).await;
    read_until_http1(&world, &world.certificate("ada", &[])).await;
    let padded = world.certificate("ada ", &[]);
    for _ in 0..20 {
        assert_eq!(padded.get("/api/v1/namespaces/a/configmaps").await.status, 200);
        let seen = world.api.seen();
        let seen = seen.last().unwrap();
        assert_eq!(
            (seen.version, &*seen.all("impersonate-user")),
            (Version::HTTP_2, &["ada ".to_owned()][..])
        );
    }
}

#[tokio::test]
async fn all_reads_use_http2_when_http1_is_disabled() {
    let api = crate::api_server::ApiServer::start(Script::default()).await;
    let server = format!("https://{}", api.address).parse().unwrap();
    let mut params = pinniped_kube_client::UpstreamParams::new(server, api.roots.clone());
    params.limits = UpstreamLimits { short_reads: 0, ..UpstreamLimits::default() };
    let upstream = Upstream::new(params).unwrap();
    for _ in 0..50 {
        assert_eq!(upstream.try_send_short(&mut get(), &[]).await.unwrap().status(), 200);
    }
    assert!(api.seen().iter().all(|seen| seen.version == Version::HTTP_2));
    assert_eq!(api.connections(), 1);
}

#[tokio::test]
async fn connections_for_short_reads_are_limited() {
    // Every response takes a moment, so that reads overlap.
    let handler: Handler = Arc::new(|_| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Response::new(body::full("answer"))
        })
    });
    let api = crate::api_server::ApiServer::start(Script { handler, ..Script::default() }).await;
    let server = format!("https://{}", api.address).parse().unwrap();
    let mut params = pinniped_kube_client::UpstreamParams::new(server, api.roots.clone());
    params.limits = UpstreamLimits { short_reads: 3, ..UpstreamLimits::default() };
    let upstream = Upstream::new(params).unwrap();
    let crowd = async {
        while api.seen().iter().filter(|seen| seen.version == Version::HTTP_11).count() < 100 {
            let reads = (0..16).map(|_| {
                let upstream = upstream.clone();
                async move {
                    let response = upstream.try_send_short(&mut get(), &[]).await.unwrap();
                    http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes()
                }
            });
            let responses = futures::future::join_all(reads).await;
            assert!(responses.iter().all(|response| response == "answer"));
        }
    };
    tokio::time::timeout(PATIENCE, crowd).await.expect("enough go over HTTP/1.1");
    assert_eq!(api.connections(), 1 + 3);
}

fn get() -> Request<RequestBody> {
    Request::get("/api/v1/pods").body(RequestBody::Empty).unwrap()
}

/// A server that responds over HTTP/2, and passes its HTTP/1.1 connections to the test.
fn with_http1_of_the_test(
    server: Arc<TlsServer>,
) -> (AbortOnDropHandle<()>, mpsc::Receiver<TlsStream<TcpStream>>) {
    let (http1, accepted) = mpsc::channel(8);
    let serving = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let io = server.accept().await;
            if io.get_ref().1.alpn_protocol() == Some(b"http/1.1") {
                http1.send(io).await.unwrap();
                continue;
            }
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(io).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    respond.send_response(Response::new(()), true).unwrap();
                }
            });
        }
    }));
    (serving, accepted)
}

async fn read_head(io: &mut TlsStream<TcpStream>) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Sends reads over HTTP/2 until there is an HTTP/1.1 connection, and one more read, which uses it.
async fn one_over_http1(
    upstream: &Upstream,
    accepted: &mut mpsc::Receiver<TlsStream<TcpStream>>,
) -> (
    TlsStream<TcpStream>,
    AbortOnDropHandle<Result<Response<pinniped_kube_client::ResponseBody>, UpstreamError>>,
) {
    let mut io = tokio::time::timeout(PATIENCE, async {
        loop {
            assert_eq!(upstream.try_send_short(&mut get(), &[]).await.unwrap().status(), 200);
            if let Ok(io) = accepted.try_recv() {
                return io;
            }
        }
    })
    .await
    .expect("a connection");
    let reading = async {
        loop {
            let upstream = upstream.clone();
            let mut read = AbortOnDropHandle::new(tokio::spawn(async move {
                upstream.try_send_short(&mut get(), &[]).await
            }));
            // The connection may not have returned to the idle pool yet.
            tokio::select! {
                head = read_head(&mut io) => return (head, read),
                response = &mut read => assert_eq!(response.unwrap().unwrap().status(), 200),
            }
        }
    };
    let (head, read) = tokio::time::timeout(PATIENCE, reading).await.expect("a read over HTTP/1.1");
    assert!(head.starts_with("GET /api/v1/pods HTTP/1.1\r\nhost: 127.0.0.1:"), "{head}");
    (io, read)
}

#[tokio::test]
async fn a_read_whose_http1_connection_closes_is_retried_over_http2() {
    let server = Arc::new(TlsServer::bind(&[b"h2", b"http/1.1"]).await);
    let upstream = Upstream::new(server.params()).unwrap();
    let (_serving, mut accepted) = with_http1_of_the_test(server);
    let (io, read) = one_over_http1(&upstream, &mut accepted).await;
    drop(io);
    assert_eq!(read.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_read_is_not_retried_after_its_response_has_begun() {
    let server = Arc::new(TlsServer::bind(&[b"h2", b"http/1.1"]).await);
    let upstream = Upstream::new(server.params()).unwrap();
    let (_serving, mut accepted) = with_http1_of_the_test(server);
    let (mut io, read) = one_over_http1(&upstream, &mut accepted).await;
    io.write_all(b"HTTP/1.1 200").await.unwrap();
    io.flush().await.unwrap();
    drop(io);
    let error = read.await.unwrap().unwrap_err();
    assert!(matches!(error, UpstreamError::Http1(_)), "{error:?}");
}
