//! Connections are provisional until their client is authenticated; only connections of users have
//! the larger limits and stay open.

use std::collections::HashMap;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Empty;
use hyper::client::conn::http2::SendRequest;
use pinniped_http_server::{Capacity, Limits};
use serde_json::json;

use crate::api_server::Script;
use crate::world::{Client, Options, World, eventually};

/// Opens a connection of a client, and returns it with the status of its request for this path.
async fn send_request(
    client: &Client<'_>,
    path: &str,
    token: Option<&str>,
) -> (SendRequest<Empty<Bytes>>, StatusCode) {
    let mut request = client.request(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut sender = client.h2().await;
    let response = sender.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
    (sender, response.status())
}

#[tokio::test]
async fn connections_of_users_are_confirmed_and_those_of_other_clients_are_not() {
    let capacity = Capacity::default();
    let limits = Limits { capacity: capacity.clone(), ..Limits::default() };
    let tokens = HashMap::from([("good".to_owned(), json!({"username": "gina"}))]);
    let script = Script { tokens, ..Script::default() };
    let world = World::start_with(script, Options { limits, ..Options::default() }).await;
    let are = async |open: u64, provisional: u64, which: &str| {
        eventually(which, || {
            let stats = capacity.stats();
            (stats.connections_open, stats.connections_provisional) == (open, provisional)
        })
        .await;
    };
    let _by_certificate = world.certificate("alice", &[]).h2::<Empty<Bytes>>().await;
    are(1, 0, "a certificate is known before any request").await;
    let foreign = world.foreign_certificate("alice");
    let (_foreign, _status) = send_request(&foreign, "/healthz", None).await;
    are(2, 1, "the certificate of an unknown authority is nobody's").await;
    let (_anonymous, status) = send_request(&world.anonymous(), "/healthz", None).await;
    assert_eq!(status, StatusCode::OK);
    are(3, 2, "a request without credentials confirms nothing, although it is answered").await;
    let (_bad, status) = send_request(&world.anonymous(), "/api/v1/namespaces", Some("bad")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    are(4, 3, "nor does a token that is refused").await;
    let (_good, status) = send_request(&world.anonymous(), "/api/v1/namespaces", Some("good")).await;
    assert_eq!(status, StatusCode::OK);
    are(5, 3, "a token of a user confirms its connection").await;
}
