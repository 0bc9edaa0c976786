//! Requests to backends and their responses: protocols, headers, bodies, timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pinniped_gateway_routing::table::{Action, Protocol, Timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{
    Backend, Http1, Http2, ReceivedResponse, Table, all_to, forward, gateway, one, pair, prefix, service, to,
    until, upstream, within,
};

#[tokio::test]
async fn every_client_protocol_works_with_every_backend_protocol() {
    let own = pair(&["backend.local"]);
    let plain = Backend::http("plain").await;
    let tls = Backend::https("tls", &own, b"http/1.1").await;
    let h2 = Backend::https("h2", &own, b"h2").await;
    let gateway = gateway();
    for (protocol, backend, backend_name, version) in [
        (Protocol::Http1, &plain, "plain", "HTTP/1.1"),
        (Protocol::H2c, &plain, "plain", "HTTP/2.0"),
        (Protocol::Tls, &tls, "tls", "HTTP/1.1"),
        (Protocol::H2, &h2, "h2", "HTTP/2.0"),
    ] {
        let routes = || all_to(one(upstream(protocol, &[backend.address])));
        Table::new()
            .https("a.local", &pair(&["a.local"]), routes())
            .plain("a.local", routes())
            .serve(&gateway);
        let mut http1 = Http1::tls(&gateway, "a.local").await;
        let mut http2 = Http2::tls(&gateway, "a.local").await;
        let mut plain = Http1::plain(&gateway).await;
        for (response, scheme) in [
            (http1.get("a.local", "/x?y").await, "https"),
            (http2.get("a.local", "/x?y").await, "https"),
            (plain.get("a.local", "/x?y").await, "http"),
        ] {
            assert_eq!(
                (response.status, response.backend_name()),
                (StatusCode::OK, backend_name),
                "{protocol:?} {response:?}"
            );
            let requested = response.body.lines().nth(1).unwrap();
            assert!(
                requested.starts_with("GET ") && requested.ends_with(&format!("/x?y {version}")),
                "{requested}"
            );
            assert_eq!(response.report("x-forwarded-proto"), Some(scheme));
            assert_eq!(response.report("x-forwarded-for"), Some("127.0.0.1"));
            assert_eq!(response.report("x-request-id").map(str::len), Some(36));
            if version == "HTTP/1.1" {
                assert_eq!(response.report("host"), Some("a.local"));
            }
        }
    }
}

#[tokio::test]
async fn bodies_of_any_size_arrive_completely_in_both_directions() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    for protocol in [Protocol::Http1, Protocol::H2c] {
        let routes = || all_to(one(upstream(protocol, &[backend.address])));
        Table::new().https("a.local", &pair(&["a.local"]), routes()).serve(&gateway);
        let mut http1 = Http1::tls(&gateway, "a.local").await;
        let mut http2 = Http2::tls(&gateway, "a.local").await;
        for size in [0, 1, 100_000, 3_000_000] {
            let body: String = (0..size).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
            let request = |uri: &str| {
                let request = Request::post(uri).header("host", "a.local").header("expect", "100-continue");
                request.body(Full::new(Bytes::from(body.clone()))).unwrap()
            };
            let one = http1.send(request("/")).await.unwrap();
            let other = within(http2.sender.send_request(request("https://a.local/"))).await.unwrap();
            for response in [one, ReceivedResponse::read(other).await.unwrap()] {
                assert_eq!(response.status, 200);
                assert!(
                    response.body.ends_with(&format!("\n\n{body}")),
                    "{size} bytes: {}",
                    response.body.len()
                );
            }
        }
    }
}

#[tokio::test]
async fn backend_connections_are_reused_and_closed_ones_replaced() {
    let backend = Backend::start(|mut stream: TcpStream| async move {
        // The server closes each connection after two requests, without announcing it.
        for _ in 0..2 {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let gateway = gateway();
    Table::new().plain("a", all_to(to(&[backend.address]))).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    for _ in 0..20 {
        let response = http.get("a", "/").await;
        assert_eq!((response.status, response.body.as_str()), (StatusCode::OK, "ok"));
    }
    assert_eq!(backend.accepted(), 10);
}

#[tokio::test]
async fn a_request_with_a_body_is_retried_when_an_endpoint_refuses_the_connection() {
    let backend = Backend::http("good").await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gateway = gateway();
    let mut received = 0;
    for protocol in [Protocol::Http1, Protocol::H2c] {
        let routes = all_to(one(upstream(protocol, &[dead, backend.address])));
        Table::new().plain("a", routes).serve(&gateway);
        let mut http = Http1::plain(&gateway).await;
        for _ in 0..4 {
            let request =
                Request::post("/").header("host", "a").body(Full::new(Bytes::from_static(b"whole")));
            let response = http.send(request.unwrap()).await.unwrap();
            assert_eq!(
                (response.backend_name(), response.body.ends_with("\n\nwhole")),
                ("good", true),
                "{protocol:?}"
            );
            received += response.body.len() as u64;
        }
    }
    let counts = gateway.counts();
    assert_eq!((counts.request_bytes_from_clients, counts.request_bytes_to_clients), (8 * 5, received));
    Table::new().plain("a", all_to(to(&[dead]))).serve(&gateway);
    let response = Http1::plain(&gateway).await.get("a", "/").await;
    assert_eq!(response.status, 503);
    assert!(response.body.starts_with("upstream connect error"), "{}", response.body);
}

/// A backend that sends the head and the first bytes of its response and then stalls, or sends
/// nothing at all.
async fn stalling(words: &'static [u8]) -> Backend {
    Backend::start(move |mut stream: TcpStream| async move {
        let mut head = vec![0; 4096];
        let _gone = stream.read(&mut head).await;
        let _gone = stream.write_all(words).await;
        // Until the gateway closes the connection.
        while let Ok(1..) = stream.read(&mut head).await {}
    })
    .await
}

const BEGUN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun";

#[tokio::test]
async fn a_late_response_is_a_timeout_and_a_stalled_one_is_aborted() {
    let gateway = gateway();
    let short = Some(Duration::from_millis(400));
    for (words, timeouts, body) in [
        (&b""[..], Timeouts { response: short, idle: None }, ""),
        (b"", Timeouts { response: short, idle: None }, "sent at once"),
        (b"", Timeouts { response: None, idle: short }, ""),
        (b"", Timeouts { response: None, idle: short }, "sent at once"),
        (BEGUN, Timeouts { response: short, idle: None }, ""),
        (BEGUN, Timeouts { response: None, idle: short }, ""),
    ] {
        let backend = stalling(words).await;
        let mut slow = forward(to(&[backend.address]));
        slow.timeouts = timeouts;
        Table::new().plain("a", vec![prefix("/", Action::Forward(slow))]).serve(&gateway);
        let mut http = Http1::plain(&gateway).await;
        let request = Request::post("/").header("host", "a").body(Full::from(body)).unwrap();
        let result = http.send(request).await;
        if words.is_empty() {
            let received = result.unwrap();
            assert_eq!(
                (received.status, received.body.as_str()),
                (StatusCode::GATEWAY_TIMEOUT, "upstream request timeout")
            );
        } else {
            assert!(result.is_err(), "{result:?}");
        }
    }
}

#[tokio::test]
async fn the_response_timeout_starts_with_the_end_of_the_request() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let mut quick = forward(to(&[backend.address]));
    quick.timeouts =
        Timeouts { response: Some(Duration::from_millis(500)), idle: Some(Duration::from_secs(5)) };
    Table::new().plain("a", vec![prefix("/", Action::Forward(quick))]).serve(&gateway);
    let mut stream = TcpStream::connect(gateway.plain_addr()).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n").await.unwrap();
    for _ in 0..12 {
        // Twelve bytes, each after a delay; together the delays exceed the limit.
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
        stream.write_all(b"x").await.unwrap();
    }
    let mut received = vec![0; 12];
    within(stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(received, b"HTTP/1.1 200");
}

#[tokio::test]
async fn the_response_timeout_covers_head_and_body_together() {
    let limit = Duration::from_secs(4);
    let backend = Backend::start(move |mut stream: TcpStream| async move {
        let pause = async || {
            tokio::time::timeout(limit * 3 / 4, std::future::pending::<()>()).await.unwrap_err();
        };
        let mut bytes = [0; 4096];
        let _head = stream.read(&mut bytes).await;
        pause().await;
        let _gone = stream.write_all(BEGUN).await;
        // Within the limit after the head, but not within the limit after the request.
        pause().await;
        let _gone = stream.write_all(&[b'x'; 95]).await;
        while let Ok(1..) = stream.read(&mut bytes).await {}
    })
    .await;
    let gateway = gateway();
    let mut late = forward(to(&[backend.address]));
    late.timeouts = Timeouts { response: Some(limit), idle: None };
    Table::new().plain("a", vec![prefix("/", Action::Forward(late))]).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    let request = Request::get("/").header("host", "a").body(Full::default()).unwrap();
    let received = within(http.sender.send_request(request)).await.unwrap();
    assert_eq!(received.status(), StatusCode::OK);
    // Only the remaining time applies, not the full limit again.
    within(received.into_body().collect()).await.unwrap_err();
}

#[tokio::test]
async fn a_disconnected_client_cancels_the_request_at_the_backend() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let backend = Backend::start(move |mut stream: TcpStream| {
        let count = Arc::clone(&count);
        async move {
            let mut bytes = [0; 4096];
            let _head = stream.read(&mut bytes).await;
            let _gone =
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n").await;
            while let Ok(1..) = stream.read(&mut bytes).await {}
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let gateway = gateway();
    Table::new().https("a.local", &pair(&["a.local"]), all_to(to(&[backend.address]))).serve(&gateway);
    let mut http1 = Http1::tls(&gateway, "a.local").await;
    let request = Request::get("/").header("host", "a.local").body(Full::default()).unwrap();
    let mut response = within(http1.sender.send_request(request)).await.unwrap();
    within(response.body_mut().frame()).await.unwrap().unwrap();
    drop((response, http1));
    until("the first is over", || ended.load(Ordering::SeqCst) == 1).await;
    let mut http2 = Http2::tls(&gateway, "a.local").await;
    let request = Request::get("https://a.local/").body(Full::default()).unwrap();
    let mut response = within(http2.sender.send_request(request)).await.unwrap();
    within(response.body_mut().frame()).await.unwrap().unwrap();
    drop(response);
    until("the second is over", || ended.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn trailers_and_responses_without_bodies_are_forwarded() {
    let backend = Backend::start(|stream: TcpStream| async move {
        let service = service_fn(|_: Request<hyper::body::Incoming>| async move {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            let body = Full::new(Bytes::from_static(b"data"))
                .with_trailers(async move { Some(Ok::<_, std::convert::Infallible>(trailers)) });
            Ok::<_, hyper::Error>(Response::new(body))
        });
        let builder = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        let _gone = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await;
    let gateway = gateway();
    let upstream = service("grpc", Protocol::H2c, None, &[backend.address]);
    Table::new().https("a.local", &pair(&["a.local"]), all_to(one(upstream))).serve(&gateway);
    let mut http2 = Http2::tls(&gateway, "a.local").await;
    let request = Request::post("https://a.local/").header("te", "trailers").body(Full::default()).unwrap();
    let response = within(http2.sender.send_request(request)).await.unwrap();
    let body = within(response.into_body().collect()).await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "data");
    let request = Request::head("https://a.local/").body(Full::default()).unwrap();
    let response =
        ReceivedResponse::read(within(http2.sender.send_request(request)).await.unwrap()).await.unwrap();
    assert_eq!((response.status, response.body.as_str()), (StatusCode::OK, ""));
}

#[tokio::test]
async fn a_header_that_imitates_a_gateway_header_never_reaches_a_backend() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    for protocol in [Protocol::Http1, Protocol::H2c] {
        let routes = all_to(one(upstream(protocol, &[backend.address])));
        Table::new().https("a.local", &pair(&["a.local"]), routes).serve(&gateway);
        let request = |uri: &str| {
            let mut request = Request::get(uri).header("host", "a.local").header("x_custom", "kept");
            for name in [
                "X_Forwarded_Client_Cert",
                "x-forwarded_client-cert",
                "X_Forwarded_For",
                "X_Forwarded_Proto",
                "X_Request_Id",
                "Transfer_Encoding",
                "Content_Length",
            ] {
                request = request.header(name, "forged");
            }
            request.body(Full::default()).unwrap()
        };
        let first = Http1::tls(&gateway, "a.local").await.send(request("/")).await.unwrap();
        let mut http2 = Http2::tls(&gateway, "a.local").await;
        let second = within(http2.sender.send_request(request("https://a.local/"))).await.unwrap();
        for response in [first, ReceivedResponse::read(second).await.unwrap()] {
            assert_eq!(response.status, 200);
            assert!(!response.body.contains("forged"), "{protocol:?}: {}", response.body);
            assert_eq!(response.report("x_custom"), Some("kept"));
            assert_eq!(response.report("x-forwarded-for"), Some("127.0.0.1"));
        }
    }
}
