//! Responses that the proxy generates itself.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use pinniped_impersonation_proxy::proxy::InFlightLimits;

use crate::api_server::{Script, json_response};
use crate::world::{Options, ReceivedResponse, World};

const TCR: &str = "/apis/login.concierge.walrus.tld/v1alpha1/tokencredentialrequests";

#[tokio::test]
async fn an_invalid_certificate_is_never_anonymous() {
    let world = World::start(Script::default()).await;
    for path in ["/api/v1/namespaces", TCR, "/healthz"] {
        let response = world.foreign_certificate("u").get(path).await;
        assert_eq!(response.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(
            response.text,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Unauthorized\",\"reason\":\"Unauthorized\",\"code\":401}\n"
        );
        assert_eq!(response.all("content-type"), ["application/json"]);
    }
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn anonymous_requests_are_allowed_according_to_the_probes() {
    for (healthz, nodes) in [(200, 200), (403, 403), (401, 403), (200, 401), (401, 401)] {
        let script = Script {
            healthz: StatusCode::from_u16(healthz).unwrap(),
            nodes: StatusCode::from_u16(nodes).unwrap(),
            ..Script::default()
        };
        let world = World::start(script).await;
        for (path, allowed) in [
            ("/readyz", healthz != 401),
            ("/livez", healthz != 401),
            ("/readyz/etcd", nodes != 401),
            ("/probe", nodes != 401),
            ("/api/v1/pods", nodes != 401),
            (TCR, true),
            ("/apis/not-concierge.walrus.tld/v1/tokencredentialrequests", nodes != 401),
        ] {
            let response = world.anonymous().get(path).await;
            let wanted = if allowed { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            assert_eq!(response.status, wanted, "{path} with {healthz}, {nodes}");
        }
        assert_eq!(world.certificate("u", &[]).get("/probe").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn an_inconclusive_probe_prevents_the_start() {
    let broken = StatusCode::INTERNAL_SERVER_ERROR;
    let about = "could not detect if anonymous authentication is enabled: error from";
    let text = "API: an error on the server (\"broken\") has prevented the request from succeeding";
    for (script, wanted) in [
        (Script { healthz: broken, ..Script::default() }, format!("{about} healthz {text}")),
        (Script { nodes: broken, ..Script::default() }, format!("{about} v1 nodes {text} (get nodes)")),
    ] {
        let started = World::try_start(script, Options::default()).await;
        assert_eq!(started.err().map(|error| error.to_string()), Some(wanted));
    }
}

#[tokio::test]
async fn forbidden_requests_have_the_messages_of_kubernetes() {
    let script = Script { policy: Arc::new(|_| false), ..Script::default() };
    let world = World::start(script).await;
    let client = world.certificate("pinny", &[]);
    let suffix = "decision made by impersonation-proxy.concierge.pinniped.dev";
    for (method, path, message, details) in [
        (
            Method::GET,
            "/api/v1/pods",
            format!(
                r#"pods is forbidden: User \"pinny\" cannot list resource \"pods\" in API group \"\" at the cluster scope: {suffix}"#
            ),
            r#"{"kind":"pods"}"#,
        ),
        (
            Method::DELETE,
            "/apis/apps/v1/namespaces/ns/deployments/foo/scale",
            format!(
                r#"deployments.apps \"foo\" is forbidden: User \"pinny\" cannot delete resource \"deployments/scale\" in API group \"apps\" in the namespace \"ns\": {suffix}"#
            ),
            r#"{"name":"foo","group":"apps","kind":"deployments"}"#,
        ),
        (
            Method::GET,
            "/healthz/log",
            format!(r#"forbidden: User \"pinny\" cannot get path \"/healthz/log\": {suffix}"#),
            "{}",
        ),
        (
            Method::OPTIONS,
            "/api/v1/namespaces",
            format!(
                r#"namespaces is forbidden: User \"pinny\" cannot  resource \"namespaces\" in API group \"\" at the cluster scope: invalid verb, {suffix}"#
            ),
            r#"{"kind":"namespaces"}"#,
        ),
    ] {
        let request = Request::builder().method(method).uri(format!("https://h{path}")).body(()).unwrap();
        let response = client.send(request).await;
        assert_eq!(response.status, StatusCode::FORBIDDEN);
        let wanted = format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","reason":"Forbidden","details":{details},"code":403}}"#
        );
        assert_eq!(response.text, wanted + "\n", "{path}");
    }
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn refusals_have_the_requested_encoding() {
    let script = Script { policy: Arc::new(|_| false), ..Script::default() };
    let world = World::start(script).await;
    let client = world.certificate("pinny", &[]);
    let path = "/apis/apps/v1/namespaces/ns/deployments/foo/scale";
    let message = "deployments.apps \"foo\" is forbidden: User \"pinny\" cannot get resource \"deployments/scale\" in API group \"apps\" in the namespace \"ns\": decision made by impersonation-proxy.concierge.pinniped.dev";
    let yaml = "apiVersion: v1\ncode: 403\ndetails:\n  group: apps\n  kind: deployments\n  name: foo\nkind: Status\nmessage: 'deployments.apps \"foo\" is forbidden: User \"pinny\" cannot get resource \"deployments/scale\"\n  in API group \"apps\" in the namespace \"ns\": decision made by impersonation-proxy.concierge.pinniped.dev'\nmetadata: {}\nreason: Forbidden\nstatus: Failure\n";
    let response = client.get_with(path, &[("accept", "application/yaml")]).await;
    assert_eq!((response.all("content-type"), response.text.as_str()), (vec!["application/yaml"], yaml));

    let protobuf = "application/vnd.kubernetes.protobuf";
    let response = client.get_with(path, &[("accept", &format!("{protobuf},application/json"))]).await;
    assert_eq!(response.all("content-type"), [protobuf]);
    assert!(response.text.starts_with("k8s\0"), "{response:?}");
    assert!(
        response.text.contains(message) && response.text.contains("\u{3}foo\u{12}\u{4}apps"),
        "{response:?}"
    );

    for (path, headers) in [
        (format!("{path}?pretty=1"), &[][..]),
        (path.to_owned(), &[("user-agent", "curl/8.5.0")]),
        (path.to_owned(), &[("accept", "text/html")]),
        (path.to_owned(), &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]),
    ] {
        let response = client.get_with(&path, headers).await;
        assert_eq!(response.all("content-type"), ["application/json"], "{path} {headers:?}");
        assert!(response.text.starts_with("{\n  \"kind\": \"Status\",\n"), "{response:?}");
        assert!(response.text.ends_with("\n  \"code\": 403\n}"), "{response:?}");
        assert_eq!(response.message(), message);
    }
}

#[tokio::test]
async fn a_refused_head_request_has_a_length_and_no_body() {
    let script = Script { policy: Arc::new(|_| false), ..Script::default() };
    let world = World::start(script).await;
    let client = world.certificate("pinny", &[]);
    let length = client.get("/x").await.text.len() - "get".len() + "head".len();
    let over_h2 = client.request("/x").method(Method::HEAD).body(()).unwrap();
    let over_h2 = client.send(over_h2).await;
    let over_h1 = Request::head("/x").header("host", "h").body(pinniped_http_server::body::empty()).unwrap();
    let over_h1 = ReceivedResponse::read(client.h1().await.send_request(over_h1).await.unwrap()).await;
    for response in [over_h2, over_h1] {
        assert_eq!((response.status, response.text.as_str()), (StatusCode::FORBIDDEN, ""));
        assert_eq!(response.all("content-length"), [length.to_string()]);
    }
}

#[tokio::test]
async fn invalid_requests_are_refused_without_a_review() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    let cases = [
        ("/api/v1/%zz", &[][..], 400, "400 Bad Request\n".to_owned()),
        (
            "/api/v1/watch",
            &[],
            500,
            "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch\n".to_owned(),
        ),
        (
            "/api/v1/pods?timeout=abc",
            &[],
            400,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"invalid timeout specified in the request URL - time: invalid duration \\\"abc\\\"\",\"reason\":\"BadRequest\",\"code\":400}\n".to_owned(),
        ),
        (
            "/api/v1/pods",
            &[("impersonate-uid", "007")],
            400,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"requested \\u0026user.DefaultInfo{Name:\\\"\\\", UID:\\\"007\\\", Groups:[]string(nil), Extra:map[string][]string(nil)} without impersonating a user name\",\"reason\":\"BadRequest\",\"code\":400}\n".to_owned(),
        ),
    ];
    for (path, headers, status, body) in cases {
        let response = client.get_with(path, headers).await;
        assert_eq!((response.status.as_u16(), response.text), (status, body), "{path}");
    }
    assert!(world.api.reviews().is_empty());
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn impersonation_headers_of_unknown_kinds_are_never_forwarded() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    for (name, value) in [("impersonate-something", "x"), ("impersonate-user", ""), ("impersonatefoo", "x")] {
        let response = client.get_with("/api/v1/pods", &[(name, value)]).await;
        assert_eq!(response.message(), "Internal error occurred: invalid impersonation", "{name}");
    }
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn a_failed_review_does_not_allow_the_request() {
    let world = World::start(Script { broken_reviews: true, ..Script::default() }).await;
    let response = world.certificate("u", &[]).get("/api/v1/pods?a=b").await;
    assert_eq!(response.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(response.text.starts_with("Internal Server Error: \"/api/v1/pods?a=b\": "), "{}", response.text);
    assert!(world.api.seen().is_empty());
}

#[tokio::test]
async fn a_silent_api_server_ends_in_a_timeout_at_the_deadline() {
    let script = Script { handler: Arc::new(|_| Box::pin(std::future::pending())), ..Script::default() };
    let world = World::start(script).await;
    let response = world.certificate("u", &[]).get("/api/v1/pods?timeout=200ms").await;
    assert_eq!(response.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(
        response.text,
        "{\"metadata\":{},\"status\":\"Failure\",\"message\":\"Timeout: request did not complete within the allotted timeout\",\"reason\":\"Timeout\",\"details\":{},\"code\":504}\n"
    );
    assert_eq!(response.all("content-type"), ["text/plain; charset=utf-8"]);
}

#[tokio::test]
async fn excess_short_requests_are_refused_with_retry_after() {
    let script = Script {
        handler: Arc::new(|request| {
            Box::pin(async move {
                if request.uri().path() == "/slow" {
                    std::future::pending::<()>().await;
                }
                json_response(&serde_json::json!({}))
            })
        }),
        ..Script::default()
    };
    let in_flight = InFlightLimits {
        short: 1,
        mutating: None,
        waiting: 1,
        queue_timeout: Duration::from_millis(100),
        long_running: 1,
    };
    let world = World::start_with(script, Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    let slow = client.get("/slow?timeout=10s");
    let quick = async {
        crate::world::eventually("the slow request arrives", || !world.api.seen().is_empty()).await;
        let refused = client.get("/quick").await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.text, "Too many requests, please try again later.\n");
        assert_eq!(refused.all("retry-after"), ["1"]);
        // A watch counts against a separate limit.
        assert_eq!(client.get("/api/v1/pods?watch=1").await.status, StatusCode::OK);
    };
    tokio::select! {
        _ = slow => panic!("the slow request must not end"),
        () = quick => {}
    }
    crate::world::eventually("the place is free again", || world.upstream.stats().streams == 0).await;
    assert_eq!(client.get("/quick").await.status, StatusCode::OK);
}

#[tokio::test]
async fn every_response_has_security_headers_and_an_audit_id() {
    let world = World::start(Script::default()).await;
    let nobody = world.anonymous().get_with("/probe", &[("audit-id", "mine")]).await;
    let refused = world.foreign_certificate("u").get("/probe").await;
    assert_eq!((nobody.status.as_u16(), refused.status.as_u16()), (200, 401));
    for response in [&nobody, &refused] {
        for (name, value) in [
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
            ("x-frame-options", "DENY"),
            ("x-xss-protection", "1; mode=block"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-dns-prefetch-control", "off"),
            ("cache-control", "no-cache,no-store,max-age=0,must-revalidate"),
            ("pragma", "no-cache"),
            ("expires", "0"),
        ] {
            assert_eq!(response.all(name), [value]);
        }
    }
    assert_eq!(nobody.all("audit-id"), ["mine"]);
    assert_eq!(refused.all("audit-id")[0].len(), 36);
}

#[tokio::test]
async fn a_second_space_before_the_token_causes_a_warning() {
    let world = World::start(Script::default()).await;
    let response = world.anonymous().get_with("/probe", &[("authorization", "Bearer  x")]).await;
    assert_eq!(response.status, StatusCode::OK);
    assert_eq!(
        response.all("warning"),
        [
            "299 - \"the provided Authorization header contains extra space before the bearer token, and is ignored\""
        ]
    );
}

#[tokio::test]
async fn a_shutdown_releases_the_port_and_closes_open_streams() {
    let script = Script { handler: Arc::new(|_| Box::pin(std::future::pending())), ..Script::default() };
    let world = World::start(script).await;
    let mut sender = world.certificate("u", &[]).h2().await;
    let request = Request::get("https://h/api/v1/pods?watch=1")
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    let open = tokio::spawn(sender.send_request(request));
    crate::world::eventually("the watch arrives", || !world.api.seen().is_empty()).await;
    let address = world.address();
    let stopped = tokio::time::timeout(crate::world::PATIENCE, world.proxy.stop(Duration::from_millis(200)));
    stopped.await.expect("the grace is short");
    assert!(open.await.unwrap().is_err());
    std::net::TcpListener::bind(address).expect("the port is free");
}

#[tokio::test]
async fn a_request_that_is_sent_before_the_shutdown_is_noticed_is_served() {
    let world = World::start(Script::default()).await;
    let mut sender = world.certificate("u", &[]).h2().await;
    let request =
        Request::get("https://h/api/v1/pods").body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
    world.proxy.begin_stop();
    // This runtime has one thread and polls its sockets only when it is idle, so the client sends
    // the request before it can read the GOAWAY.
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}
