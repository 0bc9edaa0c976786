//! Identities of requests at the API server.

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use pinniped_http_server::Body;
use pinniped_kube_client::kube_client;

use crate::api_server::{ApiServer, Handler, Script, UNREVIEWABLE, describe, json_response};
use crate::world::{OUR_TOKEN, Options, World, token_source, upstream_of};

const NAMESPACES: &str = "/api/v1/namespaces";
const UNABLE: &str = "Internal error occurred: unimplemented functionality - unable to act as current user";
const ORIGINAL: &str = "impersonate-extra-original-user-info.impersonation-proxy.concierge.pinniped.dev";

fn with_tokens(tokens: &[(&str, serde_json::Value)]) -> Script {
    let tokens: HashMap<_, _> =
        tokens.iter().map(|(token, user)| ((*token).to_owned(), user.clone())).collect();
    Script { tokens, ..Script::default() }
}

#[tokio::test]
async fn a_certificate_user_is_impersonated_with_groups_and_credential_id() {
    let world = World::start(Script::default()).await;
    let headers = [("Authorization", "Bearer some-bad-token"), ("x-forwarded-FOR", "example.com")];
    let response = world
        .certificate("test-username", &["test-group1", "test-group2"])
        .get_with(NAMESPACES, &headers)
        .await;
    assert_eq!(response.status, StatusCode::OK, "{response:?}");

    let seen = world.api.only_seen();
    assert_eq!(seen.version, http::Version::HTTP_2);
    assert_eq!(seen.all("impersonate-user"), ["test-username"]);
    assert_eq!(seen.all("impersonate-group"), ["test-group1", "test-group2", "system:authenticated"]);
    let id = seen.all("impersonate-extra-authentication.kubernetes.io%2fcredential-id");
    assert!(id.len() == 1 && id[0].starts_with("X509SHA256="), "{id:?}");
    assert_eq!(seen.names_starting_with("impersonate").len(), 3);
    assert_eq!(seen.all("authorization"), [format!("Bearer {OUR_TOKEN}")]);
    assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(world.api.reviews(), ["list /v1 namespaces/ /"]);
}

#[tokio::test]
async fn requests_without_credentials_and_with_basic_auth_are_anonymous() {
    let world = World::start(Script::default()).await;
    for headers in [&[][..], &[("Authorization", "Basic Zm9vOmJhcg==")]] {
        let response = world.anonymous().get_with(NAMESPACES, headers).await;
        assert_eq!(response.status, StatusCode::OK, "{response:?}");
    }
    for seen in world.api.seen() {
        assert_eq!(seen.all("impersonate-user"), ["system:anonymous"]);
        assert_eq!(seen.all("impersonate-group"), ["system:unauthenticated"]);
        assert_eq!(seen.names_starting_with("impersonate").len(), 2);
        assert_eq!(seen.all("authorization"), [format!("Bearer {OUR_TOKEN}")]);
    }
}

#[tokio::test]
async fn a_matching_token_of_a_user_with_uid_is_passed_through() {
    let user =
        json!({"username": "system:serviceaccount:a:b", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}});
    let world = World::start(with_tokens(&[("client-token", user)])).await;
    let response = world.anonymous().get_with(NAMESPACES, &[("authorization", "Bearer client-token")]).await;
    assert_eq!(response.status, StatusCode::OK, "{response:?}");
    let seen = world.api.only_seen();
    assert_eq!(seen.all("authorization"), ["Bearer client-token"]);
    assert_eq!(seen.names_starting_with("impersonate"), Vec::<String>::new());
}

/// Returns a response whose status code is the last segment of the request's path.
fn status_of_path(request: &http::Request<hyper::body::Incoming>) -> http::Response<Body> {
    let code: u16 = request.uri().path().rsplit('/').next().unwrap().parse().unwrap();
    let mut response = json_response(&json!({}));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

#[tokio::test]
async fn only_a_401_to_an_impersonated_request_is_reported_to_the_source_of_our_token() {
    let user = json!({"username": "system:serviceaccount:a:b", "uid": "7"});
    let script = Script {
        handler: Arc::new(|request| Box::pin(std::future::ready(status_of_path(&request)))),
        ..with_tokens(&[("client-token", user)])
    };
    let world = World::start(script).await;
    let (client, refusals) = (world.certificate("u", &[]), || world.impersonator_token.refusals());
    for code in [200, 403, 404, 500] {
        assert_eq!(client.get(&format!("/api/{code}")).await.status, code);
    }
    // A response to a client's own token.
    let passed_through = [("authorization", "Bearer client-token")];
    assert_eq!(world.anonymous().get_with("/api/401", &passed_through).await.status, 401);
    assert_eq!(refusals(), 0);
    // The client receives the response unchanged.
    assert_eq!(client.get("/api/401").await.status, 401);
    assert_eq!(refusals(), 1);
}

#[tokio::test]
async fn a_401_to_our_own_kubernetes_client_is_reported_to_the_source_of_its_token() {
    let handler: Handler = Arc::new(|request| Box::pin(std::future::ready(status_of_path(&request))));
    let api = ApiServer::start(Script { handler, ..Script::default() }).await;
    let source = token_source(Some("our-token"));
    let client = kube_client(&upstream_of(&api), source.clone(), "default");
    for (code, refusals) in [(200, 0), (403, 0), (500, 0), (401, 1)] {
        let request = http::Request::get(format!("/api/{code}")).body(Vec::new()).unwrap();
        // Only the report counts.
        let _response = client.request_text(request).await;
        assert_eq!(source.refusals(), refusals, "{code}");
    }
}

#[tokio::test]
async fn a_token_user_without_uid_is_impersonated_and_bad_keys_are_refused() {
    let world = World::start(with_tokens(&[
        ("plain", json!({"username": "ü", "groups": ["g"], "extra": {"iam.gke.io/user-assertion": ["x"]}})),
        ("bad-key", json!({"username": "u", "extra": {"party~~time": ["x"]}})),
        (
            "reserved",
            json!({"username": "u", "extra": {"a.impersonation-proxy.concierge.pinniped.dev": ["x"]}}),
        ),
        (
            "nearly",
            json!({"username": "u", "extra": {"a.iimpersonation-proxy.concierge.pinniped.dev": ["x"]}}),
        ),
    ]))
    .await;
    for (token, wanted) in [
        ("plain", StatusCode::OK),
        ("nearly", StatusCode::OK),
        ("bad-key", StatusCode::INTERNAL_SERVER_ERROR),
        ("reserved", StatusCode::INTERNAL_SERVER_ERROR),
        ("unknown", StatusCode::UNAUTHORIZED),
    ] {
        let header = format!("Bearer {token}");
        let response = world.anonymous().get_with(NAMESPACES, &[("authorization", &header)]).await;
        assert_eq!(response.status, wanted, "{token}: {response:?}");
        if wanted == StatusCode::INTERNAL_SERVER_ERROR {
            assert_eq!(response.message(), UNABLE);
        }
    }
    let seen = &world.api.seen()[0];
    assert_eq!(seen.all("impersonate-user"), ["ü"]);
    assert_eq!(seen.all("impersonate-extra-iam.gke.io%2fuser-assertion"), ["x"]);
}

#[tokio::test]
async fn an_identity_with_invalid_header_values_is_a_bad_gateway() {
    let world = World::start(with_tokens(&[("t", json!({"username": "a\nb"}))])).await;
    let response = world.anonymous().get_with(NAMESPACES, &[("authorization", "Bearer t")]).await;
    assert_eq!((response.status, response.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert_eq!(response.all("content-length"), ["0"]);
    assert!(!response.headers.contains_key("content-type"));
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn without_our_own_token_nothing_is_forwarded() {
    let options = Options { impersonator_token: false, ..Options::default() };
    let world = World::start_with(Script::default(), options).await;
    let response = world.certificate("u", &[]).get(NAMESPACES).await;
    assert_eq!((response.status, response.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert_eq!(response.all("x-frame-options"), ["DENY"]);
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn a_websocket_token_is_passed_through_too() {
    let user = json!({"username": "system:serviceaccount:a:b", "uid": "7"});
    let world = World::start(with_tokens(&[("t", user)])).await;
    // "dA" is base64url of "t".
    let request = http::Request::get(NAMESPACES)
        .header("host", "proxy.example")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.dA, v4.channel.k8s.io")
        .body(pinniped_http_server::body::empty())
        .unwrap();
    let response = world.anonymous().h1().await.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let seen = world.api.only_seen();
    assert_eq!(seen.all("authorization"), ["Bearer t"]);
    assert_eq!(seen.all("sec-websocket-protocol"), ["v4.channel.k8s.io"]);
    assert_eq!(seen.all("upgrade"), ["websocket"]);
    assert_eq!(seen.version, http::Version::HTTP_11);
}

#[tokio::test]
async fn an_administrator_impersonates_with_every_part() {
    let world = World::start(Script::default()).await;
    let admin = world.certificate("admin", &["system:masters"]);
    let response = admin
        .get_with(
            NAMESPACES,
            &[
                ("Impersonate-User", "fire"),
                ("Impersonate-Group", "elements"),
                ("Impersonate-Extra-Colors", "red"),
                ("Impersonate-Extra-colors", "orange"),
                ("Impersonate-Extra-alpha.kubernetes.io%2fidentity%2Froles", "a,b"),
                ("Impersonate-Extra-ROAR", "tiger"),
            ],
        )
        .await;
    assert_eq!(response.status, StatusCode::OK, "{response:?}");
    let seen = world.api.only_seen();
    assert_eq!(seen.all("impersonate-user"), ["fire"]);
    assert_eq!(seen.all("impersonate-group"), ["elements", "system:authenticated"]);
    assert_eq!(seen.all("impersonate-extra-colors"), ["red", "orange"]);
    assert_eq!(seen.all("impersonate-extra-alpha.kubernetes.io%2fidentity%2froles"), ["a,b"]);
    assert_eq!(seen.all("impersonate-extra-roar"), ["tiger"]);
    let original = seen.all(ORIGINAL);
    assert!(
        original[0].starts_with(
            r#"{"username":"admin","groups":["system:masters","system:authenticated"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256="#
        ),
        "{original:?}"
    );
    assert_eq!(seen.names_starting_with("impersonate").len(), 6);
    // Only the final user would be reviewed, and system:masters may do everything.
    assert_eq!(world.api.reviews(), ["list /v1 namespaces/ /"]);
}

#[tokio::test]
async fn impersonated_uids_and_reserved_keys_are_refused_when_disabled() {
    let world = World::start(Script { uids: true, ..Script::default() }).await;
    let admin = world.certificate("admin", &["system:masters"]);
    for (name, value) in [
        ("Impersonate-Uid", "1"),
        ("iMPERSONATE-uid", "1"),
        ("Impersonate-Extra-something.impersonation-proxy.concierge.pinniped.dev", "x"),
        ("Impersonate-Extra-party~~time", "x"),
    ] {
        let response =
            admin.get_with(NAMESPACES, &[("impersonate-user", "u"), (&name.to_lowercase(), value)]).await;
        assert_eq!(response.status, StatusCode::INTERNAL_SERVER_ERROR, "{name}");
        let wanted = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{UNABLE}","reason":"InternalError","details":{{"causes":[{{"message":"unimplemented functionality - unable to act as current user"}}]}},"code":500}}"#
        );
        assert_eq!(response.text, wanted + "\n");
    }
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn uids_are_impersonated_when_the_api_server_allows_it() {
    let mut script = with_tokens(&[("t", json!({"username": "tom", "uid": "7"}))]);
    script.uids = true;
    let options = Options { uid_impersonation: true, ..Options::default() };
    let world = World::start_with(script, options).await;
    let admin = world.certificate("admin", &["system:masters"]);
    let headers = [("impersonate-user", "u"), ("impersonate-uid", "0x1")];
    assert_eq!(admin.get_with(NAMESPACES, &headers).await.status, StatusCode::OK);
    assert_eq!(world.api.only_seen().all("impersonate-uid"), ["0x1"]);
    // A user's own token takes precedence over impersonation.
    let response = world.anonymous().get_with(NAMESPACES, &[("authorization", "Bearer t")]).await;
    assert_eq!(response.status, StatusCode::OK);
    assert_eq!(world.api.seen()[1].all("authorization"), ["Bearer t"]);
}

#[tokio::test]
async fn a_user_with_a_uid_is_handled_by_token_and_setting() {
    let same = json!({"username": "fay", "uid": "7", "groups": ["b", "a"], "extra": {"k": ["v"]}});
    let with = |field: &str, value: serde_json::Value| {
        let mut user = same.clone();
        user[field] = value;
        user
    };
    let tokens = [
        ("same", same.clone()),
        ("other-name", with("username", json!("eve"))),
        ("other-uid", with("uid", json!("8"))),
        ("no-uid", with("uid", json!(""))),
        ("other-order", with("groups", json!(["a", "b"]))),
        ("fewer-groups", with("groups", json!(["b"]))),
        ("other-extra", with("extra", json!({"k": ["w"]}))),
        ("no-extra", with("extra", json!(null))),
    ];
    for uid_impersonation in [false, true] {
        let script = Script { uids: true, ..with_tokens(&tokens) };
        let options = Options { uid_impersonation, front_proxy: true, ..Options::default() };
        let world = World::start_with(script, options).await;
        let mut arrived = 0;
        for token in
            ["", "same", "other-name", "other-uid", "no-uid", "other-order", "fewer-groups", "other-extra"]
                .into_iter()
                .chain(["no-extra", "nobodys", UNREVIEWABLE])
        {
            let authorization = format!("Bearer {token}");
            let mut headers = vec![
                ("x-remote-user", "fay"),
                ("x-remote-uid", "7"),
                ("x-remote-group", "b"),
                ("x-remote-group", "a"),
                ("x-remote-extra-k", "v"),
            ];
            if !token.is_empty() {
                headers.push(("authorization", &authorization));
            }
            let response = world.front_proxy().get_with(NAMESPACES, &headers).await;
            let what = format!("{token:?}, UIDs {uid_impersonation}: {response:?}");
            let acts = token == "same" || (uid_impersonation && token != UNREVIEWABLE);
            if !acts {
                assert_eq!(response.status, StatusCode::INTERNAL_SERVER_ERROR, "{what}");
                assert_eq!(response.message(), UNABLE, "{what}");
                continue;
            }
            assert_eq!(response.status, StatusCode::OK, "{what}");
            arrived += 1;
            let seen = world.api.seen().pop().unwrap();
            if token == "same" {
                assert_eq!(seen.all("authorization"), ["Bearer same"], "{what}");
                assert_eq!(seen.names_starting_with("impersonate"), [""; 0], "{what}");
            } else {
                assert_eq!(seen.all("authorization"), [format!("Bearer {OUR_TOKEN}")], "{what}");
                assert_eq!(seen.all("impersonate-user"), ["fay"], "{what}");
                assert_eq!(seen.all("impersonate-uid"), ["7"], "{what}");
                assert_eq!(seen.all("impersonate-group"), ["b", "a", "system:authenticated"], "{what}");
                assert_eq!(seen.all("impersonate-extra-k"), ["v"], "{what}");
                assert_eq!(seen.names_starting_with("impersonate").len(), 4, "{what}");
            }
        }
        assert_eq!(world.api.seen().len(), arrived);
    }
}

#[tokio::test]
async fn uids_are_not_impersonated_without_the_permission() {
    let options = Options { uid_impersonation: true, ..Options::default() };
    let world = World::start_with(Script::default(), options).await;
    let admin = world.certificate("admin", &["system:masters"]);
    let response = admin.get_with(NAMESPACES, &[("impersonate-user", "u"), ("impersonate-uid", "0x1")]).await;
    assert_eq!(response.message(), UNABLE);
}

#[tokio::test]
async fn a_user_without_permission_gets_the_first_failed_rule() {
    let script =
        Script { policy: Arc::new(|spec| !describe(spec).starts_with("impersonate")), ..Script::default() };
    let world = World::start(script).await;
    let response =
        world.certificate("u", &[]).get_with(NAMESPACES, &[("impersonate-user", "some-user")]).await;
    assert_eq!(response.status, StatusCode::FORBIDDEN);
    assert_eq!(
        response.message(),
        r#"namespaces is forbidden: User "u" cannot impersonate-on:user-info:list resource "namespaces" in API group "" at the cluster scope: decision made by impersonation-proxy.concierge.pinniped.dev"#
    );
    assert_eq!(
        world.api.reviews(),
        ["impersonate-on:user-info:list /v1 namespaces/ /", "impersonate /v1 users/ /some-user"]
    );
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn after_a_legacy_impersonation_its_refusals_are_returned() {
    let script = Script {
        policy: Arc::new(|spec| {
            let requested = describe(spec);
            !requested.starts_with("impersonate-on") && !requested.contains("userextras")
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    let response = client.get_with(NAMESPACES, &[("impersonate-user", "other")]).await;
    assert_eq!(response.status, StatusCode::OK, "{response:?}");
    let headers = [("impersonate-user", "other"), ("impersonate-extra-some-fancy-key", "v")];
    assert_eq!(
        client.get_with(NAMESPACES, &headers).await.message(),
        r#"userextras.authentication.k8s.io "v" is forbidden: User "u" cannot impersonate resource "userextras/some-fancy-key" in API group "authentication.k8s.io" at the cluster scope: decision made by impersonation-proxy.concierge.pinniped.dev"#
    );
}
