//! Traces of the gateway, in the header fields that a backend receives, and in a real OpenTelemetry
//! collector.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use pinniped_gateway_dataplane::{Gateway, Traces};
use pinniped_gateway_routing::table::{Action, Protocol};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_test_support::collector::{self, Collector, Span};
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::wait;
use pinniped_traces::{Exporter, TracesParams};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::upgrades;
use crate::world::{
    Backend, CA, Http1, Http2, ReceivedResponse, Table, all_to, bundle, forward, gateway_with, one, pair,
    prefix, to, upstream, within,
};

const SERVICE: &str = "gateway-under-test";
const CLIENT_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";
const EVERY_REQUEST: u32 = 1_000_000;

/// Starts a gateway with traces, and returns its exporter.
fn traced_gateway(endpoint: &str, roots: Roots, rate: u32, trusts_clients: bool) -> (Gateway, Exporter) {
    let (tracer, exporter) = pinniped_traces::start(TracesParams {
        url: pinniped_traces::endpoint(endpoint).unwrap(),
        sampling_rate_per_million: rate,
        roots,
        ciphers: CipherRestriction::default(),
        proxies: ProxyEnvironment::default(),
        user_agent: HeaderValue::from_static("gateway"),
        resource: vec![("service.name", SERVICE.to_owned())],
    })
    .unwrap();
    (gateway_with(|params| params.traces = Some(Traces { tracer, trusts_clients })), exporter)
}

/// Returns the trace, the span and the flags of a `traceparent`.
fn parts(traceparent: &str) -> [&str; 3] {
    let [_, trace, span, flags] = traceparent.split('-').collect::<Vec<_>>().try_into().unwrap();
    [trace, span, flags]
}

fn of_client() -> String {
    format!("00-{CLIENT_TRACE}-{CLIENT_SPAN}-01")
}

/// Sends a request of a client that records its own span.
async fn send_traced(connection: &mut Http1, path: &str) -> ReceivedResponse {
    let request = Request::get(path).header("host", "a.local").header("traceparent", of_client());
    connection
        .send(request.header("tracestate", "vendor=1").body(Full::<Bytes>::default()).unwrap())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_request_that_is_not_recorded_keeps_the_trace_context_of_its_client() {
    let backend = Backend::http("backend").await;
    let roots = Roots::Bundle((*bundle(&CA)).clone());
    let (gateway, _exporter) = traced_gateway("https://localhost:1", roots, 0, false);
    Table::new().plain("a.local", all_to(to(&[backend.address]))).serve(&gateway);
    let mut connection = Http1::plain(&gateway).await;
    let response = send_traced(&mut connection, "/").await;
    assert_eq!(response.report("traceparent"), Some(of_client().as_str()));
    assert_eq!(response.report("tracestate"), Some("vendor=1"));
    assert_eq!(connection.get("a.local", "/").await.report("traceparent"), None);
}

#[tokio::test]
async fn a_recorded_request_continues_the_trace_of_its_client_only_if_clients_are_trusted() {
    let backend = Backend::http("backend").await;
    for trusts_clients in [false, true] {
        // A trusted client is recorded at every rate.
        let rate = if trusts_clients { 0 } else { EVERY_REQUEST };
        let roots = Roots::Bundle((*bundle(&CA)).clone());
        let (gateway, _exporter) = traced_gateway("https://localhost:1", roots, rate, trusts_clients);
        for protocol in [Protocol::Http1, Protocol::H2c] {
            let routes = all_to(one(upstream(protocol, &[backend.address])));
            Table::new().plain("a.local", routes).serve(&gateway);
            let response = send_traced(&mut Http1::plain(&gateway).await, "/").await;
            let received = parts(response.report("traceparent").unwrap());
            assert_eq!(received[0] == CLIENT_TRACE, trusts_clients, "{received:?}");
            assert_ne!(received[1], CLIENT_SPAN);
            assert_eq!(received[2], "01");
            assert_eq!(response.report("tracestate").is_some(), trusts_clients);
        }
    }
}

#[tokio::test]
async fn a_real_collector_gets_the_spans_of_requests_and_none_of_passed_through_connections() {
    let Some(program) = collector::program() else { return };
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start(&program, dir.path(), free_port().unwrap()).await.unwrap();
    let roots = Roots::Bundle(CaBundle::from_pem(collector.ca_pem.as_bytes()).unwrap());
    let (gateway, exporter) = traced_gateway(&collector.endpoint, roots, EVERY_REQUEST, false);
    let stop = CancellationToken::new();
    let counts = exporter.counts();
    let exporting = tokio::spawn(exporter.run(stop.clone()));

    let own = pair(&["passed.local"]);
    let (plain, tls) = (Backend::http("plain").await, Backend::https("tls", &own, b"http/1.1").await);
    let websocket = upgrades::websocket().await;
    let mut upgrade = forward(to(&[websocket.address]));
    upgrade.websockets = true;
    let routes = || {
        let nowhere = forward(one(upstream(Protocol::Http1, &[])));
        vec![
            prefix("/", Action::Forward(forward(to(&[plain.address])))),
            prefix("/ws", Action::Forward(upgrade.clone())),
            prefix("/nowhere", Action::Forward(nowhere)),
        ]
    };
    Table::new()
        .https("a.local", &pair(&["a.local"]), routes())
        .plain("a.local", routes())
        .passthrough("passed.local", to(&[tls.address]))
        .serve(&gateway);

    // The bytes of a passed-through connection are not interpreted.
    let mut passed = Http1::tls(&gateway, "passed.local").await;
    assert_eq!(passed.get("passed.local", "/").await.backend_name(), "tls");

    let mut connection = Http1::tls(&gateway, "a.local").await;
    let received = send_traced(&mut connection, "/secret-path?secret-query").await;
    let [trace, forward_span, _] = parts(received.report("traceparent").unwrap()).map(str::to_owned);
    assert_eq!(connection.get("a.local", "/nowhere").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(Http1::plain(&gateway).await.get("b.local", "/").await.status, StatusCode::NOT_FOUND);
    assert_eq!(Http2::tls(&gateway, "a.local").await.get("a.local", "/").await.status, StatusCode::OK);
    let mut stream = TcpStream::connect(gateway.plain_addr()).await.unwrap();
    stream.write_all(upgrades::request("/ws", "websocket").as_bytes()).await.unwrap();
    let mut status = [0; 12];
    within(stream.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 101");
    // Five requests, of which four are forwarded. A stop has little time for what remains.
    let all = async || (counts.exported() >= 9).then_some(());
    wait::until(Duration::from_secs(60), "the export of all spans", all).await.unwrap();
    stop.cancel();
    exporting.await.unwrap();

    let is = |name: &'static str, key: &'static str, value: &'static str| {
        move |span: &Span| span.name == name && span.attributes.get(key).is_some_and(|found| found == value)
    };
    let find =
        async |what: &str, fits: &dyn Fn(&Span) -> bool| collector.span(SERVICE, what, fits).await.unwrap();
    let sent = find("the request to the backend", &|span| span.id == forward_span).await;
    assert_eq!((sent.name.as_str(), sent.trace.as_str()), ("Forward", trace.as_str()));
    assert_eq!(sent.attributes["peer.service"], "ns/Http1:80");
    let request = find("the request", &|span| span.id == sent.parent).await;
    assert_eq!(request.name, "GET");
    assert_eq!((request.parent.as_str(), request.attributes["url.scheme"].as_str()), ("", "https"));
    assert_eq!(request.links, [(CLIENT_TRACE.to_owned(), CLIENT_SPAN.to_owned())]);
    // The backend has no endpoint.
    let failed = find("a failed request to a backend", &is("Forward", "error.type", "no_endpoint")).await;
    let request = find("its request", &|span| span.id == failed.parent).await;
    assert_eq!(request.attributes["error.type"], "503");
    find("the request without TLS", &is("GET", "url.scheme", "http")).await;

    // HTTPS, its failure, the host that does not exist, HTTP/2, and the upgrade; and all of them,
    // except for the one without a route. They may arrive in several exports.
    let count = |name| collector.spans().iter().filter(|span| span.name == name).count();
    let all = async || (count("GET") >= 5 && count("Forward") >= 4).then_some(());
    wait::until(Duration::from_secs(60), "all spans", all).await.unwrap();
    let spans = collector.spans();
    assert_eq!((count("GET"), count("Forward")), (5, 4), "{spans:#?}");
    let text = format!("{spans:?}");
    assert!(!text.contains("secret") && !text.contains("local"), "{text}");
}
