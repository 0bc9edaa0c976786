//! Clients that vanish, send slowly, or send too much.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use pinniped_http_server::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{World, get, h1, h2, text, tls, until, within};

#[tokio::test]
async fn a_client_that_vanishes_in_the_handshake_leaves_no_connection() {
    let world = World::start(Limits::default());
    for garbage in [&b""[..], b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = within(TcpStream::connect(world.addr())).await.expect("connect");
        within(stream.write_all(garbage)).await.expect("write");
    }
    until("three failed handshakes", || world.handle.stats().handshakes_failed == 3).await;
    assert_eq!(world.handle.stats().open, 0);
    let (mut send, _connection) = h1(world.addr()).await;
    assert_eq!(within(send.send_request(get("/"))).await.expect("a response").status(), 200);
}

#[tokio::test]
async fn a_silent_handshake_is_closed_after_its_timeout() {
    let limits = Limits { handshake_timeout: Duration::from_millis(150), ..Limits::default() };
    let world = World::start(limits);
    let mut stream = within(TcpStream::connect(world.addr())).await.expect("connect");
    assert_eq!(within(stream.read(&mut [0; 8])).await.expect("closed"), 0);
    until("counted", || world.handle.stats().handshakes_failed == 1).await;
}

#[tokio::test]
async fn a_client_with_only_old_tls_versions_gets_a_protocol_version_alert() {
    let world = World::start(Limits::default());
    // The head of a ClientHello of TLS 1.1 as OpenSSL sends it, and with lower version numbers down
    // to SSL 3.
    for version in [[3, 2], [3, 1], [3, 0]] {
        let mut stream = within(TcpStream::connect(world.addr())).await.expect("connect");
        let mut client_hello = vec![22, 3, 1, 0, 45, 1, 0, 0, 41, version[0], version[1]];
        client_hello.extend([7; 32]);
        client_hello.extend([0, 0, 2, 0xc0, 0x09, 1, 0]);
        within(stream.write_all(&client_hello)).await.expect("write");
        let mut response = Vec::new();
        within(stream.read_to_end(&mut response)).await.expect("an alert and the end");
        // A fatal alert, "protocol_version" (RFC 5246, 7.2.2).
        assert_eq!(response, [21, version[0], version[1], 0, 2, 2, 70]);
    }
    until("three failed handshakes", || world.handle.stats().handshakes_failed == 3).await;
}

#[tokio::test]
async fn a_connection_with_slow_headers_is_dropped() {
    // Long enough for a complete head on a busy machine.
    let limits = Limits { header_read_timeout: Duration::from_secs(2), ..Limits::default() };
    let world = World::start(limits);
    let mut fresh = tls(world.addr(), &[b"http/1.1"]).await;
    within(fresh.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n")).await.expect("write");
    let mut used = tls(world.addr(), &[b"http/1.1"]).await;
    within(used.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")).await.expect("write");
    let mut buffer = [0; 1024];
    assert!(within(used.read(&mut buffer)).await.expect("a response") > 0);
    within(used.write_all(b"GET / HT")).await.expect("write");

    for stream in [&mut fresh, &mut used] {
        let end = within(stream.read_to_end(&mut Vec::new())).await;
        // The connection is dropped without close_notify.
        assert!(end.is_err() || end.is_ok_and(|bytes| bytes == 0));
    }
    until("both are gone", || world.handle.stats().open == 0).await;
}

#[tokio::test]
async fn idle_connections_are_closed_gracefully_and_busy_ones_stay_open() {
    let limits = Limits { idle_timeout: Duration::from_millis(200), ..Limits::default() };
    let mut world = World::start(limits);
    let mut busy = h2(world.addr()).await;
    let slow = tokio::spawn(busy.send.send_request(get("/slow")));
    world.handler_runs("/slow").await;

    let idle_h2 = h2(world.addr()).await;
    let (mut send, idle_h1) = h1(world.addr()).await;
    text(within(send.send_request(get("/"))).await.expect("a response")).await;
    within(idle_h2.connection).await.expect("task").expect("an orderly end");
    within(idle_h1).await.expect("task").expect("an orderly end");

    world.service.release.notify_waiters();
    assert_eq!(text(within(slow).await.expect("task").expect("a response")).await, "slow but done");
}

#[tokio::test]
async fn headers_of_known_clients_are_accepted_up_to_the_limit_on_both_protocols() {
    let world = World::of_known_clients(Limits::default());
    let mut client = h2(world.addr()).await;
    let (mut send, _connection) = h1(world.addr()).await;
    let request = || {
        let mut request = get("/");
        let big = HeaderValue::from_str(&"x".repeat(900 << 10)).expect("a value");
        request.headers_mut().insert("x-big", big);
        for n in 0..1500 {
            request.headers_mut().append("impersonate-group", HeaderValue::from(n));
        }
        request
    };
    let response = within(client.send.send_request(request())).await.expect("a response");
    let body = text(response).await;
    assert!(body.ends_with("headers=1502"), "{body}");
    let body = text(within(send.send_request(request())).await.expect("a response")).await;
    assert!(body.ends_with("headers=1502"), "{body}");
}

#[tokio::test]
async fn headers_over_the_limit_are_refused() {
    // `memory` tests unknown clients: an HTTP/2 connection that exceeds their limit by this much is
    // closed.
    let world = World::of_known_clients(Limits::default());
    let mut request = get("/");
    let big = HeaderValue::from_str(&"x".repeat((1 << 20) + 1)).expect("a value");
    request.headers_mut().insert("x-big", big);
    let mut client = h2(world.addr()).await;
    let response = within(client.send.send_request(request)).await.expect("a response");
    assert_eq!(response.status(), 431);
    // The connection stays open.
    assert_eq!(within(client.send.send_request(get("/"))).await.expect("a response").status(), 200);

    let mut stream = tls(world.addr(), &[b"http/1.1"]).await;
    within(stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nx-big: ")).await.expect("write");
    let mut response = [0; 12];
    let (mut read, mut write) = tokio::io::split(stream);
    let writing = async {
        let chunk = [b'x'; 16 << 10];
        // Fails when the server has closed the connection.
        while write.write_all(&chunk).await.is_ok() {}
    };
    let reading = async { read.read_exact(&mut response).await.map(|_| ()) };
    tokio::pin!(writing, reading);
    match within(futures::future::select(reading, writing)).await {
        futures::future::Either::Left((read, _)) => read.expect("a response"),
        futures::future::Either::Right(((), reading)) => within(reading).await.expect("a response"),
    }
    assert_eq!(&response, b"HTTP/1.1 431");
}

#[tokio::test]
async fn a_flood_of_header_fields_is_refused() {
    let world = World::start(Limits::default());
    let mut request = get("/");
    for n in 0..5000 {
        let name = HeaderName::from_bytes(format!("x-{n}").as_bytes()).expect("a name");
        request.headers_mut().insert(name, HeaderValue::from_static("1"));
    }
    let (mut send, _connection) = h1(world.addr()).await;
    assert_eq!(within(send.send_request(request)).await.expect("a response").status(), 431);
    let (mut send, _connection) = h1(world.addr()).await;
    assert_eq!(within(send.send_request(get("/"))).await.expect("a response").status(), 200);
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_and_counted() {
    let world = World::start(Limits { connections: 1, ..Limits::default() });
    let (mut send, _connection) = h1(world.addr()).await;
    let mut second = within(TcpStream::connect(world.addr())).await.expect("connect");
    let end = within(second.read(&mut [0; 8])).await;
    assert!(end.is_err() || end.is_ok_and(|bytes| bytes == 0));
    assert_eq!(world.handle.stats().refused, 1);
    assert_eq!(within(send.send_request(get("/"))).await.expect("a response").status(), 200);
}
