//! Spans of proxied requests, as a collector receives them, and the trace context that the API
//! server receives.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::body;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_traces::{Counts, TracesParams};
use prost::Message as _;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api_server::{ApiServer, Script, Seen};
use crate::world::{Options, World};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TRACEPARENT: (&str, &str) = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
const TRACESTATE: (&str, &str) = ("tracestate", "vendor=1");
const EVERY: u32 = 1_000_000;

/// A proxy that records requests, and its collector.
struct Traced {
    world: World,
    collector: ApiServer,
    received: Arc<Mutex<Vec<Span>>>,
    counts: Counts,
    stop: CancellationToken,
    exporter: JoinHandle<()>,
}

impl Traced {
    async fn start(rate: u32, script: Script) -> Self {
        let received = Arc::<Mutex<Vec<Span>>>::default();
        let spans = Arc::clone(&received);
        let handler = move |request: http::Request<hyper::body::Incoming>| {
            let spans = Arc::clone(&spans);
            let response: futures::future::BoxFuture<'static, _> = Box::pin(async move {
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let message = ExportTraceServiceRequest::decode(bytes).unwrap();
                let new = message
                    .resource_spans
                    .into_iter()
                    .flat_map(|resource| resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
                spans.lock().unwrap().extend(new);
                http::Response::new(body::full(String::new()))
            });
            response
        };
        let collector = ApiServer::start(Script { handler: Arc::new(handler), ..Script::default() }).await;
        let endpoint = format!("https://{}", collector.address);
        let (tracer, exporter) = pinniped_traces::start(TracesParams {
            url: pinniped_traces::endpoint(&endpoint).unwrap(),
            sampling_rate_per_million: rate,
            roots: Roots::Bundle(collector.roots.clone()),
            ciphers: CipherRestriction::default(),
            proxies: ProxyEnvironment::default(),
            user_agent: HeaderValue::from_static("test/1"),
            resource: vec![("service.name", "pinniped-concierge".to_owned())],
        })
        .unwrap();
        let (counts, stop) = (exporter.counts(), CancellationToken::new());
        let exporter = tokio::spawn(exporter.run(stop.clone()));
        let world = World::start_with(script, Options { tracer: Some(tracer), ..Options::default() }).await;
        Self { world, collector, received, counts, stop, exporter }
    }

    /// Returns the forwarded requests and the exported spans by name, after the end of the export.
    async fn finish(self) -> (Vec<Seen>, HashMap<String, Span>) {
        let seen = self.world.api.seen();
        self.stop.cancel();
        self.exporter.await.unwrap();
        let spans = std::mem::take(&mut *self.received.lock().unwrap());
        assert_eq!((self.counts.exported(), self.counts.failed()), (spans.len() as u64, 0));
        for request in self.collector.seen() {
            assert_eq!(request.uri.path(), "/v1/traces");
            assert_eq!(request.all("content-type"), ["application/x-protobuf"]);
            assert_eq!(request.all("user-agent"), ["test/1"]);
        }
        (seen, spans.into_iter().map(|span| (span.name.clone(), span)).collect())
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn traceparent(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

/// Returns the attributes as text.
fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |value: &AnyValue| match value {
        AnyValue::StringValue(text) => text.clone(),
        AnyValue::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let value = |kv: &'_ opentelemetry_proto::tonic::common::v1::KeyValue| {
        text(kv.value.as_ref().unwrap().value.as_ref().unwrap())
    };
    span.attributes.iter().map(|kv| (kv.key.as_str(), value(kv))).collect()
}

#[tokio::test]
async fn the_trace_context_of_a_client_passes_unchanged_when_nothing_is_recorded() {
    for traced in [false, true] {
        let off;
        let none;
        let world = if traced {
            none = Traced::start(0, Script::default()).await;
            &none.world
        } else {
            off = World::start(Script::default()).await;
            &off
        };
        let client = world.certificate("u", &[]);
        client.get_with("/api/v1/namespaces", &[TRACEPARENT, TRACESTATE, ("baggage", "a=b")]).await;
        client.get("/api/v1/namespaces").await;
        let [with, without] = world.api.seen().try_into().unwrap();
        assert_eq!(with.all("traceparent"), [TRACEPARENT.1], "traced: {traced}");
        assert_eq!(with.all("tracestate"), [TRACESTATE.1]);
        assert_eq!(with.all("baggage"), ["a=b"]);
        assert_eq!(without.names_starting_with("trace"), <[String; 0]>::default());
    }
}

#[tokio::test]
async fn a_recorded_request_has_spans_below_its_own_and_the_api_server_gets_their_context() {
    let tokens = HashMap::from([("secret-token".to_owned(), json!({"username": "secret-user"}))]);
    let traced = Traced::start(EVERY, Script { tokens, ..Script::default() }).await;
    let client = traced.world.anonymous();
    let headers = [TRACEPARENT, TRACESTATE, ("audit-id", "an-id"), ("authorization", "Bearer secret-token")];
    let path = "/api/v1/namespaces/secret-ns/pods/secret-pod/log?container=secret-query";
    assert_eq!(client.get_with(path, &headers).await.status, StatusCode::OK);
    let (seen, spans) = traced.finish().await;

    let request = &spans["GET /api/v1/namespaces/{:namespace}/pods/{:name}/log"];
    assert_eq!(request.kind(), SpanKind::Server);
    // The trace of a client that is not trusted is not continued.
    assert_ne!(hex(&request.trace_id), TRACE);
    assert!(request.parent_span_id.is_empty());
    assert_eq!(request.links.iter().map(|link| hex(&link.trace_id)).collect::<Vec<_>>(), [TRACE]);
    let wanted = BTreeMap::from([
        ("audit-id", "an-id".to_owned()),
        ("http.request.method", "GET".to_owned()),
        ("http.response.status_code", "200".to_owned()),
        ("k8s.request.api_group", String::new()),
        ("k8s.request.resource", "pods".to_owned()),
        ("k8s.request.subresource", "log".to_owned()),
        ("k8s.request.verb", "get".to_owned()),
    ]);
    assert_eq!(attributes(request), wanted);

    for name in ["TokenReview", "SubjectAccessReview", "Forward"] {
        let call = &spans[name];
        assert_eq!(call.kind(), SpanKind::Client, "{name}");
        assert_eq!((&call.trace_id, &call.parent_span_id), (&request.trace_id, &request.span_id), "{name}");
        assert!(
            request.start_time_unix_nano <= call.start_time_unix_nano
                && call.end_time_unix_nano <= request.end_time_unix_nano,
            "{name}"
        );
        assert!(!attributes(call).contains_key("error.type"), "{name}");
    }
    assert_eq!(spans.len(), 4);
    let [forwarded] = seen.try_into().unwrap();
    assert_eq!(forwarded.all("traceparent"), [traceparent(&spans["Forward"])]);
    assert_eq!(forwarded.all("tracestate"), <[String; 0]>::default());
    assert!(!format!("{spans:?}").contains("secret"), "{spans:?}");
}

#[tokio::test]
async fn only_clients_of_privileged_groups_decide_that_their_requests_are_recorded() {
    let traced = Traced::start(0, Script::default()).await;
    let recorded = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    for (path, group) in [
        ("/api/v1/pods", "developers"),
        ("/api/v1/nodes", "system:monitoring"),
        ("/api/v1/secrets", "system:authenticated"),
    ] {
        let client = traced.world.certificate("u", &[group]);
        client.get_with(path, &[TRACEPARENT, TRACESTATE]).await;
        client
            .get_with(path, &[("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")])
            .await;
        client.get(path).await;
    }
    // A client without a certificate cannot name a group.
    let spoofed = [TRACEPARENT, ("x-remote-user", "u"), ("x-remote-group", "system:masters")];
    traced.world.anonymous().get_with("/api/v1/pods", &spoofed).await;
    let (seen, spans) = traced.finish().await;
    let names: BTreeSet<String> = spans.keys().cloned().collect();
    assert_eq!(names, recorded(&["GET /api/v1/nodes", "SubjectAccessReview", "Forward"]));
    let request = &spans["GET /api/v1/nodes"];
    assert_eq!(hex(&request.trace_id), TRACE);
    assert_eq!(hex(&request.parent_span_id), "00f067aa0ba902b7");
    let forwarded: Vec<_> = seen.iter().filter(|seen| seen.uri.path() == "/api/v1/nodes").collect();
    assert_eq!(forwarded[0].all("traceparent"), [traceparent(&spans["Forward"])]);
    assert_eq!(forwarded[0].all("tracestate"), [TRACESTATE.1]);
}

#[tokio::test]
async fn a_refused_request_has_a_span_and_a_hostile_context_is_harmless() {
    let traced = Traced::start(EVERY, Script { policy: Arc::new(|_| false), ..Script::default() }).await;
    let long = "a=".to_owned() + &"b".repeat(8000);
    let hostile = "00-".to_owned() + &"f".repeat(8000);
    let headers = [("traceparent", hostile.as_str()), ("tracestate", &long), ("audit-id", &hostile)];
    let response = traced.world.certificate("u", &[]).get_with("/api/v1/pods", &headers).await;
    assert_eq!(response.status, StatusCode::FORBIDDEN);
    let (_, spans) = traced.finish().await;
    let request = &spans["GET /api/v1/pods"];
    assert!(request.links.is_empty() && request.trace_state.is_empty());
    assert_eq!(attributes(request)["http.response.status_code"], "403");
    assert_eq!(attributes(request)["audit-id"].len(), 256);
    assert_eq!(
        spans.keys().collect::<BTreeSet<_>>(),
        BTreeSet::from([&request.name, &"SubjectAccessReview".to_owned()])
    );
}
