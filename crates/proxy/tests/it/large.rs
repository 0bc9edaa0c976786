//! Identities that fill what headers may hold: 1 MiB on either side.

use std::collections::HashMap;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Empty;
use serde_json::json;

use crate::api_server::Script;
use crate::world::{Options, World};

const NAMESPACES: &str = "/api/v1/namespaces";

fn groups(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("a-group-with-a-rather-long-name-{number:06}")).collect()
}

#[tokio::test]
async fn a_token_of_a_user_with_many_groups_fills_the_headers_to_the_api_server() {
    // With their name, and 32 bytes that HTTP/2 counts for each, they make nearly 1 MiB.
    let groups = groups(11_800);
    let user =
        json!({"username": "large", "groups": groups, "extra": {"example.com/k": ["x".repeat(10_000)]}});
    let script = Script { tokens: HashMap::from([("t".to_owned(), user)]), ..Script::default() };
    let world = World::start(script).await;
    let answer = world.nobody().get_with(NAMESPACES, &[("authorization", "Bearer t")]).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let seen = world.api.only_seen();
    let mut wanted = groups;
    wanted.push("system:authenticated".to_owned());
    assert!(seen.all("impersonate-group") == wanted);
    assert_eq!(seen.all("impersonate-extra-example.com%2fk")[0].len(), 10_000);
    let size: usize = seen.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    assert!(size > 1_000_000, "{size}");
}

#[tokio::test]
async fn a_client_fills_its_headers_with_groups_and_one_more_is_too_many() {
    let world =
        World::start_with(Script::default(), Options { front_proxy: true, ..Options::default() }).await;
    let front_proxy = world.front_proxy();
    let mut sender = front_proxy.h2::<Empty<Bytes>>().await;
    for (count, status) in
        [(11_800, StatusCode::OK), (13_500, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE), (1, StatusCode::OK)]
    {
        let mut request = front_proxy.request(NAMESPACES).header("x-remote-user", "large");
        for group in groups(count) {
            request = request.header("x-remote-group", group);
        }
        let response = sender.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{count}");
        if status == StatusCode::OK {
            let seen = world.api.seen().pop().unwrap();
            assert_eq!(seen.all("impersonate-group").len(), count + 1);
        }
    }
    assert_eq!(world.api.seen().len(), 2);
}

#[tokio::test]
async fn more_extras_than_a_request_can_have_names_are_refused_without_harm() {
    let extra: serde_json::Map<_, _> = (0..40_000).map(|n| (format!("k{n}"), json!(["v"]))).collect();
    let user = json!({"username": "large", "extra": extra});
    let script = Script { tokens: HashMap::from([("t".to_owned(), user)]), ..Script::default() };
    let world = World::start(script).await;
    let answer = world.nobody().get_with(NAMESPACES, &[("authorization", "Bearer t")]).await;
    assert_eq!((answer.status, answer.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert!(world.api.seen().is_empty());
}
