//! All forms of `Impersonate-*` headers.

use std::sync::Arc;

use http::{HeaderValue, StatusCode};

use crate::api_server::{Script, describe};
use crate::raw::Raw;
use crate::world::{Client, Options, ReceivedResponse, World};

const NAMESPACES: &str = "/api/v1/namespaces";
const ORIGINAL: &str = "impersonate-extra-original-user-info.impersonation-proxy.concierge.pinniped.dev";

async fn world() -> World {
    let options = Options { uid_impersonation: true, ..Options::default() };
    World::start_with(Script { uids: true, ..Script::default() }, options).await
}

async fn get(client: &Client<'_>, headers: &[(&str, &[u8])]) -> ReceivedResponse {
    let mut request = client.request(NAMESPACES);
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    client.send(request.body(()).unwrap()).await
}

#[tokio::test]
async fn every_form_of_impersonation_headers_is_accepted_or_refused() {
    const USER: (&str, &[u8]) = ("impersonate-user", b"u");
    let without = |dump: &str| (400, format!("requested {dump} without impersonating a user name"));
    let not_text = |name: &str| (400, format!("header {name} is not valid UTF-8"));
    let unknown = || (500, "Internal error occurred: invalid impersonation".to_owned());
    let unable = || {
        let text = "Internal error occurred: unimplemented functionality - unable to act as current user";
        (500, text.to_owned())
    };
    let world = world().await;
    let admin = world.certificate("admin", &["system:masters"]);
    for (headers, (code, message)) in [
        // Without a user name.
        (
            vec![("impersonate-uid", &b"007"[..])],
            without(
                r#"&user.DefaultInfo{Name:"", UID:"007", Groups:[]string(nil), Extra:map[string][]string(nil)}"#,
            ),
        ),
        (
            vec![("impersonate-group", b"g"), ("impersonate-group", "ü\"".as_bytes())],
            without(
                r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g", "ü\""}, Extra:map[string][]string(nil)}"#,
            ),
        ),
        (
            vec![("impersonate-extra-foo", b"g"), ("impersonate-user", b"")],
            without(
                r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"foo":[]string{"g"}}}"#,
            ),
        ),
        (
            vec![("impersonate-group", b"")],
            without(
                r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{""}, Extra:map[string][]string(nil)}"#,
            ),
        ),
        // The first value applies, even if it is empty.
        (
            vec![("impersonate-user", b""), USER, ("impersonate-group", b"g")],
            without(
                r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)}"#,
            ),
        ),
        (vec![("impersonate-user", b""), USER], unknown()),
        (vec![("impersonate-user", b"")], unknown()),
        (vec![("impersonate-uid", b"")], unknown()),
        // Headers of unknown kinds.
        (vec![USER, ("impersonate-something", b"x")], unknown()),
        (vec![USER, ("impersonate", b"x")], unknown()),
        (vec![USER, ("impersonate-", b"x")], unknown()),
        (vec![USER, ("impersonate-users", b"x")], unknown()),
        (vec![USER, ("impersonate-extra", b"x")], unknown()),
        (vec![USER, ("impersonate_user", b"x")], unknown()),
        (vec![USER, ("impersonated", b"")], unknown()),
        (vec![("impersonate-something", b"x")], unknown()),
        // Values that are not UTF-8.
        (vec![("impersonate-user", b"\xff")], not_text("impersonate-user")),
        (vec![("impersonate-user", b"a\xc3(")], not_text("impersonate-user")),
        (vec![USER, ("impersonate-uid", b"\x80")], not_text("impersonate-uid")),
        (
            vec![USER, ("impersonate-group", b"g"), ("impersonate-group", b"\xfe")],
            not_text("impersonate-group"),
        ),
        (vec![USER, ("impersonate-extra-k", b"\xed\xa0\x80")], not_text("impersonate-extra-k")),
        (vec![USER, ("impersonate-extra-%ff", b"v")], not_text("impersonate-extra-%ff")),
        (vec![("impersonate-group", b"\xfe")], not_text("impersonate-group")),
        // Keys that cannot be written, or are reserved.
        (vec![USER, ("impersonate-extra-", b"v")], unable()),
        (vec![USER, ("impersonate-extra-a%zz", b"v")], unable()),
        (vec![USER, ("impersonate-extra-%", b"v")], unable()),
        (vec![USER, ("impersonate-extra-a%20b", b"v")], unable()),
        (vec![USER, ("impersonate-extra-a%41", b"v")], unable()),
        (vec![USER, ("impersonate-extra-%c3%bc", b"v")], unable()),
        (vec![USER, ("impersonate-extra-party~~time", b"v")], unable()),
        (vec![USER, (ORIGINAL, b"v")], unable()),
        (vec![USER, ("impersonate-extra-x.impersonation-proxy%2econcierge.pinniped.dev", b"v")], unable()),
    ] {
        let response = get(&admin, &headers).await;
        let what: Vec<_> = headers.iter().map(|(name, v)| format!("{name}: {}", v.escape_ascii())).collect();
        assert_eq!((response.status.as_u16(), response.message()), (code, message), "{what:?}");
    }
    assert_eq!(world.api.seen().len(), 0);
}

#[tokio::test]
async fn accepted_impersonations_arrive_unchanged() {
    for (headers, wanted) in [
        (&[("impersonate-user", "ü"), ("impersonate-user", "second")][..], &[("impersonate-user", "ü")][..]),
        (
            &[("impersonate-user", "a, b"), ("impersonate-group", "c,d")],
            &[
                ("impersonate-group", "c,d"),
                ("impersonate-group", "system:authenticated"),
                ("impersonate-user", "a, b"),
            ],
        ),
        (
            &[("impersonate-user", "u"), ("impersonate-uid", "1"), ("impersonate-uid", "2")],
            &[("impersonate-uid", "1")],
        ),
        (&[("impersonate-user", "u"), ("impersonate-uid", "")], &[("impersonate-user", "u")]),
        (
            &[("impersonate-user", "u"), ("impersonate-group", ""), ("impersonate-group", "g")],
            &[
                ("impersonate-group", ""),
                ("impersonate-group", "g"),
                ("impersonate-group", "system:authenticated"),
            ],
        ),
        (
            &[
                ("impersonate-user", "u"),
                ("impersonate-extra-acme.io%2ffoo", "1"),
                ("impersonate-extra-acme.io%2Ffoo", "2"),
            ],
            &[("impersonate-extra-acme.io%2ffoo", "1"), ("impersonate-extra-acme.io%2ffoo", "2")],
        ),
        (&[("impersonate-user", "u"), ("impersonate-extra-%61%2e%62", "")], &[("impersonate-extra-a.b", "")]),
        (
            &[("impersonate-user", "system:anonymous"), ("impersonate-group", "system:authenticated")],
            &[("impersonate-group", "system:authenticated"), ("impersonate-group", "system:unauthenticated")],
        ),
        (
            &[("impersonate-user", "system:serviceaccount:a:b")],
            &[
                ("impersonate-group", "system:serviceaccounts"),
                ("impersonate-group", "system:serviceaccounts:a"),
                ("impersonate-group", "system:authenticated"),
            ],
        ),
        (
            &[("impersonate-user", "system:node:n")],
            &[("impersonate-group", "system:nodes"), ("impersonate-group", "system:authenticated")],
        ),
    ] {
        let world = world().await;
        let admin = world.certificate("admin", &["system:masters"]);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let response = get(&admin, &headers).await;
        assert_eq!(response.status, StatusCode::OK, "{headers:?}: {response:?}");
        let seen = world.api.only_seen();
        for (name, _) in wanted {
            let values: Vec<_> = wanted.iter().filter(|(n, _)| n == name).map(|(_, value)| *value).collect();
            assert_eq!(seen.all(name), values, "{headers:?}");
        }
        assert!(seen.all(ORIGINAL)[0].starts_with(r#"{"username":"admin","#), "{headers:?}");
    }
}

#[tokio::test]
async fn control_characters_in_headers_are_refused_without_a_review() {
    for header in [
        &b"Impersonate-User: a\x00b"[..],
        b"Impersonate-User: a\x01b",
        b"Impersonate-User: a\x7fb",
        b"Impersonate-User: a\rb",
        b"Impersonate-User: a\r\n b",
        b"Impersonate-User\x00: a",
        b"Impersonate User: a",
        b"Impersonate-User : a",
        b" Impersonate-User: a",
        b"Impersonate-User",
        b": a",
        b"Impersonate-Us\xc3\xa9r: a",
        b"Authorization: Bearer a\x00b",
        b"Authorization: Bearer\x0bgood",
    ] {
        let world = world().await;
        let admin = world.certificate("admin", &["system:masters"]);
        let head = [b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n", header, b"\r\n\r\n"].concat();
        let (response, _) = Raw::send_request(&admin, head).await.rest().await;
        let what = header.escape_ascii();
        assert!(response.starts_with("HTTP/1.1 400 "), "{what}: {response}");
        assert_eq!((world.api.seen().len(), world.api.reviews().len()), (0, 0), "{what}");
    }
}

#[tokio::test]
async fn the_case_of_header_names_does_not_matter() {
    let world = world().await;
    let admin = world.certificate("admin", &["system:masters"]);
    let head =
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\niMPERSONATE-uSER: u\r\nIMPERSONATE-GROUP: g\r\n\
        impersonate-Extra-ROAR: Tiger\r\nX-REMOTE-USER: root\r\nIMPERSONATE-UID: 9\r\n\r\n";
    let (response, _) = Raw::send_request(&admin, head).await.rest().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let seen = world.api.only_seen();
    assert_eq!(seen.all("impersonate-user"), ["u"]);
    assert_eq!(seen.all("impersonate-uid"), ["9"]);
    assert_eq!(seen.all("impersonate-group"), ["g", "system:authenticated"]);
    assert_eq!(seen.all("impersonate-extra-roar"), ["Tiger"]);
    assert_eq!(seen.names_starting_with("x-remote"), [""; 0]);
}

#[tokio::test]
async fn a_failed_review_refuses_an_impersonation() {
    let world = World::start(Script { broken_reviews: true, ..Script::default() }).await;
    let response = get(&world.certificate("u", &[]), &[("impersonate-user", b"other")]).await;
    let message = response.message();
    assert_eq!(response.status, StatusCode::FORBIDDEN);
    let start = r#"namespaces is forbidden: User "u" cannot impersonate-on:user-info:list resource "namespaces" in API group "" at the cluster scope: "#;
    let end = ": decision made by impersonation-proxy.concierge.pinniped.dev";
    assert!(message.starts_with(start) && message.ends_with(end), "{message}");
    assert!(message.len() > start.len() + end.len(), "{message}");
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn reviews_have_the_order_of_the_api_server_and_are_cached_for_ten_seconds() {
    // Allows everything except the reviews with `*` for all groups, and for all extras of legacy
    // impersonation.
    let policy = Arc::new(|spec: &serde_json::Value| {
        let requested = describe(spec);
        !requested.ends_with("groups/ /*") && !requested.starts_with("impersonate ")
    });
    let world = World::start(Script { policy, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let mut headers = vec![("impersonate-user", &b"target"[..])];
    headers.extend([b"g1", b"g2", b"g3", b"g4"].map(|group| ("impersonate-group", &group[..])));
    headers.extend([
        ("impersonate-extra-acme.io%2fb", &b"1"[..]),
        ("impersonate-extra-acme.io%2fb", b"2"),
        ("impersonate-extra-acme.io%2fa", b"1"),
        ("impersonate-extra-acme.io%2fa", b"2"),
    ]);
    for _ in 0..2 {
        assert_eq!(get(&client, &headers).await.status, StatusCode::OK);
        assert_eq!(
            world.api.reviews(),
            [
                "impersonate-on:user-info:list /v1 namespaces/ /",
                "impersonate:user-info authentication.k8s.io/v1 users/ /target",
                "impersonate:user-info authentication.k8s.io/v1 groups/ /*",
                "impersonate:user-info authentication.k8s.io/v1 groups/ /g1",
                "impersonate:user-info authentication.k8s.io/v1 groups/ /g2",
                "impersonate:user-info authentication.k8s.io/v1 groups/ /g3",
                "impersonate:user-info authentication.k8s.io/v1 groups/ /g4",
                "impersonate:user-info authentication.k8s.io/v1 userextras/* /*",
                "list /v1 namespaces/ /",
            ]
        );
    }
    // The mode that succeeded is tried first now, and its first refusal ends it.
    headers[1].1 = b"system:masters";
    let response = get(&client, &headers).await;
    let wanted = "groups.authentication.k8s.io \"system:masters\" is forbidden: User \"u\" cannot impersonate:user-info \
        resource \"groups\" in API group \"authentication.k8s.io\" at the cluster scope: impersonating the \
        system:masters group is not allowed";
    assert_eq!((response.status, response.message()), (StatusCode::FORBIDDEN, wanted.to_owned()));
    assert_eq!(world.api.reviews()[9..], ["impersonate /v1 users/ /target"]);
    assert_eq!(world.api.seen().len(), 2);
}
