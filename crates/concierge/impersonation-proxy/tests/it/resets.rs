//! Clients that open streams and reset them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use pinniped_http_server::{Body, BoxError, body};
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use tokio::sync::mpsc;

use crate::api_server::{Handler, Script};
use crate::world::{Client, Options, PATIENCE, World, eventually};

/// Minimum time for which a cancelled request counts, minus a tolerance for two clocks.
const LINGERS: Duration = Duration::from_millis(1900);

/// Never responds, and reports when a request arrives.
fn silent() -> (Handler, mpsc::UnboundedReceiver<Instant>) {
    let (sender, requested) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |_| {
        sender.send(Instant::now()).unwrap();
        Box::pin(std::future::pending())
    });
    (handler, requested)
}

/// A user with three permits opens nine streams and resets each after its request was forwarded.
async fn nine_resets(request: impl Fn(&Client<'_>) -> Request<Body>) {
    // A quarter is reserved for users with few permits.
    const PERMITS: usize = 4;
    const ONE_USERS: usize = 3;
    let (handler, mut requested) = silent();
    let in_flight =
        InFlightLimits { short: PERMITS, waiting: 100, queue_timeout: PATIENCE, ..InFlightLimits::PROXY };
    let script = Script { handler, ..Script::default() };
    let world = World::start_with(script, Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    let sender = client.h2::<Body>().await;
    let mut came = Vec::new();
    for _ in 0..3 * ONE_USERS {
        let mut sender = sender.clone();
        tokio::select! {
            _answered = sender.send_request(request(&client)) => panic!("nothing is answered"),
            arrived = requested.recv() => came.push(arrived.unwrap()),
        }
        // The stream is reset here.
    }
    // During the time for which a permit is retained after a reset, one user gets no more than all
    // of its permits.
    for (first, next) in came.iter().zip(&came[ONE_USERS..]) {
        let apart = next.duration_since(*first);
        assert!(apart >= LINGERS, "{apart:?}");
    }
}

#[tokio::test]
async fn a_reset_of_a_forwarded_request_retains_its_permit_for_a_while() {
    nine_resets(|client| client.request("/x").body(body::empty()).unwrap()).await;
}

#[tokio::test]
async fn a_cancelled_body_retains_its_permit_for_a_while() {
    nine_resets(|client| {
        let endless = futures::stream::pending::<Result<Frame<Bytes>, BoxError>>();
        let mut request = client.request("/x").body(Body::new(StreamBody::new(endless))).unwrap();
        *request.method_mut() = Method::POST;
        request
    })
    .await;
}

#[tokio::test]
async fn a_reset_stream_counts_on_its_connection_for_a_while() {
    let (handler, mut requested) = silent();
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let mut sender = client.h2::<Empty<Bytes>>().await;
    let path = "/api/v1/pods?watch=true";
    tokio::select! {
        _answered = sender.send_request(client.request(path).body(Empty::new()).unwrap()) => panic!("nothing is answered"),
        arrived = requested.recv() => drop(arrived.unwrap()),
    }
    let reset = Instant::now();
    eventually("the stream no longer counts", || world.upstream.stats().streams == 0).await;
    assert!(reset.elapsed() >= LINGERS, "{:?}", reset.elapsed());
}

#[tokio::test]
async fn a_response_that_violates_the_protocol_counts_on_its_connection_for_a_while() {
    let handler: Handler = Arc::new(|_| {
        Box::pin(async {
            let mut response = Response::new(body::full("more than one byte"));
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("1"));
            response
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let mut sender = client.h2::<Empty<Bytes>>().await;
    let request = client.request("/x").body(Empty::new()).unwrap();
    let read = async { sender.send_request(request).await?.into_body().collect().await };
    read.await.expect_err("the proxy resets the stream");
    let reset = Instant::now();
    eventually("the stream no longer counts", || world.upstream.stats().streams == 0).await;
    assert!(reset.elapsed() >= LINGERS, "{:?}", reset.elapsed());
}

#[tokio::test]
async fn a_complete_response_releases_its_permit_immediately() {
    let in_flight = InFlightLimits { short: 1, waiting: 4, queue_timeout: PATIENCE, ..InFlightLimits::PROXY };
    let world = World::start_with(Script::default(), Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    let all = async {
        for _ in 0..50 {
            assert_eq!(client.get("/api/v1/pods").await.status, StatusCode::OK);
        }
    };
    // Less than a fifth of the time that it would take if each permit were retained.
    tokio::time::timeout(PATIENCE, all).await.expect("none lingers");
    eventually("no stream counts", || world.upstream.stats().streams == 0).await;
}
