//! HTTP/2, HTTP/1.1, connections without ALPN, and upgrades.

use futures::future::join_all;
use hyper_util::rt::TokioIo;
use pinniped_http_server::{Limits, body};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{World, get, h1, h2, text, tls, within};

#[tokio::test]
async fn both_protocols_are_served_and_each_request_has_its_connection() {
    let world = World::start(Limits::default());
    let mut client = h2(world.addr()).await;
    let response = within(client.send.send_request(get("/"))).await.expect("a response");
    assert_eq!(response.version(), http::Version::HTTP_2);
    let body = text(response).await;
    assert!(body.contains("alpn=Some(\"h2\") tls=Some(TLSv1_3)"), "{body}");

    let (mut send, _connection) = h1(world.addr()).await;
    for _keep_alive in 0..3 {
        let response = within(send.send_request(get("/"))).await.expect("a response");
        assert_eq!(response.version(), http::Version::HTTP_11);
        let body = text(response).await;
        assert!(body.starts_with("127.0.0.1:") && body.contains("alpn=Some(\"http/1.1\")"), "{body}");
    }
    assert_eq!(world.handle.stats().accepted, 2);
}

#[tokio::test]
async fn a_client_without_alpn_uses_http1() {
    let world = World::start(Limits::default());
    let mut stream = tls(world.addr(), &[]).await;
    within(stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).await.expect("write");
    let mut response = String::new();
    within(stream.read_to_string(&mut response)).await.expect("a clean end");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.ends_with("alpn=None tls=Some(TLSv1_3) headers=2"), "{response}");
}

#[tokio::test]
async fn an_upgrade_becomes_a_byte_tunnel_with_half_close() {
    let world = World::start(Limits::default());
    let (mut send, connection) = h1(world.addr()).await;
    let mut request = get("/upgrade");
    *request.method_mut() = http::Method::POST;
    request.headers_mut().insert("connection", "Upgrade".parse().expect("a value"));
    request.headers_mut().insert("upgrade", "SPDY/3.1".parse().expect("a value"));
    let response = within(send.send_request(request)).await.expect("a response");
    assert_eq!(response.status(), 101);
    let mut tunnel = TokioIo::new(within(hyper::upgrade::on(response)).await.expect("upgraded"));
    within(tunnel.write_all(b"through the tunnel")).await.expect("write");
    within(tunnel.shutdown()).await.expect("half close");
    let mut echoed = String::new();
    within(tunnel.read_to_string(&mut echoed)).await.expect("read");
    assert_eq!(echoed, "through the tunnel");
    within(world.service.tunnels.drain(std::time::Duration::from_secs(10))).await;
    assert_eq!(world.service.tunnels.opened(), 1);
    within(connection).await.expect("task").expect("connection");
}

#[tokio::test]
async fn many_streams_run_at_once_on_one_connection() {
    let mut world = World::start(Limits::default());
    let client = h2(world.addr()).await;
    let waiting = (0..300).map(|_| {
        let mut send = client.send.clone();
        async move { text(send.send_request(get("/slow")).await.expect("a response")).await }
    });
    let all = tokio::spawn(join_all(waiting));
    for _ in 0..300 {
        world.handler_runs("/slow").await;
    }
    world.service.release.notify_waiters();
    let responses = within(all).await.expect("task");
    assert_eq!(responses.len(), 300);
    assert!(responses.iter().all(|response| response == "slow but done"));
}

#[tokio::test]
async fn a_large_body_streams_in_both_directions() {
    let world = World::start(Limits::default());
    let mut client = h2(world.addr()).await;
    let sent = "0123456789abcdef".repeat(1 << 17);
    let mut request = get("/echo");
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = body::full(sent.clone());
    let response = within(client.send.send_request(request)).await.expect("a response");
    assert!(text(response).await == sent);
}
