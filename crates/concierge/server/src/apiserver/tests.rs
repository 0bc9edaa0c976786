//! Tests of the server through its HTTP API, with an API server that only supports reviews.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt as _, Full};
use pinniped_apiserver::in_flight::{InFlightPermit, RequestClass};
use pinniped_concierge_authentication::registry::{AuthenticateError, AuthenticatorKey, TokenAuthenticator};
use pinniped_concierge_domain::admission_report::{
    AdmissionObject, AdmissionPlugin, ObservedAdmission, PolicySpec, Refusals, UnappliedAdmission, decide,
};
use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfig;
use pinniped_kube_types::protobuf::{Envelope, Message};

use super::*;

mod tls;

const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const WHOAMI: &str = "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests";

/// The limit against which logins count.
const LOGINS_IN_FLIGHT: usize = InFlightLimits::AGGREGATED_API.mutating.unwrap();

/// Responds to reviews: the token `good` belongs to `pinny`, and the user `nobody` has no
/// permissions.
fn reviews() -> kube::Client {
    let service = tower::service_fn(|request: Request<kube::client::Body>| async move {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let review: Value = serde_json::from_slice(&body).expect("a review");
        let status = if path.ends_with("tokenreviews") {
            match review["spec"]["token"].as_str() {
                Some("good") => {
                    json!({"authenticated": true, "user": {"username": "pinny", "groups": ["b", "a"]}})
                }
                Some("nobody") => json!({"authenticated": true, "user": {"username": "nobody"}}),
                _ => json!({"authenticated": false}),
            }
        } else {
            json!({"allowed": review["spec"]["user"] != "nobody", "reason": ""})
        };
        let content =
            json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "spec": {}, "status": status});
        let response = Response::builder().status(201).body(Full::from(content.to_string()));
        Ok::<_, std::io::Error>(response.expect("a response"))
    });
    kube::Client::new(service, "default")
}

struct World {
    chain: Chain<ApiHandler>,
    in_flight: InFlight,
    draining: Draining,
    audit: Arc<Mutex<Vec<String>>>,
    admission: AdmissionGate,
    metrics: Metrics,
}

struct ReceivedResponse {
    status: u16,
    headers: HeaderMap,
    body: String,
    bytes: bytes::Bytes,
}

impl ReceivedResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

impl World {
    fn new(suffix: &str) -> Self {
        let audit = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&audit);
        let client = reviews();
        let admission = AdmissionGate::new(UnappliedAdmission::Report);
        let (metrics, requests) = (Metrics::new(), RequestMetrics::default());
        requests.register(&metrics);
        let authenticator = RequestAuthenticator::new(RequestAuthenticatorParams {
            cluster: ClusterAuthConfigWatch::fixed(ClusterAuthConfig::default()),
            extra_client_ca: None,
            reviewer: TokenReviewer::new(client.clone()),
        });
        let mut debug_state = DebugState::default();
        debug_state.add("slowestRequests", crate::debug_state::slowest_requests(requests.slow_requests()));
        let handler = ApiHandler::new(HandlerParams {
            registry: Registry::new(),
            issuers: Vec::new(),
            tokens: Arc::new(crate::token_issuer::tests::Off),
            suffix: GroupSuffix::parse(suffix).expect("a suffix"),
            audit: Auditor::with_sink(false, move |line| lines.lock().expect("lock").push(line.to_owned())),
            health: Health::new(),
            metrics: metrics.clone(),
            debug_state,
            credential_lifetime: tokio::sync::watch::channel(Duration::from_secs(300)).1,
            admission: admission.clone(),
            clock: now,
        });
        let in_flight = InFlight::new(&InFlightLimits::AGGREGATED_API, requests.of(Server::AggregatedApi));
        let draining = Draining::default();
        let authorizer = Authorizer::new(client);
        let chain = chain(authenticator, authorizer, in_flight.clone(), draining.clone(), None, handler);
        Self { chain, in_flight, draining, audit, admission, metrics }
    }

    /// Adds an authenticator, and returns the number of logins that wait for it.
    fn add_webhook(&self, name: &str, slow: bool) -> Arc<AtomicUsize> {
        let key = AuthenticatorKey {
            api_group: "authentication.concierge.pinniped.dev".to_owned(),
            kind: "WebhookAuthenticator".to_owned(),
            name: name.to_owned(),
        };
        let waiting = Arc::new(AtomicUsize::new(0));
        let authenticator = Arc::new(Webhook { slow, waiting: Arc::clone(&waiting) });
        self.chain.handler().exchange.registry.insert(key, String::new(), authenticator);
        waiting
    }

    /// Returns whether a scrape has this line.
    fn has_metric(&self, line: &str) -> bool {
        self.metrics.text().expect("text").lines().any(|found| found == line)
    }

    async fn send_request(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: &(impl AsRef<[u8]> + ?Sized),
    ) -> ReceivedResponse {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(bytes::Bytes::copy_from_slice(body.as_ref()));
        let response = self.chain.respond(None, &mut request.body(body).expect("a request")).await;
        assert!(response.body().deadline().is_some(), "every response has a deadline");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let body = String::from_utf8_lossy(&bytes).into_owned();
        ReceivedResponse { status: parts.status.as_u16(), headers: parts.headers, body, bytes }
    }
}

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().expect("a time")
}

const TCR: &str =
    r#"{"metadata":{"name":"foo"},"spec":{"token":"t","authenticator":{"kind":"k","name":"n"}}}"#;

/// Returns the refusals while a policy matches everything, or while policies cannot be read.
fn refusals(can_read: bool) -> Refusals {
    let plugin = AdmissionPlugin::ValidatingAdmissionPolicy;
    let policy = AdmissionObject::policy(plugin, "everything", &PolicySpec::default());
    let observed = ObservedAdmission {
        objects: can_read.then_some(policy).into_iter().collect(),
        unreadable: (!can_read).then(|| (plugin, "a secret reason".to_owned())).into_iter().collect(),
    };
    decide(&observed, &GroupSuffix::default(), UnappliedAdmission::Refuse).refusals
}

#[tokio::test]
async fn creates_are_refused_while_admission_is_required_and_not_applied() {
    let world = World::new("pinniped.dev");
    let before =
        "this API does not apply admission, and cannot read yet which policies and webhooks may match";
    let matches = "this API does not apply admission, and objects of these kinds may match: \
                   ValidatingAdmissionPolicy. The condition AdmissionApplied of the CredentialIssuer names them";
    for (refusals, code, reason, text) in [
        (Refusals::at_start(UnappliedAdmission::Refuse), 503, "ServiceUnavailable", before.to_owned()),
        (refusals(false), 503, "ServiceUnavailable", format!("{before}: ValidatingAdmissionPolicy")),
        (refusals(true), 403, "Forbidden", matches.to_owned()),
    ] {
        world.admission.set(refusals);
        for (uri, body, object, details) in [
            (
                LOGIN,
                TCR,
                "tokencredentialrequests.login.concierge.pinniped.dev \"foo\"",
                json!({"name": "foo", "group": "login.concierge.pinniped.dev", "kind": "tokencredentialrequests"}),
            ),
            (
                WHOAMI,
                "{}",
                "whoamirequests.identity.concierge.pinniped.dev",
                json!({"group": "identity.concierge.pinniped.dev", "kind": "whoamirequests"}),
            ),
        ] {
            let response = world.send_request("POST", uri, &[], body).await;
            let status = response.json();
            assert_eq!((response.status, status["reason"].as_str()), (code, Some(reason)), "{status}");
            let message = if code == 403 { format!("{object} is forbidden: {text}") } else { text.clone() };
            assert_eq!(status["message"], message);
            let retry = code == 503;
            let details = if retry { json!({"retryAfterSeconds": 1}) } else { details };
            assert_eq!(status["details"], details);
            assert_eq!(response.header("retry-after"), if retry { "1" } else { "" });
            // Without admission, the effect of a dry run is unknown too.
            let dry_run = world.send_request("POST", &format!("{uri}?dryRun=All"), &[], body).await;
            assert_eq!((dry_run.status, dry_run.json()), (code, status));
            // Admission applies to creates only, and a request that is not decoded has no object.
            assert_eq!(world.send_request("GET", uri, &[], "").await.status, 200);
            assert_eq!(world.send_request("POST", uri, &[], "{").await.status, 400);
        }
    }
    assert!(world.audit.lock().expect("lock").is_empty(), "no token was received");
    world.admission.set(Refusals::default());
    assert_eq!(world.send_request("POST", LOGIN, &[], TCR).await.status, 201);
    assert_eq!(world.send_request("POST", WHOAMI, &[], "{}").await.status, 201);
}

#[tokio::test]
async fn a_failed_login_is_created_without_details_of_the_request() {
    let world = World::new("pinniped.dev");
    let response = world.send_request("POST", LOGIN, &[("audit-id", "id-1")], TCR).await;
    assert_eq!(response.status, 201);
    assert_eq!(response.header("audit-id"), "id-1");
    assert_eq!(response.header("cache-control"), "no-cache, private");
    assert_eq!(response.header("content-type"), "application/json");
    assert_eq!(
        response.body,
        concat!(
            r#"{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.pinniped.dev/v1alpha1","metadata":{},"#,
            r#""spec":{"authenticator":{"apiGroup":null,"kind":"","name":""}},"status":{"message":"authentication failed"}}"#,
            "\n"
        )
    );
    let lines = world.audit.lock().expect("lock").clone();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.contains("\"auditID\":\"id-1\"")));
}

#[tokio::test]
async fn refused_requests_have_an_error_message_and_no_audit_event() {
    let world = World::new("pinniped.dev");
    let accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let not_found = "the server could not find the requested resource";
    let not_allowed = "the server does not allow this method on the requested resource";
    let one = format!("{LOGIN}/foo");
    let subresource = format!("{LOGIN}/foo/status");
    let in_namespace = "/apis/login.concierge.pinniped.dev/v1alpha1/namespaces/ns/tokencredentialrequests";
    let dry = format!("{LOGIN}?dryRun=All");
    let dry_foo = format!("{LOGIN}?dryRun=foo");
    let strict = format!("{LOGIN}?fieldValidation=Strict");
    let watch = format!("{LOGIN}?watch=true");
    let whoami_dry = format!("{WHOAMI}?dryRun=All");
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, u16, &'a str, String);
    let cases: &[Case<'_>] = &[
        ("POST", LOGIN, &[], r#"{"metadata":{"name":"foo"}}"#, 422, "Invalid", r#".login.concierge.pinniped.dev "foo" is invalid: spec.token.value: Required value: token must be supplied"#.to_owned()),
        ("POST", &dry, &[], TCR, 422, "Invalid", r#".login.concierge.pinniped.dev "foo" is invalid: dryRun: Unsupported value: ["All"]"#.to_owned()),
        ("POST", &dry_foo, &[], TCR, 422, "Invalid", r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["foo"]: supported values: "All""#.to_owned()),
        ("POST", &whoami_dry, &[], "{}", 422, "Invalid", r#".identity.concierge.pinniped.dev "" is invalid: dryRun: Unsupported value: ["All"]"#.to_owned()),
        ("POST", &strict, &[], r#"{"spec":{"foo":1}}"#, 400, "BadRequest", r#"TokenCredentialRequest in version "v1alpha1" cannot be handled as a TokenCredentialRequest: strict decoding error: unknown field "spec.foo""#.to_owned()),
        ("POST", LOGIN, &[("content-type", "text/plain")], TCR, 415, "UnsupportedMediaType", format!("the body of the request was in an unknown format - accepted media types include: {accepted}")),
        ("POST", LOGIN, &[], r#"{"kind":"TokenCredentialRequestList"}"#, 400, "BadRequest", r#"TokenCredentialRequestList in version "v1alpha1" cannot be handled as a TokenCredentialRequest: converting (v1alpha1.TokenCredentialRequestList) to (login.TokenCredentialRequest): unknown conversion"#.to_owned()),
        ("POST", LOGIN, &[], r#"{"apiVersion":"a/b/c"}"#, 400, "BadRequest", r#"the object provided is unrecognized (must be of type TokenCredentialRequest): unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c"})"#.to_owned()),
        ("POST", LOGIN, &[("accept", "text/html")], TCR, 406, "NotAcceptable", format!("406: Not Acceptable\n\nAvailable representations: {accepted}")),
        ("GET", &watch, &[], "", 405, "MethodNotAllowed", r#"watch is not supported on resources of kind "tokencredentialrequests.login.concierge.pinniped.dev""#.to_owned()),
        ("PUT", LOGIN, &[], "", 405, "MethodNotAllowed", not_allowed.to_owned()),
        ("DELETE", LOGIN, &[], "", 405, "MethodNotAllowed", not_allowed.to_owned()),
        ("GET", &one, &[], "", 404, "NotFound", not_found.to_owned()),
        ("DELETE", &one, &[], "", 404, "NotFound", not_found.to_owned()),
        ("GET", &subresource, &[], "", 404, "NotFound", not_found.to_owned()),
        ("POST", in_namespace, &[], TCR, 404, "NotFound", not_found.to_owned()),
        ("GET", "/apis/login.concierge.pinniped.dev/v2", &[], "", 404, "NotFound", not_found.to_owned()),
        ("GET", "/apis/login.concierge.pinniped.dev/v2/", &[], "", 404, "NotFound", not_found.to_owned()),
        ("POST", LOGIN, &[("authorization", "Bearer bad")], TCR, 401, "Unauthorized", "Unauthorized".to_owned()),
        ("POST", WHOAMI, &[("authorization", "Bearer nobody")], "{}", 403, "Forbidden", r#"whoamirequests.identity.concierge.pinniped.dev is forbidden: User "nobody" cannot create resource "whoamirequests" in API group "identity.concierge.pinniped.dev" at the cluster scope"#.to_owned()),
    ];
    for (method, uri, headers, body, status, reason, message) in cases {
        let response = world.send_request(method, uri, headers, body).await;
        let reported = response.json();
        assert_eq!(
            (response.status, reported["reason"].as_str(), reported["message"].as_str()),
            (*status, Some(*reason), Some(message.as_str())),
            "{method} {uri}"
        );
        assert_eq!(reported["code"], *status);
    }
    assert!(world.audit.lock().expect("lock").is_empty());
}

#[tokio::test]
async fn a_missing_token_has_one_cause() {
    let response = World::new("tuna.io");
    let uri = "/apis/login.concierge.tuna.io/v1alpha1/tokencredentialrequests";
    let response = response.send_request("POST", uri, &[], r#"{"metadata":{"name":"foo"}}"#).await;
    assert_eq!(
        response.json()["details"],
        json!({
            "name": "foo",
            "group": "login.concierge.pinniped.dev",
            "causes": [{
                "reason": "FieldValueRequired",
                "message": "Required value: token must be supplied",
                "field": "spec.token.value",
            }],
        })
    );
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let world = World::new("pinniped.dev");
    let response = world.send_request("POST", LOGIN, &[], &" ".repeat((3 << 20) + 1)).await;
    assert_eq!(
        (response.status, response.json()["message"].as_str()),
        (413, Some("Request entity too large: limit is 3145728"))
    );
}

#[tokio::test]
async fn a_body_that_would_take_many_times_its_size_in_memory_is_refused() {
    let world = World::new("pinniped.dev");
    // One million objects of three bytes; as values in memory, each takes a hundred.
    let body = format!(r#"{{"metadata":{{"managedFields":[{}{{}}]}}}}"#, "{},".repeat(1_000_000));
    for uri in [LOGIN, WHOAMI] {
        let response = world.send_request("POST", uri, &[], &body).await;
        assert_eq!(
            (response.status, response.json()["message"].as_str()),
            (413, Some("Request entity too large: limit is 10000 names and values")),
            "{uri}"
        );
    }
    assert!(world.audit.lock().expect("lock").is_empty());
}

#[tokio::test]
async fn the_first_value_of_a_repeated_query_option_is_used() {
    let world = World::new("pinniped.dev");
    let repeated = "&fieldValidation=a".repeat(3_000);
    let strict = format!("{LOGIN}?fieldValidation=Strict{repeated}");
    let response = world.send_request("POST", &strict, &[], r#"{"spec":{"foo":1}}"#).await;
    assert_eq!((response.status, &response.json()["reason"]), (400, &json!("BadRequest")));
    let unsupported = format!("{LOGIN}?{repeated}");
    let response = world.send_request("POST", &unsupported, &[], TCR).await;
    assert_eq!(response.status, 422);
    assert_eq!(response.json()["details"]["causes"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn who_am_i_returns_users_and_anonymous_and_impersonated_users() {
    let world = World::new("pinniped.dev");
    let user = |response: &ReceivedResponse| response.json()["status"]["kubernetesUserInfo"]["user"].clone();
    let response = world.send_request("POST", WHOAMI, &[("authorization", "Bearer good")], "{}").await;
    assert_eq!(response.status, 201);
    assert_eq!(user(&response), json!({"username": "pinny", "groups": ["b", "a", "system:authenticated"]}));
    let response = world.send_request("POST", WHOAMI, &[], "").await;
    assert_eq!(response.status, 400);
    let response = world.send_request("POST", WHOAMI, &[], "{}").await;
    assert_eq!(
        user(&response),
        json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]})
    );
    let headers =
        [("authorization", "Bearer good"), ("impersonate-user", "jane"), ("impersonate-extra-a%2fb", "c")];
    let response = world.send_request("POST", WHOAMI, &headers, "{}").await;
    assert_eq!(
        user(&response),
        json!({"username": "jane", "groups": ["system:authenticated"], "extra": {"a/b": ["c"]}})
    );
    let headers = [("authorization", "Bearer nobody"), ("impersonate-user", "jane")];
    let response = world.send_request("POST", WHOAMI, &headers, "{}").await;
    assert_eq!(response.status, 403);
    assert!(
        response.body.contains(r#"cannot impersonate-on:user-info:create resource"#),
        "{}",
        response.body
    );
}

#[tokio::test]
async fn responses_have_the_requested_format() {
    let world = World::new("pinniped.dev");
    let list = world.send_request("GET", LOGIN, &[], "").await;
    assert_eq!(
        list.body,
        "{\"kind\":\"TokenCredentialRequestList\",\"apiVersion\":\"login.concierge.pinniped.dev/v1alpha1\",\"metadata\":{\"resourceVersion\":\"0\"},\"items\":[]}\n"
    );
    let yaml = world.send_request("POST", WHOAMI, &[("accept", "application/yaml")], "{}").await;
    assert_eq!((yaml.status, yaml.header("content-type")), (201, "application/yaml"));
    assert!(
        yaml.body.starts_with("apiVersion: identity.concierge.pinniped.dev/v1alpha1\nkind: WhoAmIRequest\n")
    );
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let response = world.send_request("GET", LOGIN, &[("accept", table)], "").await.json();
    assert_eq!(response["kind"], "Table");
    assert_eq!(response["rows"], Value::Null);
    assert_eq!(response["columnDefinitions"][1]["name"], "Created At");
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let response = world.send_request("POST", WHOAMI, &[("accept", partial)], "{}").await;
    assert_eq!(
        response.json(),
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {}})
    );
    let pretty = world.send_request("GET", &format!("{LOGIN}?pretty=true"), &[], "").await;
    assert!(pretty.body.starts_with("{\n  \"kind\""));
    let proto = world
        .send_request(
            "POST",
            WHOAMI,
            &[("accept", "application/vnd.kubernetes.protobuf,application/json")],
            "{}",
        )
        .await;
    assert_eq!((proto.status, proto.header("content-type")), (406, PROTOBUF));
    assert_eq!(
        Envelope::decode(&proto.bytes).map(|envelope| (envelope.api_version, envelope.kind)),
        Ok((&b"v1"[..], &b"Status"[..]))
    );
    assert!(proto.body.contains("object *v1alpha1.WhoAmIRequest does not implement the protobuf"));
    let warned = world.send_request("POST", WHOAMI, &[], r#"{"spec":{"foo":1}}"#).await;
    assert_eq!((warned.status, warned.header("warning")), (201, r#"299 - "unknown field \"spec.foo\"""#));
}

#[tokio::test]
async fn a_format_that_an_object_does_not_have_is_refused_after_the_request_is_processed() {
    let world = World::new("pinniped.dev");
    let only = |list: &str| format!("{PROTOBUF};as=PartialObjectMetadata{list};v=v1;g=meta.k8s.io");
    let json = |list: &str| format!("application/json;as=PartialObjectMetadata{list};v=v1;g=meta.k8s.io");
    let table = format!("{PROTOBUF};as=Table;v=v1;g=meta.k8s.io");
    let no_parameters = "only the following media types are accepted: application/json, application/yaml, \
                         application/vnd.kubernetes.protobuf";
    let requested_list = "you requested PartialObjectMetadataList, but the requested object is not a list \
                          (*login.TokenCredentialRequest)";
    let requested_object = "you requested PartialObjectMetadata, but the requested object is a list \
                            (*login.TokenCredentialRequestList)";
    let no_protobuf = "object *v1alpha1.TokenCredentialRequestList does not implement the protobuf \
                       marshalling interface and cannot be encoded to a protobuf message";
    for (method, accept, message, events) in [
        ("POST", &*json("List"), requested_list, 2),
        ("GET", &*json(""), requested_object, 0),
        ("GET", PROTOBUF, no_protobuf, 0),
        ("GET", &*table, no_parameters, 0),
        ("POST", &*table, no_parameters, 0),
        ("POST", "application/yaml;stream=watch", no_parameters, 0),
    ] {
        world.audit.lock().expect("lock").clear();
        let response = world.send_request(method, LOGIN, &[("accept", accept)], TCR).await;
        assert_eq!(response.status, 406, "{accept}");
        assert!(response.body.contains(message), "{accept}: {}", response.body);
        assert_eq!(world.audit.lock().expect("lock").len(), events, "{method} {accept}");
    }
    // Errors of the request come first.
    let invalid = world.send_request("POST", LOGIN, &[("accept", PROTOBUF)], "{}").await;
    assert_eq!((invalid.status, invalid.header("content-type")), (422, PROTOBUF));

    // The bytes are those of k8s.io/apimachinery v0.36.3.
    let partial = world.send_request("POST", LOGIN, &[("accept", &only(""))], TCR).await;
    assert_eq!((partial.status, partial.header("content-type")), (201, PROTOBUF));
    assert_eq!(
        partial.bytes,
        &b"k8s\0\x0a\x27\x0a\x0emeta.k8s.io/v1\x12\x15PartialObjectMetadata\x12\x12\x0a\x10\x0a\0\x12\0\x1a\0\
           \x22\0\x2a\0\x32\0\x38\0\x42\0\x1a\0\x22\0"[..]
    );
    let partial = world.send_request("GET", LOGIN, &[("accept", &only("List"))], "").await;
    assert_eq!((partial.status, partial.header("content-type")), (200, PROTOBUF));
    assert_eq!(
        partial.bytes,
        &b"k8s\0\x0a\x2b\x0a\x0emeta.k8s.io/v1\x12\x19PartialObjectMetadataList\x12\x09\x0a\x07\x0a\0\x12\x010\
           \x1a\0\x1a\0\x22\0"[..]
    );
}

#[tokio::test]
async fn a_table_contains_as_much_of_the_object_as_the_client_requests() {
    let world = World::new("pinniped.dev");
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let row = async |option: &str| {
        let response = world.send_request("POST", &format!("{WHOAMI}{option}"), &accept, "{}").await;
        response.json()["rows"][0]["object"].clone()
    };
    for option in ["", "?includeObject=Metadata"] {
        assert_eq!(row(option).await["kind"], "PartialObjectMetadata", "{option}");
    }
    assert_eq!(row("?includeObject=Object").await["kind"], "WhoAmIRequest");
    assert_eq!(row("?includeObject=None").await, Value::Null);
    let refused = world.send_request("GET", &format!("{WHOAMI}?includeObject=x"), &accept, "").await;
    assert_eq!(
        (refused.status, refused.json()["message"].as_str()),
        (
            400,
            Some(
                "Unable to convert to Table as requested: includeObject: Invalid value: \"x\": must be \
                 'Metadata', 'Object', 'None', or empty"
            )
        )
    );
}

/// The texts are those of the decoder of k8s.io/apimachinery v0.36.3.
#[tokio::test]
async fn a_body_in_protobuf_is_refused_because_the_kinds_have_no_protobuf_format() {
    let world = World::new("pinniped.dev");
    let version = "login.concierge.pinniped.dev/v1alpha1";
    let body = |api_version: &str, kind: &str| Envelope::encode(api_version, kind, &Message::default());
    let unsuitable = |kind: &str, version: &str, error: &str| {
        format!("{kind} in version \"{version}\" cannot be handled as a TokenCredentialRequest: {error}")
    };
    let no_format = |kind: &str| {
        format!(
            "object *v1alpha1.{kind} does not implement the protobuf marshalling interface and cannot be \
             encoded to a protobuf message"
        )
    };
    let unrecognized = |error: &str, head: &str| {
        format!(
            "the object provided is unrecognized (must be of type TokenCredentialRequest): {error} ({head})"
        )
    };
    let not_registered = |kind: &str, version: &str| {
        format!("no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pinniped-concierge\"")
    };
    let own = unsuitable("TokenCredentialRequest", "v1alpha1", &no_format("TokenCredentialRequest"));
    let other = unsuitable("WhoAmIRequest", "v1alpha1", &no_format("WhoAmIRequest"));
    let list = unsuitable("TokenCredentialRequestList", "v1alpha1", &no_format("TokenCredentialRequestList"));
    for (body, message) in [
        (body("", ""), own.clone()),
        (body(version, "TokenCredentialRequest"), own.clone()),
        (body("a/b/c", "TokenCredentialRequest"), own),
        (body("identity.concierge.pinniped.dev/v1alpha1", "WhoAmIRequest"), other),
        (body(version, "TokenCredentialRequestList"), list),
        (body(version, "Foo"), unsuitable("Foo", "v1alpha1", &not_registered("Foo", version))),
        (
            body("login.concierge.pinniped.dev/v2", ""),
            unsuitable(
                "TokenCredentialRequest",
                "v2",
                &not_registered("TokenCredentialRequest", "login.concierge.pinniped.dev/v2"),
            ),
        ),
        (Vec::new(), unrecognized("empty data", "<empty>")),
        (b"k8s\0".to_vec(), unrecognized("empty body", "6b387300")),
        (b"k8s\0\x0a\x05a".to_vec(), unrecognized("unexpected EOF", "6b3873000a0561")),
        (
            b"{}".to_vec(),
            unrecognized(
                "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
                "{}",
            ),
        ),
    ] {
        let response = world.send_request("POST", LOGIN, &[("content-type", PROTOBUF)], &body).await;
        let reported = response.json();
        assert_eq!(
            (response.status, reported["reason"].as_str(), reported["message"].as_str()),
            (400, Some("BadRequest"), Some(message.as_str())),
            "{body:x?}"
        );
    }
    let long = body(version, &"k".repeat(1025));
    let response = world.send_request("POST", LOGIN, &[("content-type", PROTOBUF)], &long).await;
    assert_eq!(
        (response.status, response.json()["message"].as_str()),
        (413, Some("Request entity too large: limit is 1024 bytes for kind"))
    );
    let large = vec![b'k'; (3 << 20) + 1];
    assert_eq!(world.send_request("POST", LOGIN, &[("content-type", PROTOBUF)], &large).await.status, 413);
    assert!(world.audit.lock().expect("lock").is_empty());
    assert_eq!(world.chain.handler().bodies.charged_bytes(), 0);
}

#[tokio::test]
async fn discovery_documents_have_the_requested_format() {
    let world = World::new("pinniped.dev");
    let aggregated = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (path, kind) in [
        ("/apis", "APIGroupList"),
        ("/apis/login.concierge.pinniped.dev", "APIGroup"),
        ("/apis/login.concierge.pinniped.dev/v1alpha1", "APIResourceList"),
    ] {
        let response = world.send_request("GET", path, &[("accept", PROTOBUF)], "").await;
        assert_eq!((response.status, response.header("content-type")), (200, PROTOBUF), "{path}");
        let envelope = Envelope::decode(&response.bytes).expect(path);
        assert_eq!((envelope.api_version, envelope.kind), (&b"v1"[..], kind.as_bytes()));
        let yaml = world.send_request("GET", path, &[("accept", "application/yaml")], "").await;
        assert!(yaml.body.contains(&format!("kind: {kind}\n")), "{}", yaml.body);
    }
    for path in ["/apis", "/apis/login.concierge.pinniped.dev", LOGIN] {
        let refused = world.send_request("GET", path, &[("accept", "text/html")], "").await;
        assert_eq!(refused.status, 406);
        assert!(refused.body.contains("Available representations: application/json"), "{path}");
    }
    let mut tags = Vec::new();
    for media_type in ["application/json", "application/yaml", PROTOBUF] {
        let wanted = format!("{media_type}{aggregated}");
        let response = world.send_request("GET", "/apis", &[("accept", &wanted)], "").await;
        assert_eq!((response.status, response.header("content-type")), (200, &*wanted));
        assert_eq!((response.header("vary"), response.header("cache-control")), ("Accept", "public"));
        match media_type {
            "application/json" => assert!(response.body.ends_with("}}\n"), "{}", response.body),
            "application/yaml" => assert!(response.body.contains("kind: APIGroupDiscoveryList\n")),
            _ => {
                let envelope = Envelope::decode(&response.bytes).expect("an envelope");
                assert_eq!(envelope.api_version, b"apidiscovery.k8s.io/v2");
            }
        }
        tags.push(response.header("etag").to_owned());
    }
    tags.dedup();
    assert_eq!(tags.len(), 1);
}

#[tokio::test]
async fn discovery_supports_the_legacy_and_the_aggregated_format() {
    let world = World::new("pinniped.dev");
    let new = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let both = format!(
        "{new},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    );
    let response = world.send_request("GET", "/apis", &[("accept", &both)], "").await;
    assert_eq!(
        (response.status, response.header("content-type"), response.header("cache-control")),
        (200, new, "public")
    );
    assert_eq!(response.json()["items"].as_array().map(Vec::len), Some(2));
    let etag = response.header("etag").to_owned();
    let again = world.send_request("GET", "/apis", &[("accept", &both), ("if-none-match", &etag)], "").await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));

    let old = world.send_request("GET", "/apis", &[("accept", "application/json")], "").await.json();
    assert_eq!(old["kind"], "APIGroupList");
    assert!(old.get("apiVersion").is_none());
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let refused = world.send_request("GET", "/apis", &[("accept", beta)], "").await;
    assert_eq!(refused.status, 406);
    assert_eq!(
        refused.json()["message"],
        "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
    );
    for uri in ["/apis/login.concierge.pinniped.dev/v1alpha1", "/apis/login.concierge.pinniped.dev/v1alpha1/"]
    {
        assert_eq!(world.send_request("GET", uri, &[], "").await.json()["kind"], "APIResourceList");
    }
}

#[tokio::test]
async fn unknown_paths_return_the_list_of_known_paths() {
    let world = World::new("tuna.io");
    let root = world.send_request("GET", "/", &[], "").await;
    assert_eq!(root.status, 200);
    assert!(
        root.body
            .starts_with("{\n  \"paths\": [\n    \"/apis\",\n    \"/apis/identity.concierge.tuna.io\",\n")
    );
    for uri in ["/nope", "/api", "/apis/login.concierge.pinniped.dev", "/healthz/nope"] {
        let response = world.send_request("GET", uri, &[], "").await;
        assert_eq!((response.status, &response.body), (404, &root.body), "{uri}");
    }
}

#[tokio::test]
async fn openapi_documents_have_tags_and_hashes() {
    let world = World::new("pinniped.dev");
    let v2 = world.send_request("GET", "/openapi/v2", &[("accept", "application/json")], "").await;
    assert_eq!((v2.status, v2.header("last-modified")), (200, "Fri, 02 Jan 2026 03:04:05 GMT"));
    let again = world.send_request("GET", "/openapi/v2", &[("if-none-match", v2.header("etag"))], "").await;
    assert_eq!(again.status, 304);
    let index = world.send_request("GET", "/openapi/v3", &[], "").await.json();
    let url = index["paths"]["apis/login.concierge.pinniped.dev/v1alpha1"]["serverRelativeURL"].clone();
    let document = world.send_request("GET", url.as_str().expect("a URL"), &[], "").await;
    assert_eq!((document.status, document.header("cache-control")), (200, "public, immutable"));
    assert_eq!(document.json()["openapi"], "3.0.0");
    assert_eq!(
        (document.header("vary"), document.header("content-encoding")),
        ("Accept-Encoding, Accept", "")
    );
    let moved = world.send_request("GET", "/openapi/v3/version?hash=OLD", &[], "").await;
    assert_eq!(moved.status, 301);
    assert!(moved.header("location").starts_with("/openapi/v3/version?hash="));
}

#[tokio::test]
async fn openapi_documents_have_the_requested_format_and_encoding() {
    let world = World::new("pinniped.dev");
    let documents = &world.chain.handler().openapi;
    let protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let deprecated = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let both = format!("application/json;q=0.5,{deprecated}");
    for (accept, wanted, document) in [
        ("", "application/json", &documents.v2),
        ("*/*", "application/json", &documents.v2),
        (deprecated, protobuf, &documents.v2_protobuf),
        (protobuf, protobuf, &documents.v2_protobuf),
        (&*both, protobuf, &documents.v2_protobuf),
    ] {
        for (encoding, compressed) in [
            ("", false),
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip, gzip;q=0", false),
            ("identity, *", false),
        ] {
            let headers = [("accept", accept), ("accept-encoding", encoding)];
            let response = world.send_request("GET", "/openapi/v2", &headers, "").await;
            assert_eq!((response.status, response.header("content-type")), (200, wanted), "{accept}");
            let bytes =
                if compressed { document.compressed.as_ref().expect("gzip") } else { &document.bytes };
            assert!(response.bytes == bytes, "{accept} {encoding}");
            assert_eq!(response.header("content-encoding"), if compressed { "gzip" } else { "" });
            assert_eq!(response.header("vary"), "Accept-Encoding, Accept");
            assert_eq!(response.header("etag"), documents.v2.etag());
        }
        let headers =
            [("accept", accept), ("accept-encoding", "gzip"), ("if-none-match", &documents.v2.etag())];
        let known = world.send_request("GET", "/openapi/v2", &headers, "").await;
        assert_eq!((known.status, known.bytes.len()), (304, 0));
        for absent in ["content-type", "content-encoding", "last-modified"] {
            assert!(!known.headers.contains_key(absent), "{absent}");
        }
    }
    let login = "/openapi/v3/apis/login.concierge.pinniped.dev/v1alpha1";
    let response = world.send_request("GET", login, &[("accept-encoding", "gzip")], "").await;
    assert_eq!((response.status, response.header("content-encoding")), (200, "gzip"));
    for (path, accept) in [("/openapi/v2", "text/html"), (login, protobuf), (login, "nonsense")] {
        let refused = world.send_request("GET", path, &[("accept", accept)], "").await;
        assert_eq!((refused.status, refused.bytes.len()), (406, 0), "{path} {accept}");
    }
}

#[tokio::test]
async fn statusz_lists_the_paths_and_needs_a_permission() {
    let world = World::new("pinniped.dev");
    let page = world.send_request("GET", "/statusz", &[], "").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/plain; charset=utf-8"));
    assert!(page.body.contains("\nStarted: Fri Jan  2 03:04:05 UTC 2026\nUp: 0 hr 00 min 00 sec\n"));
    assert!(page.body.ends_with("\nPaths: /healthz /livez /metrics /readyz /version\n"), "{}", page.body);
    let refused = world.send_request("GET", "/statusz", &[("authorization", "Bearer nobody")], "").await;
    assert_eq!(
        (refused.status, refused.json()["message"].as_str()),
        (403, Some("forbidden: User \"nobody\" cannot get path \"/statusz\""))
    );
    let refused = world.send_request("GET", "/statusz", &[("accept", "application/json")], "").await;
    assert_eq!(refused.status, 406);
}

#[tokio::test]
async fn the_state_of_the_process_needs_a_permission() {
    let world = World::new("pinniped.dev");
    let page = world.send_request("GET", "/debug/state", &[], "").await;
    assert_eq!((page.status, page.header("content-type")), (200, "application/json"));
    assert_eq!(page.header("cache-control"), "no-cache, private");
    let state = page.json();
    assert_eq!(state["slowestRequests"], json!([]));
    let limit = "pinniped_requests_in_flight_limit{server=\"aggregated_api\",limit=\"short\"}";
    assert_eq!(state["metrics"][limit], InFlightLimits::AGGREGATED_API.short);
    let refused = world.send_request("GET", "/debug/state", &[("authorization", "Bearer nobody")], "").await;
    assert_eq!(
        (refused.status, refused.json()["message"].as_str()),
        (403, Some("forbidden: User \"nobody\" cannot get path \"/debug/state\""))
    );
    assert_eq!(world.send_request("GET", "/debug", &[], "").await.status, 404);
    assert_eq!(world.send_request("GET", "/debug/state/x", &[], "").await.status, 404);
}

#[tokio::test]
async fn health_is_anonymous_and_invalid_paths_are_refused() {
    let world = World::new("pinniped.dev");
    for uri in ["/healthz", "/livez", "/readyz"] {
        let response = world.send_request("GET", uri, &[("authorization", "Bearer nobody")], "").await;
        assert_eq!((response.status, response.body.as_str()), (200, "ok"), "{uri}");
    }
    let version = world.send_request("GET", "/version", &[], "").await.json();
    assert_eq!(
        (&version["compiler"], &version["gitVersion"]),
        (&"rustc".into(), &pinniped_version::VERSION.into())
    );
    let open_metrics = [("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    assert!(world.send_request("GET", "/metrics", &open_metrics, "").await.body.ends_with("# EOF\n"));
    assert!(!world.send_request("GET", "/metrics", &[], "").await.body.contains("# EOF"));
    assert_eq!(world.send_request("GET", "/a%zz", &[], "").await.status, 400);
    let response = world.send_request("GET", "/api/v1/watch", &[], "").await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (
            500,
            "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch\n"
        )
    );
}

#[tokio::test]
async fn error_texts_contain_the_path_but_not_the_host_of_a_request_over_http2() {
    let world = World::new("pinniped.dev");
    let response = world.send_request("GET", "https://concierge.example:443/api/v1/watch?a=b", &[], "").await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (
            500,
            "Internal Server Error: \"/api/v1/watch?a=b\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch?a=b\n"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn requests_are_refused_once_clients_have_been_notified_of_the_shutdown() {
    let world = World::new("pinniped.dev");
    world.draining.begin();
    assert_eq!(world.send_request("GET", "/version", &[], "").await.status, 200);
    tokio::time::advance(Duration::from_secs(3)).await;
    let response = world.send_request("GET", "/version", &[], "").await;
    assert_eq!((response.status, response.header("retry-after")), (503, "1"));
    assert_eq!(response.json()["message"], "apiserver is shutting down");
    assert_eq!(response.header("cache-control"), "no-cache, private");
}

#[tokio::test]
async fn a_second_space_before_the_token_causes_a_warning() {
    let world = World::new("pinniped.dev");
    let response = world.send_request("GET", "/version", &[("authorization", "Bearer  good")], "").await;
    let wanted = "299 - \"the provided Authorization header contains extra space before the bearer token, and is ignored\"";
    assert_eq!((response.status, response.header("warning")), (200, wanted));
}

/// Acquires all permits that this user can hold, or all anonymous clients together.
async fn all_of(in_flight: &InFlight, class: RequestClass, user: Option<&str>) -> Vec<InFlightPermit> {
    let mut permits = Vec::new();
    for address in 1..=100 {
        let address = std::net::Ipv4Addr::new(10, 0, 0, address).into();
        let client = user.map_or(ClientKey::anonymous(Some(address)), ClientKey::user);
        while let Ok(permit) = in_flight.enter(&client, class).await {
            permits.push(permit);
        }
    }
    permits
}

#[tokio::test]
async fn excess_requests_of_a_user_get_429_and_those_of_others_are_served() {
    let world = World::new("pinniped.dev");
    let held_permits = all_of(&world.in_flight, RequestClass::Mutating, None).await;
    assert_eq!(held_permits.len(), LOGINS_IN_FLIGHT * 3 / 4);
    let response = world.send_request("POST", LOGIN, &[], TCR).await;
    assert_eq!((response.status, response.header("retry-after")), (429, "1"));
    assert_eq!(response.body, "Too many requests, please try again later.\n");
    assert_eq!(world.send_request("GET", LOGIN, &[], "").await.status, 200);
    let with_token = [("authorization", "Bearer good")];
    assert_eq!(world.send_request("POST", LOGIN, &with_token, TCR).await.status, 201);
}

#[tokio::test]
async fn a_request_that_impersonates_needs_a_permit_before_its_reviews() {
    let world = World::new("pinniped.dev");
    let headers = [("authorization", "Bearer nobody"), ("impersonate-user", "jane")];
    let held_permits = all_of(&world.in_flight, RequestClass::Mutating, Some("nobody")).await;
    assert_eq!(world.send_request("POST", WHOAMI, &headers, "{}").await.status, 429);
    drop(held_permits);
    assert_eq!(world.send_request("POST", WHOAMI, &headers, "{}").await.status, 403);
}

#[tokio::test]
async fn health_probes_succeed_without_free_permits() {
    let world = World::new("pinniped.dev");
    let _anonymous = all_of(&world.in_flight, RequestClass::ReadOnly, None).await;
    let _pinny = all_of(&world.in_flight, RequestClass::ReadOnly, Some("pinny")).await;
    let refused = |count: usize| {
        let sample = r#"pinniped_requests_over_limit_total{server="aggregated_api",limit="short"}"#;
        world.has_metric(&format!("{sample} {count}"))
    };
    let before = (0..1000).find(|count| refused(*count)).expect("a count");
    assert_eq!(world.send_request("GET", "/version", &[], "").await.status, 429);
    assert_eq!(world.send_request("GET", "/healthz", &[], "").await.status, 200);
    assert!(refused(before + 1), "the probe is not refused");
    let with_token = [("authorization", "Bearer good")];
    assert_eq!(world.send_request("GET", "/healthz", &with_token, "").await.status, 429);
    let impersonating = [("impersonate-user", "jane")];
    assert_eq!(world.send_request("GET", "/healthz", &impersonating, "").await.status, 429);
}

#[tokio::test]
async fn a_client_can_only_shorten_the_deadline() {
    let world = World::new("pinniped.dev");
    let slow = Webhook { slow: true, waiting: Arc::default() };
    let key = pinniped_concierge_authentication::registry::AuthenticatorKey {
        api_group: "authentication.concierge.pinniped.dev".to_owned(),
        kind: "WebhookAuthenticator".to_owned(),
        name: "slow".to_owned(),
    };
    world.chain.handler().exchange.registry.insert(key, "1".to_owned(), Arc::new(slow));
    let body = r#"{"spec":{"token":"t","authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator","name":"slow"}}}"#;
    let response = world.send_request("POST", &format!("{LOGIN}?timeout=50ms"), &[], body).await;
    assert_eq!((response.status, &response.json()["reason"]), (504, &json!("Timeout")));
    assert_eq!(response.header("content-type"), "text/plain; charset=utf-8");
    let response = world.send_request("POST", &format!("{LOGIN}?timeout=abc"), &[], body).await;
    let wanted = "invalid timeout specified in the request URL - time: invalid duration \"abc\"";
    assert_eq!((response.status, &response.json()["message"]), (400, &json!(wanted)));
}

/// An authenticator that never responds, or responds immediately.
struct Webhook {
    slow: bool,
    /// The number of logins that wait for it.
    waiting: Arc<AtomicUsize>,
}

impl TokenAuthenticator for Webhook {
    fn authenticate<'a>(
        &'a self,
        _token: &'a pinniped_secret::Token,
    ) -> futures::future::BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
        Box::pin(async {
            if self.slow {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            Ok(None)
        })
    }
}

/// Returns a login with the authenticator of this name.
fn login_with(name: &str) -> String {
    json!({"spec": {"token": "t", "authenticator": {
        "apiGroup": "authentication.concierge.pinniped.dev", "kind": "WebhookAuthenticator", "name": name,
    }}})
    .to_string()
}

#[tokio::test]
async fn a_slow_authenticator_does_not_delay_logins_of_other_authenticators() {
    let world = World::new("pinniped.dev");
    let waiting = world.add_webhook("slow", true);
    world.add_webhook("fast", false);
    let (slow, fast) = (login_with("slow"), login_with("fast"));
    // All logins through the API server are anonymous.
    let mut logins: Vec<_> = (0..LOGINS_IN_FLIGHT + 100)
        .map(|_| Box::pin(world.send_request("POST", LOGIN, &[], &slow)))
        .collect();
    let mut refused = 0;
    for login in &mut logins {
        // Reviews run concurrently, so a login may have to be polled several times.
        for _ in 0..100 {
            if let std::task::Poll::Ready(response) = futures::poll!(login.as_mut()) {
                assert_eq!(response.status, 429, "{}", response.body);
                assert_eq!(response.header("retry-after"), "1");
                refused += 1;
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let waiting_logins = waiting.load(Ordering::SeqCst);
    assert_eq!(waiting_logins + refused, logins.len());
    assert!(waiting_logins > 10 && waiting_logins < LOGINS_IN_FLIGHT / 2 + 50, "{waiting_logins}");
    let response = world.send_request("POST", LOGIN, &[], &fast).await;
    assert_eq!(response.status, 201, "{}", response.body);
}

#[tokio::test]
async fn a_body_is_released_before_the_login_waits_for_its_authenticator() {
    let world = World::new("pinniped.dev");
    let waiting = world.add_webhook("slow", true);
    let padding = format!(r#"{{"metadata":{{"annotations":{{"a":"{}"}}}},"#, "a".repeat(1 << 20));
    let body = login_with("slow").replacen('{', &padding, 1);
    let mut login = Box::pin(world.send_request("POST", LOGIN, &[], &body));
    while waiting.load(Ordering::SeqCst) == 0 {
        assert!(futures::poll!(login.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(world.chain.handler().bodies.charged_bytes(), 0);
}

#[tokio::test]
async fn a_request_whose_client_goes_away_is_counted_once_as_abandoned() {
    let world = World::new("pinniped.dev");
    let waiting = world.add_webhook("slow", true);
    let body = login_with("slow");
    let mut login = Box::pin(world.send_request("POST", LOGIN, &[], &body));
    while waiting.load(Ordering::SeqCst) == 0 {
        assert!(futures::poll!(login.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    let request =
        "pinniped_requests_total{server=\"aggregated_api\",verb=\"create\",group=\"other\",code_class=";
    let login_line = concat!(
        r#"pinniped_logins_total{authenticator_kind="webhook",strategy="none",result="abandoned","#,
        r#"authenticator="slow"} 1"#
    );
    assert!(!world.has_metric(&format!("{request}\"abandoned\"}} 1")) && !world.has_metric(login_line));
    drop(login);
    assert!(world.has_metric(&format!("{request}\"abandoned\"}} 1")) && world.has_metric(login_line));
    // A request that has a response is not abandoned.
    world.add_webhook("fast", false);
    assert_eq!(world.send_request("POST", LOGIN, &[], &login_with("fast")).await.status, 201);
    assert!(world.has_metric(&format!("{request}\"2xx\"}} 1")));
    assert!(world.has_metric(&format!("{request}\"abandoned\"}} 1")) && world.has_metric(login_line));
}
