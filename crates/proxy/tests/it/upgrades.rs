//! Requests that leave HTTP.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use pinniped_serve::{Body, body};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::api_server::{Handler, Script};
use crate::world::{Answer, Client, PATIENCE, World, eventually};

const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec?command=sh&stdin=true";

/// Accepts the upgrade as `protocol`; then sends back what came, in upper case, once the client has ended its side.
fn shouting(protocol: &'static str) -> Handler {
    Arc::new(move |mut request: Request<Incoming>| {
        Box::pin(async move {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.unwrap());
                io.write_all(b"hello ").await.unwrap();
                let mut text = String::new();
                // Ends only if the half-close arrives.
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

async fn ask(client: &Client<'_>, path: &str, protocol: &str) -> Response<Incoming> {
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
    let mut response = ask(&world.certificate("u", &[]), EXEC, "SPDY/3.1").await;
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
    let response = ask(&world.certificate("u", &[]), EXEC, "websocket").await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
}

#[tokio::test]
async fn another_protocol_than_asked_for_is_a_bad_gateway() {
    let world = World::start(Script { handler: shouting("SPDY/3.1"), ..Script::default() }).await;
    let answer = Answer::read(ask(&world.certificate("u", &[]), EXEC, "websocket").await).await;
    assert_eq!((answer.status, answer.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert_eq!(world.proxy.tunnels(), 0);
}

#[tokio::test]
async fn an_answer_other_than_101_is_relayed() {
    let handler: Handler = Arc::new(|_| {
        Box::pin(async {
            let mut response = Response::<Body>::new(body::full("unable to upgrade: no"));
            *response.status_mut() = StatusCode::FORBIDDEN;
            response
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let answer = Answer::read(ask(&world.certificate("u", &[]), EXEC, "websocket").await).await;
    assert_eq!((answer.status, answer.text.as_str()), (StatusCode::FORBIDDEN, "unable to upgrade: no"));
}

#[tokio::test]
async fn connection_upgrade_alone_goes_over_http1_as_a_plain_request() {
    let world = World::start(Script::default()).await;
    let request = Request::get("/api/v1/pods").header("host", "h").header("connection", "upgrade");
    let mut sender = world.certificate("u", &[]).h1().await;
    let response = sender.send_request(request.body(body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let seen = world.api.only_seen();
    assert_eq!(seen.version, Version::HTTP_11);
    assert_eq!(seen.all("upgrade"), Vec::<String>::new());
}

#[tokio::test]
async fn a_tunnel_on_an_ordinary_path_meets_the_deadline() {
    let world = World::start(Script { handler: shouting("x"), ..Script::default() }).await;
    let mut response = ask(&world.certificate("u", &[]), "/foo?timeout=300ms", "x").await;
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut text = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, io.read_to_end(&mut text)).await;
    // How the cut looks, as an end or an error, is TLS's business.
    assert!(ended.is_ok(), "the deadline ends the tunnel");
    assert_eq!(text, b"hello ");
    eventually("the tunnel ends", || world.proxy.tunnels() == 0).await;
}

#[tokio::test]
async fn stopping_ends_tunnels_after_the_grace() {
    let world = World::start(Script { handler: shouting("x"), ..Script::default() }).await;
    let mut response = ask(&world.certificate("u", &[]), EXEC, "x").await;
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let stop = world.proxy.stop(Duration::from_millis(200));
    tokio::time::timeout(PATIENCE, stop).await.expect("the grace is short");
    let mut text = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, io.read_to_end(&mut text)).await;
    assert!(ended.is_ok(), "the tunnel is cut");
}
