//! Clients that try to be another user: for any headers of a client, no request reaches the API
//! server under another identity than that of its credentials.
//!
//! [`model::identity`] computes the expected identity with a second, simple implementation.
//! Requests are random combinations of relevant parts, from a fixed seed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Empty;
use serde_json::json;

use crate::api_server::{Script, Seen, describe};
use crate::world::{Client, OUR_TOKEN, Options, World};

use model::Identity;
use random_headers::{RandomHeaders, in_base64};

mod model;
mod random_headers;

/// The client of a request, by certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Nobody,
    /// Has no permission to impersonate.
    Alice,
    /// A member of `system:masters`.
    Root,
    /// Has a certificate of an untrusted CA.
    Stranger,
    /// The cluster's front proxy.
    FrontProxy,
}

const ACTORS: [Actor; 5] = [Actor::Nobody, Actor::Alice, Actor::Root, Actor::Stranger, Actor::FrontProxy];

/// A header of a request.
type Header = (String, Vec<u8>);

/// Tokens that the API server accepts; their users are below.
const TOKENS: [&str; 4] = ["token-of-tina", "token-with-uid", "token-with-extra", "token-with-bad-key"];

fn script() -> Script {
    let users = [
        // May impersonate users, but no groups, UIDs or extras.
        json!({"username": "tina", "groups": ["t"]}),
        json!({"username": "system:serviceaccount:a:b", "uid": "7", "groups": ["s"]}),
        json!({"username": "eve", "extra": {"example.com/k": ["v", "w"]}}),
        json!({"username": "mallory", "extra": {"party~~time": ["v"]}}),
    ];
    let tokens: HashMap<_, _> = TOKENS.iter().map(|token| (*token).to_owned()).zip(users).collect();
    Script {
        tokens,
        uids: true,
        policy: Arc::new(|spec| {
            let requested = describe(spec);
            !requested.starts_with("impersonate")
                || (spec["user"] == "tina" && requested.starts_with("impersonate /v1 users/"))
        }),
        ..Script::default()
    }
}

async fn world() -> World {
    let options = Options { uid_impersonation: true, front_proxy: true, ..Options::default() };
    World::start_with(script(), options).await
}

fn client(world: &World, actor: Actor) -> Client<'_> {
    match actor {
        Actor::Nobody => world.anonymous(),
        Actor::Alice => world.certificate("alice", &["a"]),
        Actor::Root => world.certificate("root", &["system:masters"]),
        Actor::Stranger => world.foreign_certificate("root"),
        Actor::FrontProxy => world.front_proxy(),
    }
}

/// Compares the request that arrived, if any, with the expected one.
fn check(seen: Option<&Seen>, expected: Option<&Identity>, what: &str) {
    let (seen, expected) = match (seen, expected) {
        (None, None) => return,
        (Some(seen), Some(expected)) => (seen, expected),
        (seen, expected) => panic!("{what}\n arrived: {seen:?}\nexpected: {expected:?}"),
    };
    let authorization = match &expected.passed_through {
        Some(token) => vec![format!("Bearer {token}")],
        None => vec![format!("Bearer {OUR_TOKEN}")],
    };
    assert_eq!(seen.all("authorization"), authorization, "{what}");
    let mut arrived = BTreeMap::new();
    for name in seen.names_starting_with("impersonate") {
        let mut values = seen.all(&name);
        if name == model::CREDENTIAL_ID && values.iter().all(|id| id.starts_with("X509SHA256=")) {
            values = vec!["(of the certificate)".to_owned()];
        }
        if name == model::ORIGINAL_USER {
            values = values.iter().map(|value| model::name_of_original(value)).collect();
        }
        arrived.insert(name, values);
    }
    assert_eq!(arrived, expected.headers, "{what}");
    assert_eq!(seen.names_starting_with("x-remote"), [""; 0], "{what}");
    for (name, value) in &seen.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        let leaks = TOKENS.iter().any(|token| {
            name != "authorization" && (value.contains(token) || value.contains(&in_base64(token)))
        });
        assert!(!leaks, "{what}\nheader {name}: {value}");
    }
}

fn request(path: &str, headers: &[Header]) -> http::request::Builder {
    let mut builder = Request::get(path);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        builder = builder.header(name, HeaderValue::from_bytes(value).unwrap());
    }
    builder
}

/// Sends the requests, checks each, and returns how many arrived.
fn check_all(world: &World, sent: &[(Actor, Vec<Header>)]) -> usize {
    let all = world.api.seen();
    let mut by_path: HashMap<&str, &Seen> = HashMap::new();
    for seen in &all {
        assert!(by_path.insert(seen.uri.path(), seen).is_none(), "{seen:?} arrived twice");
    }
    for (number, (actor, headers)) in sent.iter().enumerate() {
        let shown: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.escape_ascii())).collect();
        let expected = model::identity(*actor, headers);
        let path = format!("/api/v1/namespaces/case-{number}");
        let seen = by_path.remove(path.as_str());
        check(seen, expected.as_ref(), &format!("{actor:?}, {path}, {shown:#?}"));
    }
    assert!(by_path.is_empty(), "{by_path:?}");
    all.len()
}

#[tokio::test]
async fn no_headers_change_the_identity_over_http2() {
    let world = world().await;
    let mut random = RandomHeaders::new(0x1dea);
    let mut sent = Vec::new();
    for actor in ACTORS {
        let mut sender = client(&world, actor).h2::<Empty<Bytes>>().await;
        for _ in 0..400 {
            let headers = random.next(false);
            let path = format!("https://proxy.example/api/v1/namespaces/case-{}", sent.len());
            let request = request(&path, &headers).body(Empty::new()).unwrap();
            let _answer = sender.send_request(request).await.unwrap();
            sent.push((actor, headers));
        }
    }
    let arrived = check_all(&world, &sent);
    assert!((200..1800).contains(&arrived), "{arrived} of {} tell little", sent.len());
}

#[tokio::test]
async fn no_headers_change_the_identity_over_http1() {
    let world = world().await;
    let mut random = RandomHeaders::new(0xface);
    let mut sent = Vec::new();
    for actor in ACTORS {
        let client = client(&world, actor);
        let mut sender = client.h1().await;
        for _ in 0..200 {
            let headers = random.next(true);
            let path = format!("/api/v1/namespaces/case-{}", sent.len());
            let request = request(&path, &headers).header("host", "proxy.example");
            let request = request.body(pinniped_http_server::body::empty()).unwrap();
            if sender.ready().await.is_err() {
                sender = client.h1().await;
            }
            drop(crate::world::ReceivedResponse::read(sender.send_request(request).await.unwrap()).await);
            sent.push((actor, headers));
        }
    }
    let arrived = check_all(&world, &sent);
    assert!((100..900).contains(&arrived), "{arrived} of {} tell little", sent.len());
}
