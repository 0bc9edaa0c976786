use std::time::Duration;

use opentelemetry::trace::SpanId;
use opentelemetry_sdk::trace::SpanData;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_pki::{CaBundle, CertificateAuthority, Validity};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::export::{Exporter, TracesParams, start};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const EVERY: u32 = 1_000_000;

fn with_endpoint(endpoint: &str, rate: u32) -> (Tracer, Exporter) {
    pinniped_pki::install_crypto_provider();
    let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
    let ca = CertificateAuthority::generate("collector", &validity).unwrap();
    start(TracesParams {
        url: crate::endpoint(endpoint).unwrap(),
        sampling_rate_per_million: rate,
        roots: Roots::Bundle(CaBundle::from_pem(ca.certificate_pem().as_bytes()).unwrap()),
        ciphers: CipherRestriction::default(),
        proxies: ProxyEnvironment::default(),
        user_agent: http::HeaderValue::from_static("test"),
        resource: vec![("service.name", "test".to_owned())],
    })
    .unwrap()
}

fn tracer(rate: u32) -> (Tracer, Exporter) {
    with_endpoint("https://127.0.0.1:1", rate)
}

fn headers(flags: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = format!("00-{TRACE}-{SPAN}-{flags}");
    headers.insert("traceparent", value.try_into().unwrap());
    headers.insert("tracestate", http::HeaderValue::from_static("vendor=1"));
    headers
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|kv| kv.key.as_str() == key).map(|kv| kv.value.to_string())
}

#[test]
fn a_client_that_is_not_trusted_has_no_effect_on_the_rate() {
    let (none, mut exporter) = tracer(0);
    for _ in 0..1000 {
        assert!(none.begin(&headers("01"), || false).is_none());
    }
    assert_eq!(exporter.finished(), []);
    let (every, mut exporter) = tracer(EVERY);
    every.begin(&headers("00"), || false).unwrap().end(StatusCode::OK);
    let [span] = exporter.finished().try_into().unwrap();
    assert_ne!(span.span_context.trace_id().to_string(), TRACE);
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    let [link] = &span.links.links[..] else { panic!("{:?}", span.links) };
    assert_eq!(link.span_context.trace_id().to_string(), TRACE);
    assert_eq!(link.span_context.span_id().to_string(), SPAN);
    assert_eq!(link.span_context.trace_state().header(), "");
}

#[test]
fn a_trusted_client_decides_and_its_trace_is_continued() {
    let (none, mut exporter) = tracer(0);
    let span = none.begin(&headers("01"), || true).unwrap();
    drop(span);
    let [span] = exporter.finished().try_into().unwrap();
    assert_eq!(span.span_context.trace_id().to_string(), TRACE);
    assert_eq!(span.parent_span_id.to_string(), SPAN);
    assert_eq!(span.span_context.trace_state().header(), "vendor=1");
    assert!(span.parent_span_is_remote && span.links.links.is_empty());
    let (every, _exporter) = tracer(EVERY);
    assert!(every.begin(&headers("00"), || true).is_none());
}

#[test]
fn the_configured_share_of_requests_without_a_context_is_recorded() {
    let begun = |rate, count| {
        let (tracer, _exporter) = tracer(rate);
        let trusted = || panic!("without a context, there is nothing to trust");
        (0..count).filter(|_| tracer.begin(&HeaderMap::new(), trusted).is_some()).count()
    };
    assert_eq!((begun(0, 1000), begun(EVERY, 100)), (0, 100));
    // The expected number is 1000, with a standard deviation of 27.
    let quarter = begun(EVERY / 4, 4000);
    assert!((750..1250).contains(&quarter), "{quarter}");
}

#[tokio::test]
async fn spans_of_calls_are_below_the_span_of_the_request() {
    let (tracer, mut exporter) = tracer(EVERY);
    assert!(child("outside", SpanKind::Client).is_none());
    let request = tracer.begin(&HeaderMap::new(), || false).unwrap();
    let sent = request
        .instrument(async {
            tokio::task::yield_now().await;
            let mut call = child("call", SpanKind::Client).unwrap();
            let mut sent = headers("00");
            call.inject(&mut sent);
            // A task of its own has no current span.
            assert!(tokio::spawn(async { child("task", SpanKind::Client).is_none() }).await.unwrap());
            call.respond(StatusCode::NOT_FOUND);
            sent
        })
        .await;
    assert!(child("outside", SpanKind::Client).is_none());
    request.set_name("GET /x");
    request.end(StatusCode::NOT_FOUND);
    let [call, request] = exporter.finished().try_into().unwrap();
    assert_eq!((&*call.name, &*request.name), ("call", "GET /x"));
    assert_eq!(call.parent_span_id, request.span_context.span_id());
    let (trace, span) = (call.span_context.trace_id(), call.span_context.span_id());
    assert_eq!(sent["traceparent"], format!("00-{trace}-{span}-01"));
    assert!(!sent.contains_key("tracestate"), "the state belongs to the trace of the client");
    // A response of 404 is an error of the call, and none of the server that passes it on.
    assert_eq!(attribute(&call, "error.type").as_deref(), Some("404"));
    assert_eq!(attribute(&request, "error.type"), None);
    assert_eq!(attribute(&request, "http.response.status_code").as_deref(), Some("404"));
}

#[test]
fn a_span_without_a_result_is_cancelled() {
    let (tracer, mut exporter) = tracer(EVERY);
    let begin = || tracer.begin(&HeaderMap::new(), || false).unwrap();
    drop(begin());
    begin().end(StatusCode::BAD_GATEWAY);
    begin().end(StatusCode::OK);
    let types: Vec<_> = exporter.finished().iter().map(|span| attribute(span, "error.type")).collect();
    assert_eq!(types, [Some("cancelled".to_owned()), Some("502".to_owned()), None]);
}

#[test]
fn long_texts_are_truncated_between_characters() {
    let (tracer, mut exporter) = tracer(EVERY);
    let span = tracer.begin(&HeaderMap::new(), || false).unwrap();
    let long = "é".repeat(10_000) + "x";
    span.set_name(&long);
    span.set("key", &format!("x{long}"));
    span.end(StatusCode::OK);
    let [span] = exporter.finished().try_into().unwrap();
    assert_eq!((span.name.len(), attribute(&span, "key").unwrap().len()), (256, 255));
}

/// Ends more spans than fit into the queue, stops the exporter, and returns the counts of exported,
/// dropped and failed spans.
async fn overload(endpoint: &str) -> (u64, u64, u64) {
    let (tracer, exporter) = with_endpoint(endpoint, EVERY);
    for _ in 0..2048 + 10 {
        tracer.begin(&HeaderMap::new(), || false).unwrap().end(StatusCode::OK);
    }
    let counts = exporter.counts();
    assert_eq!((counts.exported(), counts.dropped(), counts.failed()), (0, 10, 0));
    let stop = CancellationToken::new();
    stop.cancel();
    exporter.run(stop).await;
    assert!(tracer.begin(&HeaderMap::new(), || false).is_none(), "nothing is recorded after the end");
    (counts.exported(), counts.dropped(), counts.failed())
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_refuses_connections_loses_spans_and_delays_no_end() {
    assert_eq!(overload("https://127.0.0.1:1").await, (0, 10, 2048));
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_does_not_respond_loses_spans_and_delays_no_end() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}", silent.local_addr().unwrap());
    assert_eq!(overload(&endpoint).await, (0, 10, 2048));
}
