//! The reviews that the Concierge's proxy sends to the API server before it forwards a request:
//! counted and compared in the API server's own audit log.
//!
//! The tests find reviews by their user, so each test has its own users. All requests of one test
//! use one HTTP/2 connection: behind a Service the next connection may reach another pod, which has
//! its own cache.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::installed::{self, Installed, TIME_LIMIT};
use crate::request_info::presentation::ACCEPT;

/// The end of the reason of every refusal.
const DECIDED_BY: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";

/// One HTTP/2 connection that accepts many concurrent requests.
struct Connection {
    sender: http2::SendRequest<Empty<Bytes>>,
    _driver: JoinSet<()>,
}

struct ReceivedResponse {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Connection {
    async fn to_proxy(installed: &Installed, certificate: Option<&Pair>) -> Self {
        Self::open(TcpStream::connect((installed.address, 443)).await.unwrap(), EXTERNAL_NAME, certificate)
            .await
    }

    async fn to_api_server(installed: &Installed, certificate: Option<&Pair>) -> Self {
        let server = installed.world().control_plane().server();
        let tcp = TcpStream::connect(server.trim_start_matches("https://")).await.unwrap();
        Self::open(tcp, "localhost", certificate).await
    }

    async fn open(tcp: TcpStream, name: &str, certificate: Option<&Pair>) -> Self {
        let stream = wire::connect_unverified(tcp, name, &[b"h2"], certificate).await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Self { sender, _driver: driver }
    }

    async fn send_request(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> ReceivedResponse {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = Request::builder().method(method).uri(format!("https://{EXTERNAL_NAME}{target}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = async {
            let (head, body) =
                self.sender.clone().send_request(request.body(Empty::new())?).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            anyhow::Ok(ReceivedResponse { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(TIME_LIMIT, response)
            .await
            .unwrap()
            .unwrap_or_else(|error| panic!("{target}: {error:#}"))
    }
}

/// Returns every completed review of this user so far.
fn reviews_of(installed: &Installed, user: &str) -> Vec<Value> {
    let events = installed.world().control_plane().audit_events("subjectaccessreviews").unwrap();
    let is_review = |event: &Value| {
        event["objectRef"]["resource"] == "subjectaccessreviews"
            && event["stage"] == "ResponseComplete"
            && event["requestObject"]["spec"]["user"] == user
    };
    events.into_iter().filter(is_review).collect()
}

/// Returns the attributes of a review without the user.
fn question(review: &Value) -> Value {
    let spec = &review["requestObject"]["spec"];
    match spec.get("resourceAttributes") {
        Some(resource) => resource.clone(),
        None => spec["nonResourceAttributes"].clone(),
    }
}

#[tokio::test]
async fn each_distinct_review_is_sent_once_for_all_waiting_requests() {
    let Some(installed) = installed::shared("each_distinct_question_is_asked_once").await else { return };
    let user = "reviews-once";
    let connection = Connection::to_proxy(&installed, Some(&installed.certificate(user, None))).await;
    // Each case differs from the first one in one attribute, or in two where one cannot change
    // alone.
    let cases = [
        (
            "GET",
            "/apis/apps/v1/namespaces/ns/deployments/x/scale",
            json!({"verb": "get", "group": "apps",
            "version": "v1", "namespace": "ns", "resource": "deployments", "name": "x", "subresource": "scale"}),
        ),
        (
            "PUT",
            "/apis/apps/v1/namespaces/ns/deployments/x/scale",
            json!({"verb": "update", "group": "apps",
            "version": "v1", "namespace": "ns", "resource": "deployments", "name": "x", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/batch/v1/namespaces/ns/deployments/x/scale",
            json!({"verb": "get", "group": "batch",
            "version": "v1", "namespace": "ns", "resource": "deployments", "name": "x", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/apps/v2/namespaces/ns/deployments/x/scale",
            json!({"verb": "get", "group": "apps",
            "version": "v2", "namespace": "ns", "resource": "deployments", "name": "x", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/other/deployments/x/scale",
            json!({"verb": "get", "group": "apps",
            "version": "v1", "namespace": "other", "resource": "deployments", "name": "x", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/apps/v1/deployments/x/scale",
            json!({"verb": "get", "group": "apps", "version": "v1",
            "resource": "deployments", "name": "x", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/ns/replicasets/x/scale",
            json!({"verb": "get", "group": "apps",
            "version": "v1", "namespace": "ns", "resource": "replicasets", "name": "x", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/ns/deployments/y/scale",
            json!({"verb": "get", "group": "apps",
            "version": "v1", "namespace": "ns", "resource": "deployments", "name": "y", "subresource": "scale"}),
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/ns/deployments/x/status",
            json!({"verb": "get", "group": "apps",
            "version": "v1", "namespace": "ns", "resource": "deployments", "name": "x", "subresource": "status"}),
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/ns/deployments/x",
            json!({"verb": "get", "group": "apps",
            "version": "v1", "namespace": "ns", "resource": "deployments", "name": "x"}),
        ),
        ("GET", "/api/v1/pods", json!({"verb": "list", "version": "v1", "resource": "pods"})),
        ("GET", "/api/v1/pods?watch=1", json!({"verb": "watch", "version": "v1", "resource": "pods"})),
        ("DELETE", "/api/v1/pods", json!({"verb": "deletecollection", "version": "v1", "resource": "pods"})),
        (
            "GET",
            "/api/v1/pods?fieldSelector=a%3Db",
            json!({"verb": "list", "version": "v1", "resource": "pods",
            "fieldSelector": {"rawSelector": "a=b"}}),
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=a%3Dc",
            json!({"verb": "list", "version": "v1", "resource": "pods",
            "fieldSelector": {"rawSelector": "a=c"}}),
        ),
        (
            "GET",
            "/api/v1/pods?labelSelector=a%3Db",
            json!({"verb": "list", "version": "v1", "resource": "pods",
            "labelSelector": {"rawSelector": "a=b"}}),
        ),
        (
            "GET",
            "/api/v1/pods?labelSelector=a+in+(b,c)&fieldSelector=metadata.name=n",
            json!({"verb": "list",
            "version": "v1", "resource": "pods", "name": "n", "fieldSelector": {"rawSelector": "metadata.name=n"},
            "labelSelector": {"rawSelector": "a in (b,c)"}}),
        ),
        ("GET", "/metrics", json!({"verb": "get", "path": "/metrics"})),
        ("HEAD", "/metrics", json!({"verb": "head", "path": "/metrics"})),
        ("GET", "/metrics/", json!({"verb": "get", "path": "/metrics/"})),
    ];
    for (method, target, _) in &cases {
        let spellings: &[(&str, &str)] = match *target {
            // All of these cause the same review.
            "/api/v1/pods" if *method == "GET" => &[
                ("GET", target),
                ("HEAD", target),
                ("GET", "//api/v1/pods/?limit=5"),
                ("GET", "/api%2Fv1/%70ods"),
            ],
            _ => &[(method, target)],
        };
        let responses = join_all(
            spellings
                .iter()
                .cycle()
                .take(20)
                .map(|(method, target)| connection.send_request(method, target, &[])),
        );
        assert!(responses.await.iter().all(|response| response.status == 403), "{target}");
    }
    wait::until(TIME_LIMIT, "every review to be in the log", async || {
        (reviews_of(&installed, user).len() >= cases.len()).then_some(())
    })
    .await
    .unwrap();
    let mut requested: BTreeMap<String, usize> = BTreeMap::new();
    for review in reviews_of(&installed, user) {
        *requested.entry(question(&review).to_string()).or_default() += 1;
    }
    for (_, target, wanted) in &cases {
        assert_eq!(requested.remove(&wanted.to_string()), Some(1), "{target}: {wanted}");
    }
    assert_eq!(requested, BTreeMap::new(), "these were not requested");
}

#[tokio::test]
async fn users_that_differ_in_any_attribute_are_reviewed_separately() {
    let Some(installed) = installed::shared("users_that_differ_in_anything").await else { return };
    let user = "reviews-users";
    for group in [None, Some("reviews-group"), Some("reviews-other")] {
        let connection = Connection::to_proxy(&installed, Some(&installed.certificate(user, group))).await;
        let responses = join_all((0..10).map(|_| connection.send_request("GET", "/api/v1/nodes", &[])));
        assert!(responses.await.iter().all(|response| response.status == 403), "{group:?}");
    }
    let reviews = wait::until(TIME_LIMIT, "every review to be in the log", async || {
        Some(reviews_of(&installed, user)).filter(|reviews| reviews.len() >= 3)
    })
    .await
    .unwrap();
    let groups: Vec<&Value> =
        reviews.iter().map(|review| &review["requestObject"]["spec"]["groups"]).collect();
    let all = [
        json!(["system:authenticated"]),
        json!(["reviews-group", "system:authenticated"]),
        json!(["reviews-other", "system:authenticated"]),
    ];
    assert_eq!(groups, all.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_review_of_ten_thousand_bytes_is_not_cached() {
    let Some(installed) = installed::shared("a_question_of_ten_thousand_bytes").await else { return };
    let user = "reviews-large";
    let connection = Connection::to_proxy(&installed, Some(&installed.certificate(user, None))).await;
    let large = format!("/x/{}", "y".repeat(10_000));
    for _ in 0..3 {
        assert_eq!(connection.send_request("GET", &large, &[]).await.status, 403);
    }
    wait::until(TIME_LIMIT, "three reviews", async || {
        (reviews_of(&installed, user).len() >= 3).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(reviews_of(&installed, user).len(), 3);
}

#[tokio::test]
async fn a_review_result_is_cached_for_ten_seconds() {
    let Some(installed) = installed::shared("a_review_result_is_cached_for_ten_seconds").await else {
        return;
    };
    installed.allow("reviews-allowed", json!([{"nonResourceURLs": ["/reviews"], "verbs": ["get"]}])).await;
    let checks = ["reviews-allowed", "reviews-denied"].map(async |user| {
        let connection = Connection::to_proxy(&installed, Some(&installed.certificate(user, None))).await;
        let own = |user: &str| {
            let mut reviews = reviews_of(&installed, user);
            // The test itself sent reviews to check that the rule is effective.
            reviews.retain(|review| review["user"]["username"] != "kubernetes-admin");
            reviews
        };
        let mut sent = Vec::new();
        let reviews = wait::until(TIME_LIMIT, format!("a second review of {user}"), async || {
            sent.push(Timestamp::now());
            let status = connection.send_request("GET", "/reviews", &[]).await.status;
            assert_eq!(status == 403, user == "reviews-denied", "{user} {status}");
            Some(own(user)).filter(|reviews| reviews.len() >= 2)
        })
        .await
        .unwrap();
        let [first, second] = [&reviews[0], &reviews[1]]
            .map(|review| review["requestReceivedTimestamp"].as_str().unwrap().parse::<Timestamp>().unwrap());
        let age = Duration::try_from(first.duration_until(second)).unwrap();
        assert!(age >= Duration::from_secs(9), "{user}: a result was cached for only {age:?}");
        // The first request after the ten seconds needs a review. On a busy machine it may be sent
        // much later.
        let expired = first + SignedDuration::from_secs(11);
        let late = sent.iter().filter(|sent| **sent > expired && **sent < second).count();
        assert!(late <= 1, "{user}: {late} requests after {expired} and no review before {second}");
    });
    join_all(checks).await;
}

/// The review that the proxy sent, and the request that the API server then received, have the same
/// attributes.
#[tokio::test]
async fn a_review_has_the_attributes_that_the_api_server_reads() {
    let Some(installed) = installed::shared("a_review_has_the_attributes_that_the_api_server_reads").await
    else {
        return;
    };
    let group = "reviews-readers";
    let role = json!({"metadata": {"name": group}, "rules": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "proxy"]},
        {"nonResourceURLs": ["*"], "verbs": ["get"]}]});
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    let binding = json!({"metadata": {"name": group},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": group},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    let admin = installed.admin().await;
    Api::all(admin.clone()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(admin).create(&PostParams::default(), &binding).await.unwrap();
    for (at, target) in [
        "/api/v1/namespaces/default/pods/a%2Fb",
        "/api/v1/namespaces%2Fdefault%2Fpods",
        "//api/v1/pods//",
        "/api/v1//pods",
        "/api/v1/namespaces/",
        "/api/v1/namespaces/x/status",
        "/api/v1/namespaces/x/finalize/y",
        "/api/v1/namespaces/namespaces/pods/proxy/log",
        "/api/v1/nodes/%C3%BC%FF%00",
        "/api/v1/pods?fieldSelector=metadata.name%3Dfoo",
        "/api/v1/pods?fieldSelector=metadata.name%3Dfoo&labelSelector=a+b",
        "/api/v1/pods?watch=fal%C5%BFe",
        "/api/v1/watch/namespaces/default/pods?timeoutSeconds=1",
        "/api/v1/proxy/namespaces/x/pods/y/z",
        "/apis/apps/v1/deployments?limit=5",
        "/apis/nosuchgroup/v1/things/x/y/z",
        "/apis/apps/v1/namespaces/x",
    ]
    .into_iter()
    .enumerate()
    {
        let user = format!("reviews-reader-{at}");
        let certificate = installed.certificate(&user, Some(group));
        // Another pod may have cached a refusal from a moment ago, when the role was new.
        let (reviewed, read) = wait::until_ok(TIME_LIMIT, format!("{target} to be allowed"), async || {
            let connection = Connection::to_proxy(&installed, Some(&certificate)).await;
            let id = format!("{user}-{}", Timestamp::now().as_nanosecond());
            let refused =
                |response: &ReceivedResponse| String::from_utf8_lossy(&response.body).contains(DECIDED_BY);
            anyhow::ensure!(
                !refused(&connection.send_request("GET", target, &[("audit-id", &id)]).await),
                "refused"
            );
            let log = installed.world().control_plane();
            let read =
                log.await_audit_event(target, id.as_str(), |event| event["auditID"] == id.as_str()).await?;
            Ok((reviews_of(&installed, &user).pop(), read))
        })
        .await
        .unwrap();
        let reviewed = question(&reviewed.expect("nothing passes without a review"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ours = ["verb", "group", "version", "resource", "subresource", "namespace", "name"]
            .map(|field| text(&reviewed[field]));
        let object = &read["objectRef"];
        let theirs = [
            &read["verb"],
            &object["apiGroup"],
            &object["apiVersion"],
            &object["resource"],
            &object["subresource"],
            &object["namespace"],
            &object["name"],
        ];
        assert_eq!(ours, theirs.map(text), "{target}");
    }
}

/// The API server's own refusals and ours are the same bytes, except for the name of the decider.
#[tokio::test]
async fn refusals_are_the_api_servers_own() {
    let Some(installed) = installed::shared("refusals_are_the_api_servers_own").await else { return };
    let certificate = installed.certificate("reviews \"<refused>\"", None);
    let bad_token = [("authorization", "Bearer garbage")];
    for (certificate, credential, target, status) in [
        (None, &bad_token[..], "/api/v1/pods", 401),
        (Some(&certificate), &[], "/apis/apps/v1/namespaces/n/deployments/%3Cx%3E%26", 403),
        (Some(&certificate), &[], "/x%22y", 403),
        (Some(&certificate), &[], "/api/v1/pods?timeout=%22x", 400),
    ] {
        let ours = Connection::to_proxy(&installed, certificate).await;
        let mut theirs = Connection::to_api_server(&installed, certificate).await;
        for (accept, query) in
            ACCEPT.iter().map(|accept| (*accept, "")).chain([("", ""), ("*/*", "pretty=1")])
        {
            let mut headers = credential.to_vec();
            if !accept.is_empty() {
                headers.push(("accept", accept));
            }
            let target = format!("{target}{}{query}", if target.contains('?') { "&" } else { "?" });
            let (ours, response) = futures::join!(
                ours.send_request("GET", &target, &headers),
                theirs.send_request("GET", &target, &headers)
            );
            if response.status == 401 {
                // The API server closes connections of unauthenticated clients.
                theirs = Connection::to_api_server(&installed, certificate).await;
            }
            let theirs = response;
            let head = |response: &ReceivedResponse| {
                (response.status, response.headers.get("content-type").cloned())
            };
            assert_eq!(head(&ours), head(&theirs), "{accept}");
            assert_eq!(ours.status, status);
            if ours.body.starts_with(b"k8s\0") && status == 403 {
                // The lengths of the enclosing messages differ with it.
                assert!(ours.body.windows(DECIDED_BY.len()).any(|window| window == DECIDED_BY.as_bytes()));
                continue;
            }
            // YAML breaks a longer text at other positions.
            let text =
                |response: &ReceivedResponse| String::from_utf8_lossy(&response.body).replace("\n  ", " ");
            let stripped = text(&ours).replace(&format!(": {DECIDED_BY}"), "");
            assert_eq!(stripped, text(&theirs), "{target} {accept}");
            assert_eq!(stripped != text(&ours), status == 403, "{target} {accept}");
        }
    }
}
