//! Identities that reach the limit of headers: 1 MiB on both sides.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use pinniped_http_server::{Body, BoxError, body};
use serde_json::json;

use crate::api_server::{Handler, Script, json_response};
use crate::raw::Raw;
use crate::world::{Client, Options, World, eventually};

const NAMESPACES: &str = "/api/v1/namespaces";

fn groups(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("a-group-with-a-rather-long-name-{number:06}")).collect()
}

#[tokio::test]
async fn a_token_of_a_user_with_many_groups_fills_the_headers_to_the_api_server() {
    // With their name and the 32 bytes that HTTP/2 counts for each, they are almost 1 MiB.
    let groups = groups(11_800);
    let user =
        json!({"username": "large", "groups": groups, "extra": {"example.com/k": ["x".repeat(10_000)]}});
    let script = Script { tokens: HashMap::from([("t".to_owned(), user)]), ..Script::default() };
    let world = World::start(script).await;
    let response = world.anonymous().get_with(NAMESPACES, &[("authorization", "Bearer t")]).await;
    assert_eq!(response.status, StatusCode::OK, "{response:?}");
    let seen = world.api.only_seen();
    let mut wanted = groups;
    wanted.push("system:authenticated".to_owned());
    assert!(seen.all("impersonate-group") == wanted);
    assert_eq!(seen.all("impersonate-extra-example.com%2fk")[0].len(), 10_000);
    let size: usize = seen.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    assert!(size > 1_000_000, "{size}");
}

#[tokio::test]
async fn the_headers_of_a_client_are_accepted_up_to_the_limit() {
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
async fn more_extras_than_a_header_map_can_hold_are_refused() {
    let extra: serde_json::Map<_, _> = (0..40_000).map(|n| (format!("k{n}"), json!(["v"]))).collect();
    let user = json!({"username": "large", "extra": extra});
    let script = Script { tokens: HashMap::from([("t".to_owned(), user)]), ..Script::default() };
    let world = World::start(script).await;
    let response = world.anonymous().get_with(NAMESPACES, &[("authorization", "Bearer t")]).await;
    assert_eq!((response.status, response.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert!(world.api.seen().is_empty());
}

/// Returns a request whose head counts this many bytes, filled with one byte.
fn filled(client: &Client<'_>, bytes: usize, byte: u8) -> http::Request<Empty<Bytes>> {
    let mut request = client.request(NAMESPACES).body(Empty::new()).unwrap();
    for number in 0..bytes / 10_000 {
        let name = HeaderName::try_from(format!("x-{number}")).unwrap();
        let value = HeaderValue::from_bytes(&vec![byte; 10_000 - 40]).unwrap();
        request.headers_mut().insert(name, value);
    }
    request
}

#[tokio::test]
async fn a_large_head_uses_a_connection_of_its_own_that_is_closed_afterwards() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    let mut sender = client.h2::<Empty<Bytes>>().await;
    let response = sender.send_request(filled(&client, 20_000, b'a')).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let connections = world.api.connections();
    for round in 1..4 {
        let response = sender.send_request(filled(&client, 200_000, b'a')).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(world.api.connections(), connections + round);
    }
    let response = sender.send_request(filled(&client, 20_000, b'a')).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(world.api.connections(), connections + 3, "what is shared stayed");
    eventually("the unshared ones are closed", || world.api.open_connections() <= connections).await;
}

#[tokio::test]
async fn concurrent_large_heads_are_limited_and_other_requests_continue() {
    let handler: Handler = Arc::new(|request| {
        Box::pin(async move {
            if request.headers().contains_key("x-9") {
                std::future::pending::<()>().await;
            }
            json_response(&json!({"kind": "NamespaceList", "items": []}))
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let mut sender = client.h2::<Empty<Bytes>>().await;
    let waiting: Vec<_> =
        (0..32).map(|_| tokio::spawn(sender.send_request(filled(&client, 100_000, b'a')))).collect();
    eventually("all have come", || world.api.seen().len() == 32).await;
    let response = sender.send_request(filled(&client, 100_000, b'a')).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let response = sender.send_request(filled(&client, 20_000, b'a')).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    waiting.into_iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_head_that_exceeds_the_limit_when_encoded_gets_the_response_of_the_api_server() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    // Sent over HTTP/1.1, because an HTTP/2 client would compress it in the same way.
    let filler = "\\".repeat(79_000);
    let lines: String = (0..13).map(|number| format!("x-{number}: {filler}\r\n")).collect();
    let mut raw =
        Raw::send_request(&client, format!("GET {NAMESPACES} HTTP/1.1\r\nhost: h\r\n{lines}\r\n")).await;
    let (response, _) = raw.rest().await;
    assert!(response.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{response}");
    assert!(response.contains("\r\ncontent-type: text/plain; charset=utf-8\r\n"), "{response}");
    assert!(response.ends_with("\r\n431 Request Header Fields Too Large"), "{response}");
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn a_name_that_is_invalid_over_http1_is_refused_in_a_head_of_several_frames() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    let mut request = filled(&client, 30_000, b'a');
    request.headers_mut().insert(HeaderName::from_lowercase(b"x\"y").unwrap(), HeaderValue::from_static("z"));
    let mut sender = client.h2::<Empty<Bytes>>().await;
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn an_endless_head_of_a_proxied_server_terminates_no_watch() {
    let handler: Handler = Arc::new(|request| {
        Box::pin(async move {
            if request.uri().path().ends_with("/proxy/") {
                let mut response = Response::new(body::empty());
                for number in 0..40 {
                    let name = HeaderName::try_from(format!("x-{number}")).unwrap();
                    let value = HeaderValue::from_bytes(&vec![b'a'; 100_000]).unwrap();
                    response.headers_mut().insert(name, value);
                }
                return response;
            }
            let first =
                futures::stream::once(async { Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"{}\n"))) });
            Response::new(Body::new(StreamBody::new(first.chain(futures::stream::pending()))))
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let (bystander, client) = (world.certificate("u", &[]), world.certificate("v", &[]));
    let mut sender = bystander.h2::<Empty<Bytes>>().await;
    let watch = bystander.request("/api/v1/pods?watch=true").body(Empty::new()).unwrap();
    let mut watch = sender.send_request(watch).await.unwrap().into_body();
    assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "{}\n");
    for _ in 0..3 {
        let received = client.get("/api/v1/namespaces/n/services/s/proxy/").await;
        assert_eq!(received.status, StatusCode::BAD_GATEWAY);
    }
    assert!(futures::poll!(std::pin::pin!(watch.frame())).is_pending(), "the watch has ended");
    assert!(world.upstream.stats().streams >= 1);
}
