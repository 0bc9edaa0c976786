//! Credentials and their validity.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Empty;
use pinniped_delegated_auth::bearer::EXTRA_SPACE_WARNING;
use serde_json::json;

use crate::api_server::Script;
use crate::world::{Client, OUR_TOKEN, Options, PATIENCE, ReceivedResponse, World, eventually};

const NAMESPACES: &str = "/api/v1/namespaces";

fn script() -> Script {
    let users = [
        ("good", json!({"username": "gina", "groups": ["g"]})),
        ("with-uid", json!({"username": "system:serviceaccount:a:b", "uid": "7"})),
    ];
    let tokens: HashMap<_, _> = users.into_iter().map(|(token, user)| (token.to_owned(), user)).collect();
    Script { tokens, ..Script::default() }
}

/// Sends a GET request with headers whose values are bytes.
async fn get(client: &Client<'_>, headers: &[(&str, &[u8])]) -> ReceivedResponse {
    let mut request = client.request(NAMESPACES);
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    client.send(request.body(()).unwrap()).await
}

#[tokio::test]
async fn only_a_bearer_token_in_the_first_authorization_header_authenticates() {
    let (anonymous, gina, account) = ("system:anonymous", "gina", "(passed through)");
    let long = [b"Bearer ", "x".repeat(60_000).as_bytes()].concat();
    for (values, wanted) in [
        (&[&b"Bearer good"[..]][..], gina),
        (&[b"bEARER good"], gina),
        (&[b"  Bearer good  "], gina),
        (&[b"Bearer good and more"], gina),
        (&[b"Bearer good", b"Bearer bad"], gina),
        (&[b"Bearer good", b"Bearer with-uid"], gina),
        (&[b"Bearer with-uid", b"Bearer good"], account),
        (&[b"Bearer bad", b"Bearer good"], "401"),
        (&[b"Basic eA==", b"Bearer good"], anonymous),
        (&[b"", b"Bearer good"], anonymous),
        (&[b"Bearer bad"], "401"),
        (&[b"Bearer good,"], "401"),
        (&[b"Bearer good, Bearer good"], "401"),
        (&[b"Bearer \"good\""], "401"),
        (&[b"Bearer go\xffod"], "401"),
        (&[b"Bearer \xff"], "401"),
        (&[&long], "401"),
        (&[b"Bearer\tgood"], anonymous),
        (&[b"Bearer  good"], anonymous),
        (&[b"Bearer"], anonymous),
        (&[b"Bearer "], anonymous),
        (&[b"Bearer: good"], anonymous),
        (&[b"BearerX good"], anonymous),
        (&[b"\xffBearer good"], anonymous),
        (&[b"good"], anonymous),
        (&[b"Basic Z29vZDo="], anonymous),
        (&[b"Negotiate good"], anonymous),
        (&[b""], anonymous),
    ] {
        let world = World::start(script()).await;
        let headers: Vec<_> = values.iter().map(|value| ("authorization", *value)).collect();
        let response = get(&world.anonymous(), &headers).await;
        let what: Vec<_> = values.iter().map(|v| v[..v.len().min(40)].escape_ascii().to_string()).collect();
        if wanted == "401" {
            assert_eq!(response.status, StatusCode::UNAUTHORIZED, "{what:?}");
            assert!(world.api.seen().is_empty(), "{what:?}");
            continue;
        }
        assert_eq!(response.status, StatusCode::OK, "{what:?}: {response:?}");
        let seen = world.api.only_seen();
        if wanted == account {
            assert_eq!(seen.all("authorization"), ["Bearer with-uid"], "{what:?}");
            assert_eq!(seen.names_starting_with("impersonate"), [""; 0], "{what:?}");
        } else {
            assert_eq!(seen.all("authorization"), [format!("Bearer {OUR_TOKEN}")], "{what:?}");
            assert_eq!(seen.all("impersonate-user"), [wanted], "{what:?}");
        }
    }
}

#[tokio::test]
async fn the_warning_about_a_space_appears_only_when_the_token_was_read() {
    let world = World::start_with(script(), Options { front_proxy: true, ..Options::default() }).await;
    let (spaced, front) = (("authorization", &b"Bearer  good"[..]), ("x-remote-user", &b"fred"[..]));
    for (client, headers, warned) in [
        (world.anonymous(), vec![spaced], true),
        (world.foreign_certificate("u"), vec![spaced], true),
        (world.certificate("u", &[]), vec![spaced], false),
        (world.front_proxy(), vec![spaced, front], false),
        (world.front_proxy(), vec![spaced], true),
        (world.anonymous(), vec![("authorization", &b"Bearer good"[..])], false),
    ] {
        let response = get(&client, &headers).await;
        let wanted = format!("299 - \"{EXTRA_SPACE_WARNING}\"");
        assert_eq!(response.all("warning"), if warned { vec![wanted] } else { vec![] }, "{headers:?}");
    }
}

#[tokio::test]
async fn a_certificate_that_expires_on_an_open_connection_is_refused_with_the_next_request() {
    let world = World::start(script()).await;
    // A busy machine may need longer for the handshake than the certificate is valid. Then the next
    // attempt has more time.
    let mut attempts = [3, 6, 12].into_iter();
    let (client, mut sender) = loop {
        let seconds = attempts.next().expect("a request while the certificate is valid");
        // Certificates have whole seconds, so it is valid for at least one less.
        let client = world.certificate_for(Duration::from_secs(seconds), "shortly");
        let mut sender = client.h2::<Empty<Bytes>>().await;
        let request = client.request(NAMESPACES).body(Empty::new()).unwrap();
        if sender.send_request(request).await.unwrap().status() == StatusCode::OK {
            break (client, sender);
        }
    };
    let expired = async {
        loop {
            let request = client.request(NAMESPACES).body(Empty::new()).unwrap();
            match sender.send_request(request).await.unwrap().status() {
                StatusCode::UNAUTHORIZED => return,
                status => assert_eq!(status, StatusCode::OK),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, expired).await.expect("the end of the certificate");
    // A token authenticates on the same connection.
    let request =
        client.request(NAMESPACES).header("authorization", "Bearer good").body(Empty::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK);
    assert_eq!(world.api.seen().last().unwrap().all("impersonate-user"), ["gina"]);
}

#[tokio::test]
async fn anonymous_access_is_probed_again_and_a_failed_probe_changes_nothing() {
    let (yes, no, broken) =
        (StatusCode::FORBIDDEN, StatusCode::UNAUTHORIZED, StatusCode::INTERNAL_SERVER_ERROR);
    let script = Script { healthz: no, nodes: no, ..script() };
    let options = Options { probe_interval: Duration::from_millis(50), ..Options::default() };
    let world = World::start_with(script, options).await;
    let nobody = world.anonymous();
    let statuses = async || {
        let mut statuses = Vec::new();
        for path in ["/healthz", "/readyz/etcd"] {
            statuses.push(nobody.get(path).await.status.as_u16());
        }
        statuses
    };
    assert_eq!(statuses().await, [401, 401]);
    for (healthz, nodes, wanted) in [
        (yes, no, [200, 401]),
        (broken, broken, [200, 401]),
        (yes, yes, [200, 200]),
        // An incomplete result is ignored.
        (no, broken, [200, 200]),
        (no, no, [401, 401]),
    ] {
        world.api.set_probes(healthz, nodes);
        let before = world.api.probes();
        // One round may be in progress, the next one is complete; a probe begins only after the
        // previous response was read.
        eventually("new probes", || world.api.probes() > before + 4).await;
        assert_eq!(statuses().await, wanted, "{healthz} {nodes}");
    }
}

#[tokio::test]
async fn names_with_surrounding_spaces_arrive_unchanged() {
    let mut script = script();
    script.tokens.insert("spaces".to_owned(), json!({"username": " admin", "groups": ["g "]}));
    script.policy = Arc::new(|spec| spec["user"] == " admin" && spec["groups"][0] == "g ");
    let world = World::start(script).await;
    let token = ("authorization", &b"Bearer spaces"[..]);
    assert_eq!(get(&world.anonymous(), &[token]).await.status, StatusCode::OK);
    let seen = world.api.only_seen();
    assert_eq!(seen.all("impersonate-user"), [" admin"]);
    assert_eq!(seen.all("impersonate-group"), ["g ", "system:authenticated"]);

    // Upgrades use HTTP/1.1, which would change the name to `admin`.
    for (upgrade, status) in [
        (&[("connection", "upgrade")][..], StatusCode::OK),
        (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], StatusCode::BAD_GATEWAY),
    ] {
        let mut request =
            Request::get(NAMESPACES).header("host", "h").header("authorization", "Bearer spaces");
        for (name, value) in upgrade {
            request = request.header(*name, *value);
        }
        let request = request.body(pinniped_http_server::body::empty()).unwrap();
        let response = world.anonymous().h1().await.send_request(request).await.unwrap();
        assert_eq!(response.status(), status, "{upgrade:?}");
    }
    let seen = world.api.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].all("impersonate-user"), [" admin"]);
}
