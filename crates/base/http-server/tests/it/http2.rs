//! HTTP/2 features, tested with a client that works on frames.

use std::future::poll_fn;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use h2::Reason;
use http::{Request, Response};
use pinniped_http_server::{Limits, ResetLimits};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

use crate::support::{World, tls, within};

struct Client {
    send: h2::client::SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

type Unpolled = h2::client::Connection<TlsStream<TcpStream>, Bytes>;

async fn handshake(world: &World) -> (h2::client::SendRequest<Bytes>, Unpolled) {
    let io = tls(world.addr(), &[b"h2"]).await;
    within(h2::client::handshake(io)).await.expect("h2 handshake")
}

async fn client(world: &World) -> Client {
    let (send, connection) = handshake(world).await;
    Client { send, connection: tokio::spawn(connection) }
}

fn request(method: &str, path: &str) -> Request<()> {
    let request = Request::builder().method(method).uri(format!("https://localhost{path}"));
    request.body(()).expect("a request")
}

impl Client {
    async fn get(&mut self, path: &str) -> Response<h2::RecvStream> {
        let (response, _) = self.send.send_request(request("GET", path), true).expect("a stream");
        within(response).await.expect("a response")
    }
}

#[tokio::test]
async fn interim_responses_reach_the_client_in_time_and_in_order() {
    let world = World::start(Limits::default());
    let mut client = client(&world).await;
    let (mut response, _) = client.send.send_request(request("GET", "/interim"), true).expect("a stream");
    for status in [102, 103] {
        let early =
            within(poll_fn(|cx| response.poll_informational(cx))).await.expect("one").expect("no error");
        assert_eq!((early.status().as_u16(), &early.headers()["x-early"]), (status, &status.into()));
        world.service.release.notify_one();
    }
    let response = within(response).await.expect("a response");
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("x-early"));
}

#[tokio::test]
async fn interim_responses_are_limited_and_never_switch_protocols() {
    let world = World::start(Limits::default());
    let mut client = client(&world).await;
    let (mut response, _) =
        client.send.send_request(request("GET", "/many-interim"), true).expect("a stream");
    let mut seen = 0;
    while let Some(early) = within(poll_fn(|cx| response.poll_informational(cx))).await {
        assert_eq!(early.expect("no error").status(), 103);
        seen += 1;
    }
    assert_eq!(seen, 32);
    assert_eq!(within(response).await.expect("a response").status(), 200);
}

#[tokio::test]
async fn interim_responses_do_not_delay_a_response_over_http1() {
    let world = World::start(Limits::default());
    world.service.release.notify_one();
    let (mut send, _connection) = crate::support::h1(world.addr()).await;
    let response = within(send.send_request(crate::support::get("/interim"))).await.expect("a response");
    assert_eq!(crate::support::text(response).await, "at last");
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it_when_the_body_is_read() {
    let mut world = World::start(Limits::default());
    let mut client = client(&world).await;
    let mut request = request("POST", "/whole");
    request.headers_mut().insert("expect", http::HeaderValue::from_static("100-continue"));
    let (mut response, mut stream) = client.send.send_request(request, false).expect("a stream");
    let interim =
        within(poll_fn(|cx| response.poll_informational(cx))).await.expect("one").expect("no error");
    assert_eq!(interim.status(), 100);
    stream.send_data(Bytes::from_static(b"all of it"), true).expect("room");
    assert_eq!(within(response).await.expect("a response").status(), 200);
    world.handler_runs("/whole").await;
    assert_eq!(within(world.begun.recv()).await.as_deref(), Some("it was whole"));
}

#[tokio::test]
async fn http1_headers_are_removed_and_date_and_length_are_added() {
    let world = World::start(Limits::default());
    let mut client = client(&world).await;
    let response = client.get("/of-http1").await;
    let mut names: Vec<_> = response.headers().keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "date", "x-for-all"]);
    assert_eq!(response.headers()["content-length"], "4");
    let date = httpdate::parse_http_date(response.headers()["date"].to_str().unwrap()).expect("a date");
    assert!(SystemTime::now().duration_since(date).unwrap() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_body_that_the_client_aborts_is_never_complete() {
    for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
        let mut world = World::start(Limits::default());
        let mut client = client(&world).await;
        let (_answer, mut stream) = client.send.send_request(request("POST", "/whole"), false).unwrap();
        stream.send_data(Bytes::from_static(b"half of "), false).expect("room");
        world.handler_runs("/whole").await;
        stream.send_reset(reason);
        assert_eq!(within(world.ended.recv()).await.as_deref(), Some("/whole"));
        let report = world.begun.try_recv();
        assert!(
            report.as_ref().is_ok_and(|report| report.starts_with("it was not: ")),
            "{reason}: {report:?}"
        );
    }
}

#[tokio::test]
async fn a_body_that_fails_is_reset_and_trailers_are_forwarded() {
    let world = World::start(Limits::default());
    let mut client = client(&world).await;
    let mut body = client.get("/breaks").await.into_body();
    assert_eq!(within(body.data()).await.expect("data").expect("a part"), "half of ");
    world.service.release.notify_one();
    let error = within(body.data()).await.expect("an end").expect_err("not a good one");
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));

    let mut body = client.get("/trailers").await.into_body();
    assert_eq!(within(body.data()).await.expect("data").expect("all"), "data");
    assert!(within(body.data()).await.is_none());
    assert_eq!(within(body.trailers()).await.expect("a good end").expect("some")["x-sum"], "7");
}

#[tokio::test]
async fn a_handler_is_dropped_when_its_client_cancels_the_request() {
    let mut world = World::start(Limits::default());
    let mut client = client(&world).await;
    for path in ["/slow", "/watch"] {
        let (response, mut stream) = client.send.send_request(request("GET", path), true).unwrap();
        world.handler_runs(path).await;
        stream.send_reset(Reason::CANCEL);
        assert_eq!(within(world.ended.recv()).await.as_deref(), Some(path));
        drop(response);
    }
}

#[tokio::test]
async fn a_client_that_answers_no_ping_is_disconnected_and_one_that_does_stays() {
    let limits = Limits {
        h2_ping_interval: Duration::from_millis(50),
        h2_ping_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let mut world = World::start(limits);
    let mut lively = client(&world).await;
    // Its socket stays open, but no task reads from it.
    let (mut send, connection) = handshake(&world).await;
    let mut connection = Box::pin(connection);
    let (_answer, _) = send.send_request(request("GET", "/watch"), true).unwrap();
    assert!(futures::poll!(&mut connection).is_pending());
    world.handler_runs("/watch").await;
    assert_eq!(
        within(world.ended.recv()).await.as_deref(),
        Some("/watch"),
        "ended though it may still listen"
    );
    assert_eq!(lively.get("/").await.status(), 200);
    assert!(!lively.connection.is_finished());
}

#[tokio::test]
async fn a_client_that_cancels_too_many_requests_gets_enhance_your_calm() {
    let limits = Limits { h2_resets: ResetLimits { burst: 20, per_second: 1 }, ..Limits::default() };
    let mut world = World::start(limits);
    let mut bystander = client(&world).await;
    // A burst up to the limit is allowed, whether or not the responses have begun.
    let mut calm = client(&world).await;
    for path in ["/slow", "/watch"].repeat(10) {
        let (_answer, mut stream) = calm.send.send_request(request("GET", path), true).unwrap();
        world.handler_runs(path).await;
        stream.send_reset(Reason::CANCEL);
        assert_eq!(within(world.ended.recv()).await.as_deref(), Some(path));
    }
    assert_eq!(calm.get("/").await.status(), 200);
    world.handler_runs("/").await;
    assert_eq!(world.handle.stats().too_many_resets, 0);

    let mut wild = client(&world).await;
    let mut resets = 0;
    while !wild.connection.is_finished() && resets < 1000 {
        // At a steady rate, each request was accepted.
        let ready = within(poll_fn(|cx| wild.send.poll_ready(cx))).await;
        if ready.is_err() {
            break;
        }
        let Ok((_answer, mut stream)) = wild.send.send_request(request("GET", "/slow"), true) else { break };
        tokio::select! {
            () = world.handler_runs("/slow") => {}
            _ended = &mut wild.connection => break,
        }
        stream.send_reset(Reason::CANCEL);
        resets += 1;
    }
    assert!((20..1000).contains(&resets), "{resets}");
    crate::support::until("counted", || world.handle.stats().too_many_resets == 1).await;
    let (mut response, _) = match wild.send.send_request(request("GET", "/"), true) {
        Ok(sent) => sent,
        Err(error) => {
            assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
            return assert_eq!(bystander.get("/").await.status(), 200);
        }
    };
    let error = within(&mut response).await.expect_err("the connection is at its end");
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    assert_eq!(bystander.get("/").await.status(), 200);
}
