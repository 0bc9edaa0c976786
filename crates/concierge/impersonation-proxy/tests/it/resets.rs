//! Clients that open streams and reset them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use pinniped_http_server::{Body, BoxError, body};
use pinniped_impersonation_proxy::impersonator::InFlightLimits;
use tokio::sync::mpsc;

use crate::api_server::{Handler, Script};
use crate::world::{Client, Options, PATIENCE, World, eventually};

/// How long a request counts at least that was given up, with a grain of salt for two clocks.
const LINGERS: Duration = Duration::from_millis(1900);

/// Never answers, and tells when it is asked.
fn silent() -> (Handler, mpsc::UnboundedReceiver<Instant>) {
    let (sender, asked) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |_| {
        sender.send(Instant::now()).unwrap();
        Box::pin(std::future::pending())
    });
    (handler, asked)
}

/// A user who has three permits opens nine streams and resets each of them once it was sent on.
async fn nine_resets(request: impl Fn(&Client<'_>) -> Request<Body>) {
    // A quarter is for users who hold little.
    const PERMITS: usize = 4;
    const ONE_USERS: usize = 3;
    let (handler, mut asked) = silent();
    let in_flight =
        InFlightLimits { short: PERMITS, waiting: 100, patience: PATIENCE, ..InFlightLimits::default() };
    let script = Script { handler, ..Script::default() };
    let world = World::start_with(script, Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    let sender = client.h2::<Body>().await;
    let mut came = Vec::new();
    for _ in 0..3 * ONE_USERS {
        let mut sender = sender.clone();
        tokio::select! {
            _answered = sender.send_request(request(&client)) => panic!("nothing is answered"),
            arrived = asked.recv() => came.push(arrived.unwrap()),
        }
        // Here it is reset.
    }
    // One user gets no more than all of the permits in the time that one of them is kept for a request that was reset.
    for (first, next) in came.iter().zip(&came[ONE_USERS..]) {
        let apart = next.duration_since(*first);
        assert!(apart >= LINGERS, "{apart:?}");
    }
}

#[tokio::test]
async fn a_client_that_resets_what_was_sent_on_keeps_its_permits_for_a_while() {
    nine_resets(|client| client.request("/x").body(body::empty()).unwrap()).await;
}

#[tokio::test]
async fn a_client_that_breaks_off_its_bodies_keeps_its_permits_for_a_while() {
    nine_resets(|client| {
        let endless = futures::stream::pending::<Result<Frame<Bytes>, BoxError>>();
        let mut request = client.request("/x").body(StreamBody::new(endless).boxed_unsync()).unwrap();
        *request.method_mut() = Method::POST;
        request
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_is_reset_counts_on_its_connection_for_a_while() {
    let (handler, mut asked) = silent();
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let mut sender = client.h2::<Empty<Bytes>>().await;
    let path = "/api/v1/pods?watch=true";
    tokio::select! {
        _answered = sender.send_request(client.request(path).body(Empty::new()).unwrap()) => panic!("nothing is answered"),
        arrived = asked.recv() => drop(arrived.unwrap()),
    }
    let reset = Instant::now();
    eventually("the stream no longer counts", || world.upstream.stats().streams == 0).await;
    assert!(reset.elapsed() >= LINGERS, "{:?}", reset.elapsed());
}

#[tokio::test]
async fn an_answer_that_is_complete_gives_its_permit_back_at_once() {
    let in_flight = InFlightLimits { short: 1, waiting: 4, patience: PATIENCE, ..InFlightLimits::default() };
    let world = World::start_with(Script::default(), Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    let all = async {
        for _ in 0..50 {
            assert_eq!(client.get("/api/v1/pods").await.status, StatusCode::OK);
        }
    };
    // Less than a fifth of what it would take if each lingered.
    tokio::time::timeout(PATIENCE, all).await.expect("none lingers");
    eventually("no stream counts", || world.upstream.stats().streams == 0).await;
}
