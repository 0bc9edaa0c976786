//! Upgrade requests.

use std::time::{Duration, Instant};

use pinniped_gateway_routing::table::Action;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{Backend, Client, Table, forward, gateway, pair, prefix, to, until, within};

/// A WebSocket server that returns the received bytes in upper case after its 101, or refuses the
/// upgrade.
pub(crate) async fn websocket() -> Backend {
    Backend::start(|mut stream: TcpStream| async move {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(char::from(byte));
        }
        let head = head.to_ascii_lowercase();
        if !head.contains("upgrade: websocket\r\n") || !head.contains("sec-websocket-key: k\r\n") {
            let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain").await;
            return;
        }
        let switched =
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        let _gone = stream.write_all(switched).await;
        let mut bytes = [0; 100];
        while let Ok(read @ 1..) = stream.read(&mut bytes).await {
            let _gone = stream.write_all(&bytes[..read].to_ascii_uppercase()).await;
        }
        let _gone = stream.write_all(b"bye").await;
    })
    .await
}

pub(crate) fn request(path: &str, upgrade: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: a.local\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\nSec-WebSocket-Key: k\r\n\r\n"
    )
}

#[tokio::test]
async fn a_websocket_is_forwarded_with_half_closes_if_the_route_allows_it() {
    let backend = websocket().await;
    let gateway = gateway();
    let mut open = forward(to(&[backend.address]));
    open.websockets = true;
    let routes = || {
        vec![
            prefix("/", Action::Forward(forward(to(&[backend.address])))),
            prefix("/ws", Action::Forward(open.clone())),
        ]
    };
    Table::new().https("a.local", &pair(&["a.local"]), routes()).serve(&gateway);
    let connect = async || Client::new().connect(gateway.tls_addr(), "a.local").await.unwrap();
    let send_request = async |request: String| {
        pinniped_test_support::wire::raw_request(connect().await, request.as_bytes()).await.unwrap()
    };
    assert_eq!(send_request(request("/", "websocket")).await.status, 403);
    assert_eq!(send_request(request("/ws", "SPDY/3.1")).await.status, 403);
    // The server may ignore the offer.
    assert_eq!(send_request(request("/", "h2c")).await.status, 200);
    let mut response = send_request(request("/ws", "WebSocket")).await;
    assert_eq!(response.status, 101, "{}", response.head);
    assert!(response.head.to_ascii_lowercase().contains("upgrade: websocket"), "{}", response.head);
    assert_eq!(gateway.tunnels(), 1);
    response.stream.write_all(b"hello").await.unwrap();
    let mut hello = [0; 5];
    within(response.stream.read_exact(&mut hello)).await.unwrap();
    assert_eq!(&hello, b"HELLO");
    response.stream.shutdown().await.unwrap();
    let mut rest = String::new();
    within(response.stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "bye");
    until("the tunnel is over", || gateway.tunnels() == 0).await;
}

#[tokio::test]
async fn a_backend_that_ignores_the_upgrade_returns_a_regular_response() {
    let backend = websocket().await;
    let gateway = gateway();
    let mut open = forward(to(&[backend.address]));
    open.websockets = true;
    Table::new().plain("a.local", vec![prefix("/", Action::Forward(open))]).serve(&gateway);
    let stream = TcpStream::connect(gateway.plain_addr()).await.unwrap();
    let request = request("/", "websocket").replace("Key: k", "Key: other");
    let response = pinniped_test_support::wire::raw_request(stream, request.as_bytes()).await.unwrap();
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn an_idle_websocket_is_closed_after_the_timeout_of_its_route() {
    let backend = websocket().await;
    let gateway = gateway();
    let mut open = forward(to(&[backend.address]));
    open.websockets = true;
    let idle = Duration::from_millis(500);
    open.timeouts.idle = Some(idle);
    Table::new().plain("a.local", vec![prefix("/", Action::Forward(open))]).serve(&gateway);
    let stream = TcpStream::connect(gateway.plain_addr()).await.unwrap();
    let request = request("/", "websocket");
    let mut response = pinniped_test_support::wire::raw_request(stream, request.as_bytes()).await.unwrap();
    assert_eq!(response.status, 101, "{}", response.head);
    // Traffic keeps the connection open for longer than the idle timeout.
    let start = Instant::now();
    while start.elapsed() < idle * 2 {
        response.stream.write_all(b"a").await.unwrap();
        assert_eq!(within(response.stream.read_u8()).await.unwrap(), b'A');
    }
    let printed = Instant::now();
    assert_eq!(within(response.stream.read(&mut [0])).await.unwrap(), 0);
    assert!(printed.elapsed() >= idle / 2, "closed {:?} after the last word", printed.elapsed());
    until("the tunnel is over", || gateway.tunnels() == 0).await;
}
