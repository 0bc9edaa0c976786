//! Graceful shutdown, and termination without it.

use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use pinniped_http_server::{Limits, Listener};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::support::{DEADLINE, World, get, h1, h2, text, tls, until, within};

/// Longer than [`DEADLINE`], so that a test that waits for it fails.
const TOO_LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn drain_refuses_new_connections_at_once_and_lets_requests_finish() {
    let mut world = World::start(Limits::default());
    let addr = world.addr();
    let mut over_h2 = h2(addr).await;
    let slow_h2 = tokio::spawn(over_h2.send.send_request(get("/slow")));
    world.handler_runs("/slow").await;
    let (mut over_h1, h1_connection) = h1(addr).await;
    let slow_h1 = tokio::spawn(over_h1.send_request(get("/slow")));
    world.handler_runs("/slow").await;
    let idle = h2(addr).await;

    let draining = tokio::spawn(world.handle.drain(DEADLINE));
    until("the port refuses", || {
        TcpStream::connect(addr).now_or_never();
        std::net::TcpStream::connect(addr).is_err()
    })
    .await;
    // The idle client received GOAWAY.
    within(idle.connection).await.expect("task").expect("an orderly end");
    assert!(!draining.is_finished(), "two requests still run");

    world.service.release.notify_waiters();
    assert_eq!(text(within(slow_h2).await.expect("task").expect("a response")).await, "slow but done");
    let response = within(slow_h1).await.expect("task").expect("a response");
    assert_eq!(response.headers()["connection"], "close");
    assert_eq!(text(response).await, "slow but done");
    within(draining).await.expect("drained");
    within(over_h2.connection).await.expect("task").expect("an orderly end");
    within(h1_connection).await.expect("task").expect("an orderly end");
    Listener::bind(addr).expect("the port is free again");
}

#[tokio::test]
async fn streams_that_outlive_the_grace_period_are_reset_and_their_handlers_dropped() {
    let mut world = World::start(Limits::default());
    let addr = world.addr();
    let mut client = h2(addr).await;
    let mut watch = within(client.send.send_request(get("/watch"))).await.expect("a response").into_body();
    within(watch.frame()).await.expect("a frame").expect("the first event");
    let stuck = tokio::spawn(client.send.send_request(get("/slow")));

    let grace = Duration::from_millis(300);
    let start = Instant::now();
    within(world.handle.drain(grace)).await;
    let took = start.elapsed();
    assert!(took >= grace, "{took:?}");
    Listener::bind(addr).expect("the port is free again");
    within(watch.frame()).await.expect("not a clean end").expect_err("the stream broke");
    within(stuck).await.expect("task").expect_err("the stream broke");
    let mut ended = [
        within(world.ended.recv()).await.expect("a handler ended"),
        within(world.ended.recv()).await.expect("a handler ended"),
    ];
    ended.sort();
    assert_eq!(ended, ["/slow", "/watch"]);
}

#[tokio::test]
async fn drain_does_not_wait_for_idle_or_half_open_connections() {
    let world = World::start(Limits {
        handshake_timeout: TOO_LONG,
        header_read_timeout: TOO_LONG,
        idle_timeout: TOO_LONG,
        ..Limits::default()
    });
    let addr = world.addr();
    let _never_speaks_tls = within(TcpStream::connect(addr)).await.expect("connect");
    let mut never_asks = tls(addr, &[b"http/1.1"]).await;
    let (mut asked_once, connection) = h1(addr).await;
    text(within(asked_once.send_request(get("/"))).await.expect("a response")).await;
    let stats = world.handle.stats_source();
    until("all three are there", || stats().open == 3).await;

    within(world.handle.drain(TOO_LONG)).await;
    within(connection).await.expect("task").expect("an orderly end");
    let end = within(never_asks.read(&mut [0; 8])).await.expect("close_notify was sent");
    assert_eq!(end, 0);
    assert_eq!(stats().open, 0);
}

#[tokio::test]
async fn a_dropped_handle_closes_all_connections() {
    let mut world = World::start(Limits::default());
    let addr = world.addr();
    let mut client = h2(addr).await;
    let stuck = tokio::spawn(client.send.send_request(get("/slow")));
    world.handler_runs("/slow").await;
    let failed = world.handle.failed();
    drop(world.handle);
    within(stuck).await.expect("task").expect_err("the connection broke");
    assert_eq!(within(world.ended.recv()).await.as_deref(), Some("/slow"));
    until("the port is free", || Listener::bind(addr).is_ok()).await;
    drop(failed);
}

#[tokio::test]
async fn a_requested_shutdown_is_not_reported_as_a_failure() {
    let world = World::start(Limits::default());
    let mut failed = Box::pin(world.handle.failed());
    assert!(futures::poll!(failed.as_mut()).is_pending());
    within(world.handle.drain(DEADLINE)).await;
    assert!(futures::poll!(failed.as_mut()).is_pending());
}

#[tokio::test]
async fn a_failed_listener_is_reported_while_clients_are_still_served() {
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let same = TcpListener::from(listener.as_fd().try_clone_to_owned().expect("a second handle"));
    let mut world = World::on(listener, Limits::default());
    let addr = world.addr();
    let mut client = h2(addr).await;
    let slow = tokio::spawn(client.send.send_request(get("/slow")));
    world.handler_runs("/slow").await;

    // As if other code had closed the listening socket.
    socket2::SockRef::from(&same).shutdown(Shutdown::Both).expect("shut down");
    let why = within(world.handle.failed()).await;
    assert!(why.starts_with("the listener failed: "), "{why}");
    world.service.release.notify_waiters();
    assert_eq!(text(within(slow).await.expect("task").expect("a response")).await, "slow but done");

    drop(same);
    within(world.handle.drain(DEADLINE)).await;
    Listener::bind(addr).expect("the port is free again");
}
