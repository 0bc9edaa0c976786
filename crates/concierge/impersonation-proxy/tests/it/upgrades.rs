//! Requests that upgrade to another protocol.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use pinniped_http_server::{Body, body};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::api_server::{Handler, Script};
use crate::raw::Raw;
use crate::world::{Client, PATIENCE, ReceivedResponse, World, eventually};

const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec?command=sh&stdin=true";

/// Accepts the upgrade as `protocol`; echoes the data in upper case after the client has closed its
/// side.
fn shouting(protocol: &'static str) -> Handler {
    Arc::new(move |mut request: Request<Incoming>| {
        Box::pin(async move {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.unwrap());
                io.write_all(b"hello ").await.unwrap();
                let mut text = String::new();
                // Completes only if the half-close arrives.
                if io.read_to_string(&mut text).await.is_ok() {
                    io.write_all(text.to_uppercase().as_bytes()).await.unwrap();
                    io.shutdown().await.unwrap();
                }
            });
            let mut response = Response::new(body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert("connection", http::HeaderValue::from_static("Upgrade"));
            headers.insert("upgrade", http::HeaderValue::from_static(protocol));
            headers.insert("x-stream-protocol-version", http::HeaderValue::from_static("v4.channel.k8s.io"));
            response
        })
    })
}

async fn send_request(client: &Client<'_>, path: &str, protocol: &str) -> Response<Incoming> {
    let request = Request::post(path)
        .header("host", "proxy.example")
        .header("connection", "Upgrade")
        .header("upgrade", protocol)
        .header("x-stream-protocol-version", "v4.channel.k8s.io")
        .header("x-stream-protocol-version", "channel.k8s.io")
        .body(body::empty())
        .unwrap();
    let mut sender = client.h1().await;
    tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("answered").unwrap()
}

#[tokio::test]
async fn spdy_is_tunnelled_with_half_close() {
    let world = World::start(Script { handler: shouting("SPDY/3.1"), ..Script::default() }).await;
    let mut response = send_request(&world.certificate("u", &[]), EXEC, "SPDY/3.1").await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    assert_eq!(response.headers()["connection"], "Upgrade");
    assert_eq!(response.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
    assert_eq!(response.headers()["x-frame-options"], "DENY");
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut hello = [0; 6];
    io.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello ");
    assert_eq!(world.proxy.tunnels(), 1);
    io.write_all(b"stdin").await.unwrap();
    io.shutdown().await.unwrap();
    let mut rest = String::new();
    tokio::time::timeout(PATIENCE, io.read_to_string(&mut rest)).await.expect("half-close crosses").unwrap();
    assert_eq!(rest, "STDIN");
    eventually("the tunnel ends", || world.proxy.tunnels() == 0).await;

    let seen = world.api.only_seen();
    assert_eq!(seen.version, Version::HTTP_11);
    assert_eq!(seen.all("connection"), ["Upgrade"]);
    assert_eq!(seen.all("upgrade"), ["SPDY/3.1"]);
    assert_eq!(seen.all("host"), ["proxy.example"]);
    assert_eq!(seen.uri, EXEC);
    assert_eq!(seen.all("impersonate-user"), ["u"]);
    assert_eq!(seen.all("x-stream-protocol-version"), ["v4.channel.k8s.io", "channel.k8s.io"]);
}

#[tokio::test]
async fn protocols_are_compared_without_case() {
    let world = World::start(Script { handler: shouting("WebSocket"), ..Script::default() }).await;
    let response = send_request(&world.certificate("u", &[]), EXEC, "websocket").await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
}

#[tokio::test]
async fn an_upgrade_to_another_protocol_is_a_bad_gateway() {
    let world = World::start(Script { handler: shouting("SPDY/3.1"), ..Script::default() }).await;
    let response =
        ReceivedResponse::read(send_request(&world.certificate("u", &[]), EXEC, "websocket").await).await;
    assert_eq!((response.status, response.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert_eq!(world.proxy.tunnels(), 0);
}

#[tokio::test]
async fn a_response_other_than_101_is_forwarded() {
    let handler: Handler = Arc::new(|_| {
        Box::pin(async {
            let mut response = Response::<Body>::new(body::full("unable to upgrade: no"));
            *response.status_mut() = StatusCode::FORBIDDEN;
            response
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let received =
        ReceivedResponse::read(send_request(&world.certificate("u", &[]), EXEC, "websocket").await).await;
    assert_eq!((received.status, received.text.as_str()), (StatusCode::FORBIDDEN, "unable to upgrade: no"));
}

#[tokio::test]
async fn connection_upgrade_without_a_protocol_uses_no_separate_connection() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    client.get("/api/v1/pods").await;
    let before = world.api.connections();
    for headers in [
        "connection: upgrade",
        "connection: x-upgrade-y\r\nupgrade: websocket",
        "connection: upgrade\r\nupgrade: ",
    ] {
        let request =
            format!("POST /api/v1/pods HTTP/1.1\r\nhost: h\r\n{headers}\r\ncontent-length: 2\r\n\r\nhi");
        let mut raw = Raw::send_request(&client, request).await;
        let head = raw.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let seen = world.api.seen().pop().unwrap();
        assert_eq!((seen.version, seen.all("upgrade").len()), (Version::HTTP_2, 0), "{headers}");
    }
    // Another worker may not have a connection yet.
    assert!(world.api.connections() <= before + 2, "{before} before, {} now", world.api.connections());
}

#[tokio::test]
async fn a_tunnel_on_an_ordinary_path_ends_at_the_deadline() {
    let world = World::start(Script { handler: shouting("x"), ..Script::default() }).await;
    let mut response = send_request(&world.certificate("u", &[]), "/foo?timeout=300ms", "x").await;
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut text = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, io.read_to_end(&mut text)).await;
    // TLS determines whether the cut is an end or an error.
    assert!(ended.is_ok(), "the deadline ends the tunnel");
    assert_eq!(text, b"hello ");
    eventually("the tunnel ends", || world.proxy.tunnels() == 0).await;
}

#[tokio::test]
async fn a_shutdown_closes_tunnels_after_the_grace_period() {
    let world = World::start(Script { handler: shouting("x"), ..Script::default() }).await;
    let mut response = send_request(&world.certificate("u", &[]), EXEC, "x").await;
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let stop = world.proxy.stop(Duration::from_millis(200));
    tokio::time::timeout(PATIENCE, stop).await.expect("the grace is short");
    let mut text = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, io.read_to_end(&mut text)).await;
    assert!(ended.is_ok(), "the tunnel is cut");
}

/// Accepts every upgrade as a WebSocket, and passes the server's ends of the tunnels to the test.
fn tunnels() -> (Handler, mpsc::UnboundedReceiver<TokioIo<Upgraded>>) {
    let (sender, ends) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |mut request: Request<Incoming>| {
        let upgrade = hyper::upgrade::on(&mut request);
        let sender = sender.clone();
        Box::pin(async move {
            tokio::spawn(async move { sender.send(TokioIo::new(upgrade.await.unwrap())) });
            let mut response = Response::new(body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert("connection", http::HeaderValue::from_static("upgrade"));
            headers.insert("upgrade", http::HeaderValue::from_static("websocket"));
            headers.insert("sec-websocket-protocol", http::HeaderValue::from_static("v5.channel.k8s.io"));
            response
        })
    });
    (handler, ends)
}

const WEBSOCKET: &str = "GET /api/v1/namespaces/n/pods/p/exec?command=sh HTTP/1.1\r\nHost: proxy.example\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a2V5\r\n\
    Sec-WebSocket-Protocol: v5.channel.k8s.io\r\nSec-WebSocket-Protocol: v4.channel.k8s.io, channel.k8s.io\r\n\r\n";

/// Opens a tunnel and returns the ends of the client and of the server.
async fn open(
    client: &Client<'_>,
    ends: &mut mpsc::UnboundedReceiver<TokioIo<Upgraded>>,
    early: &str,
) -> (Raw, TokioIo<Upgraded>) {
    let mut raw = Raw::send_request(client, format!("{WEBSOCKET}{early}")).await;
    let head = raw.until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    assert!(head.contains("\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n"), "{head}");
    (raw, tokio::time::timeout(PATIENCE, ends.recv()).await.expect("upgraded").unwrap())
}

#[tokio::test]
async fn a_websocket_is_tunnelled_and_each_side_can_close_first() {
    let (handler, mut ends) = tunnels();
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    for server_first in [false, true] {
        // Data that a client sends before it receives the 101 belongs to the tunnel.
        let (mut raw, mut server) = open(&client, &mut ends, "early").await;
        let mut early = [0; 5];
        server.read_exact(&mut early).await.unwrap();
        assert_eq!(&early, b"early");
        let mut heard = String::new();
        if server_first {
            server.write_all(b"all there is").await.unwrap();
            server.shutdown().await.unwrap();
            let (rest, end) = raw.rest().await;
            assert_eq!(rest, "all there is");
            end.expect("a regular end of the stream");
            raw.write("and more").await;
            raw.end().await;
            server.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "and more");
        } else {
            raw.end().await;
            server.read_to_string(&mut heard).await.unwrap();
            server.write_all(b"still open").await.unwrap();
            server.shutdown().await.unwrap();
            assert_eq!(raw.rest().await.0, "still open");
        }
        eventually("the tunnel ends", || world.proxy.tunnels() == 0).await;
    }
    let text = world.metrics.text().unwrap();
    for (direction, count) in [("from_clients", 2 * 5 + 8), ("to_clients", 12 + 10)] {
        let line = format!("pinniped_impersonation_proxy_bytes_total{{direction=\"{direction}\"}} {count}");
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    let seen = &world.api.seen()[0];
    assert_eq!(
        seen.all("sec-websocket-protocol"),
        ["v5.channel.k8s.io", "v4.channel.k8s.io, channel.k8s.io"]
    );
    assert_eq!(seen.all("sec-websocket-key"), ["a2V5"]);
    assert_eq!(
        (seen.all("connection"), seen.all("upgrade")),
        (vec!["Upgrade".into()], vec!["websocket".into()])
    );
}

#[tokio::test]
async fn a_reset_of_one_side_closes_the_other() {
    let (handler, mut ends) = tunnels();
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);

    let (raw, mut server) = open(&client, &mut ends, "").await;
    raw.vanish();
    let mut heard = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, server.read_to_end(&mut heard)).await.expect("an end");
    assert!(ended.is_err() && heard.is_empty(), "a client that is gone has not ended its input: {ended:?}");
    eventually("the tunnel ends", || world.proxy.tunnels() == 0).await;

    let (mut raw, server) = open(&client, &mut ends, "").await;
    // Dropped without a shutdown, like a server that is killed.
    drop(server);
    let (rest, end) = raw.rest().await;
    assert!(rest.is_empty() && end.is_err(), "{rest} {end:?}");
    eventually("the tunnel ends", || world.proxy.tunnels() == 0).await;
}

#[tokio::test]
async fn a_disconnect_before_the_101_cancels_the_upgrade() {
    let handler: Handler = Arc::new(|_| Box::pin(std::future::pending()));
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let raw = Raw::send_request(&client, WEBSOCKET).await;
    eventually("the request arrives", || !world.api.seen().is_empty()).await;
    raw.vanish();
    eventually("the connection ends", || world.proxy.stats().open == 0).await;
}

#[tokio::test]
async fn an_upgrade_without_connection_is_an_ordinary_request() {
    let world = World::start(Script::default()).await;
    let request = WEBSOCKET.replace("Connection: Upgrade", "Connection: close");
    let (response, _) = Raw::send_request(&world.certificate("u", &[]), request).await.rest().await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    let seen = world.api.only_seen();
    assert_eq!(seen.version, Version::HTTP_2);
    assert_eq!((seen.all("upgrade").len(), seen.all("connection").len()), (0, 0));
}

#[tokio::test]
async fn an_unrequested_101_is_a_bad_gateway() {
    // HTTP/2 has no upgrades. Short reads may use HTTP/1.1.
    let handler: Handler = Arc::new(|request: Request<Incoming>| {
        Box::pin(async move {
            let mut response = Response::new(body::empty());
            if request.version() == Version::HTTP_11 {
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                response.headers_mut().insert("connection", http::HeaderValue::from_static("upgrade"));
                response.headers_mut().insert("upgrade", http::HeaderValue::from_static("websocket"));
            }
            response
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let received = async {
        loop {
            let received = client.get("/api/v1/pods").await;
            if received.status != StatusCode::OK {
                return received.status;
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, received).await.expect("a read goes over HTTP/1.1");
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(world.proxy.tunnels(), 0);
}
