//! Limits on the memory that unknown clients can use in the server.

use bytes::Bytes;
use http::{HeaderValue, Request};
use pinniped_http_server::capacity::FREE_BYTES;
use pinniped_http_server::{Capacity, CapacityParams, Limits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::{World, get, h1, h2, text, tls, tls_with_large_certificate, until, within};

/// The limits of a program with 128 MiB: 12.8 MiB for data of clients.
fn limits(connections: usize) -> (Limits, Capacity) {
    let capacity = Capacity::new(&CapacityParams {
        connections,
        connections_per_address: None,
        memory: Some(128 << 20),
        files: None,
        files_per_connection: 1,
    });
    (Limits { capacity: capacity.clone(), ..Limits::default() }, capacity)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, size @ ..] = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    let mut frame = size.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The fields that each request has (RFC 7541, appendix A): `:method`, `:scheme`, `:authority` and
/// `:path`.
fn request(method: u8, path: &str) -> Vec<u8> {
    let mut block = vec![method, 0x87, 0x01, 1, b'a', 0x04, u8::try_from(path.len()).expect("a short path")];
    block.extend(path.as_bytes());
    block
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// Opens an HTTP/2 connection for hand-written frames.
async fn raw(world: &World) -> TlsStream<TcpStream> {
    let mut stream = tls(world.addr(), &[b"h2"]).await;
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend(frame(SETTINGS, 0, 0, &[]));
    within(stream.write_all(&opening)).await.expect("write");
    stream
}

/// A confirmed client that must still be served.
struct Bystander(crate::support::H2);

impl Bystander {
    async fn log_in(world: &World) -> Self {
        let mut client = h2(world.addr()).await;
        assert_eq!(within(client.send.send_request(get("/login"))).await.expect("a response").status(), 200);
        Self(client)
    }

    async fn is_served(&mut self, world: &World) {
        let mut request = get("/");
        request.headers_mut().insert("x-big", HeaderValue::from_str(&"x".repeat(48 << 10)).expect("a value"));
        assert_eq!(within(self.0.send.send_request(request)).await.expect("a response").status(), 200);
        let (mut fresh, _connection) = h1(world.addr()).await;
        assert_eq!(within(fresh.send_request(get("/"))).await.expect("a response").status(), 200);
    }
}

/// Reads until the server closes the connection, and returns true. Panics at the deadline.
async fn is_ended(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut piece = [0; 4096];
    loop {
        match within(stream.read(&mut piece)).await {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
}

#[tokio::test]
async fn idle_connections_are_displaced_and_those_of_users_are_not() {
    let (limits, capacity) = limits(8);
    let world = World::start(limits);
    let mut user = Bystander::log_in(&world).await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(tls(world.addr(), &[b"h2"]).await);
    }
    user.is_served(&world).await;
    assert!(is_ended(&mut idle[0]).await);
    let stats = capacity.stats();
    assert!(stats.connections_displaced >= 33, "{stats:?}");
    drop(idle);
    drop(user);
    until("all permits given back", || capacity.stats().connections_open == 0).await;
}

#[tokio::test]
async fn client_certificates_are_charged_for_both_copies_until_the_connection_ends() {
    let (limits, capacity) = limits(8);
    let world = World::start(limits);
    let (stream, size) = tls_with_large_certificate(world.addr()).await;
    let charged = u64::try_from(2 * size - FREE_BYTES).expect("a small size");
    until("the certificate is charged", || capacity.stats().budget_used == charged).await;
    drop(stream);
    until("the charge is released", || capacity.stats().budget_used == 0).await;
}

#[tokio::test]
async fn slow_headers_are_charged_and_only_their_connections_are_closed() {
    let (limits, capacity) = limits(1000);
    let world = World::start(limits);
    let mut user = Bystander::log_in(&world).await;
    let (budget, mut open) = (capacity.stats().budget_limit, Vec::new());
    // 250 connections with 44 KiB each above the free amount.
    for _ in 0..250 {
        let mut stream = tls(world.addr(), &[b"http/1.1"]).await;
        let mut head = b"GET / HTTP/1.1\r\nHost: a\r\nx-big: ".to_vec();
        head.resize(60 << 10, b'x');
        within(stream.write_all(&head)).await.expect("write");
        open.push(stream);
    }
    until("some refused", || capacity.stats().refused_budget > 0).await;
    let used = capacity.stats().budget_used;
    assert!(used <= budget / 2, "{used} of {budget}");
    user.is_served(&world).await;
    drop(open);
    until("all given back", || capacity.stats().budget_used == 0).await;
}

#[tokio::test]
async fn unfinished_header_blocks_are_charged_for_their_maximum_size() {
    let (limits, capacity) = limits(1000);
    let world = World::start(limits);
    let mut user = Bystander::log_in(&world).await;
    let budget = capacity.stats().budget_limit;
    // One field enters the table, and each octet after it repeats that field.
    let mut block = request(GET, "/");
    block.extend([0x40, 1, b'b', 1, b'c']);
    block.resize(block.len() + 1500, 0xbe);
    let mut open = Vec::new();
    for _ in 0..60 {
        let mut stream = raw(&world).await;
        within(stream.write_all(&frame(HEADERS, END_STREAM, 1, &block))).await.expect("write");
        open.push(stream);
    }
    until("some refused", || capacity.stats().refused_budget > 0).await;
    let used = capacity.stats().budget_used;
    assert!(used <= budget / 2, "{used} of {budget}");
    user.is_served(&world).await;
    drop(open);
    until("all given back", || capacity.stats().budget_used == 0).await;
}

#[tokio::test]
async fn waiting_requests_are_charged_for_their_header_fields() {
    let (limits, capacity) = limits(1000);
    let mut world = World::start(limits);
    let mut user = Bystander::log_in(&world).await;
    world.handler_runs("/login").await;
    let budget = capacity.stats().budget_limit;
    let mut block = request(GET, "/slow");
    block.extend([0x40, 1, b'b', 1, b'c']);
    block.resize(block.len() + 1500, 0xbe);
    let mut open = vec![raw(&world).await];
    within(open[0].write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block))).await.expect("write");
    world.handler_runs("/slow").await;
    let used = capacity.stats().budget_used;
    assert!(used > 1500 * 128, "{used} for 1500 fields");
    for _ in 0..20 {
        let mut stream = raw(&world).await;
        for n in 0..100 {
            let request = frame(HEADERS, END_STREAM | END_HEADERS, 2 * n + 1, &block);
            // Until the server has closed the connection.
            if within(stream.write_all(&request)).await.is_err() {
                break;
            }
        }
        open.push(stream);
    }
    until("some refused", || capacity.stats().refused_budget > 0).await;
    let used = capacity.stats().budget_used;
    assert!(used <= budget / 2, "{used} of {budget}");
    user.is_served(&world).await;
    drop(open);
    until("all given back", || capacity.stats().budget_used == 0).await;
}

#[tokio::test]
async fn unread_bodies_are_charged_and_stop_at_64_kib() {
    let (limits, capacity) = limits(1000);
    let mut world = World::start(limits);
    let mut user = Bystander::log_in(&world).await;
    world.handler_runs("/login").await;
    let budget = capacity.stats().budget_limit;
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut stream = raw(&world).await;
        let head = frame(HEADERS, END_HEADERS, 1, &request(POST, "/slow"));
        let mut sent = within(stream.write_all(&head)).await;
        for _ in 0..4 {
            if sent.is_ok() {
                sent = within(stream.write_all(&frame(DATA, 0, 1, &[b'x'; 16_000]))).await;
            }
        }
        open.push(stream);
    }
    until("some refused", || capacity.stats().refused_budget > 0).await;
    let used = capacity.stats().budget_used;
    assert!(used <= budget / 2, "{used} of {budget}");
    user.is_served(&world).await;
    drop(open);
    until("all given back", || capacity.stats().budget_used == 0).await;
    // Data beyond the window ends the connection, even while the budget is free.
    let refused = capacity.stats().refused_budget;
    let mut greedy = raw(&world).await;
    let mut sent = within(greedy.write_all(&frame(HEADERS, END_HEADERS, 1, &request(POST, "/slow")))).await;
    for _ in 0..5 {
        sent = sent.and(within(greedy.write_all(&frame(DATA, 0, 1, &[b'x'; 16_000]))).await);
    }
    assert!(sent.is_err() || is_ended(&mut greedy).await);
    assert_eq!(capacity.stats().refused_budget, refused);
}

#[tokio::test]
async fn the_server_does_not_read_from_a_client_that_does_not_read() {
    let (limits, capacity) = limits(1000);
    let world = World::start(limits);
    let mut user = Bystander::log_in(&world).await;
    let budget = capacity.stats().budget_limit;
    let mut streams = Vec::new();
    for _ in 0..12 {
        streams.push(raw(&world).await);
    }
    let mut flooding = tokio::task::JoinSet::new();
    for mut stream in streams {
        flooding.spawn(async move {
            // Each response is larger than its request. The streams are answered, so the limit on
            // streams is never reached.
            let mut stream_id = 1;
            while stream_id < 2_000_001 {
                let request = frame(HEADERS, END_STREAM | END_HEADERS, stream_id, &request(GET, "/"));
                if stream.write_all(&request).await.is_err() {
                    return;
                }
                stream_id += 2;
            }
        });
    }
    until("some refused", || capacity.stats().refused_budget > 0).await;
    let used = capacity.stats().budget_used;
    assert!(used <= budget / 2, "{used} of {budget}");
    user.is_served(&world).await;
    flooding.shutdown().await;
    until("all given back", || capacity.stats().budget_used == 0).await;
}

#[tokio::test]
async fn an_upload_of_a_known_client_gets_larger_windows_and_releases_them() {
    let (limits, capacity) = limits(1000);
    let world = World::start(limits);
    let io = tls(world.addr(), &[b"h2"]).await;
    let (mut send, connection) = within(h2::client::handshake(io)).await.expect("h2 handshake");
    let connection = tokio::spawn(connection);
    let request = |method: &str, path: &str| {
        Request::builder().method(method).uri(format!("https://localhost{path}")).body(()).expect("a request")
    };
    let (response, _) = send.send_request(request("GET", "/login"), true).expect("a stream");
    assert_eq!(within(response).await.expect("a response").status(), 200);
    let (response, mut stream) = send.send_request(request("POST", "/whole"), false).expect("a stream");
    stream.reserve_capacity(1 << 20);
    let mut left = 4 << 20;
    let mut most = 0;
    while left > 0 {
        let room =
            within(std::future::poll_fn(|cx| stream.poll_capacity(cx))).await.expect("open").expect("room");
        most = most.max(room);
        let piece = room.min(left);
        left -= piece;
        stream.send_data(Bytes::from(vec![b'x'; piece]), left == 0).expect("room");
        stream.reserve_capacity(left.min(1 << 20));
    }
    assert_eq!(within(response).await.expect("a response").status(), 200);
    assert!(capacity.stats().budget_used >= (1 << 20) - (16 << 10), "{:?}", capacity.stats());
    drop((send, stream));
    connection.abort();
    until("given back", || capacity.stats().budget_used == 0).await;
}

#[tokio::test]
async fn headers_of_an_unknown_client_over_64_kib_are_refused_with_431() {
    let (limits, _capacity) = limits(1000);
    let world = World::start(limits);
    let with = |size: usize| {
        let mut request = get("/");
        request.headers_mut().insert("x-big", HeaderValue::from_str(&"x".repeat(size)).expect("a value"));
        request
    };
    for (size, status) in [(60 << 10, 200), (65 << 10, 431)] {
        let mut client = h2(world.addr()).await;
        let response = within(client.send.send_request(with(size))).await.expect("a response");
        assert_eq!(response.status(), status, "{size}");
        let (mut send, _connection) = h1(world.addr()).await;
        let response = within(send.send_request(with(size))).await.expect("a response");
        assert_eq!(response.status(), status, "{size}");
    }
    let known = World::of_known_clients(Limits::default());
    let mut client = h2(known.addr()).await;
    let response = within(client.send.send_request(with(65 << 10))).await.expect("a response");
    assert!(text(response).await.ends_with("headers=2"));
}
