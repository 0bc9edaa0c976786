//! Metrics of requests and certificates.

use std::sync::Arc;

use http::{Method, Request};
use http_body_util::Full;
use pinniped_gateway_dataplane::Gateway;
use pinniped_gateway_routing::table::{Action, Fallback, Forward, HostMap, TlsVersions};
use pinniped_metrics::Metrics;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::upgrades;
use crate::world::{
    Backend, Client, Http1, Table, all_to, certificate, forward, gateway, pair, prefix, to, until, within,
};

/// Returns a reader of a metric without labels, or of the sum over its labels.
fn reader(gateway: &Gateway) -> impl Fn(&str) -> u64 {
    let metrics = Metrics::new();
    gateway.request_metrics().register(&metrics);
    move |prefix| {
        let text = metrics.text().unwrap();
        let samples = text.lines().filter(|line| line.starts_with(prefix));
        samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    }
}

/// Returns the start of the samples of one method and class.
fn requests(method: &str, class: &str) -> String {
    format!("pinniped_gateway_requests_total{{method=\"{method}\",code_class=\"{class}\"}}")
}

const ALL: &str = "pinniped_gateway_requests_total{";
const IN_FLIGHT: &str = "pinniped_gateway_requests_in_flight";
const DURATIONS: &str = "pinniped_gateway_request_duration_seconds_count{";

#[tokio::test]
async fn each_request_is_counted_once_by_its_method_and_the_class_of_its_response() {
    let backend = Backend::http("backend").await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gateway = gateway();
    let read = reader(&gateway);
    let routes = vec![
        prefix("/", Action::Forward(forward(to(&[backend.address])))),
        prefix("/dead", Action::Forward(forward(to(&[dead])))),
    ];
    Table::new().https("a.local", &pair(&["a.local"]), routes).serve(&gateway);
    let mut http = Http1::tls(&gateway, "a.local").await;
    for (method, host, path, status, class) in [
        ("GET", "a.local", "/", 200, "2xx"),
        ("POST", "a.local", "/", 200, "2xx"),
        ("GET", "a.local", "/dead", 503, "5xx"),
        ("GET", "b.local", "/", 421, "4xx"),
        ("INVENTED", "a.local", "/", 200, "2xx"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let label = if method.as_str() == "INVENTED" { "other" } else { method.as_str() };
        let before = (read(&requests(label, class)), read(ALL), read(DURATIONS));
        let request = Request::builder().method(&method).uri(path).header("host", host);
        let response = http.send(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(response.status, status, "{method} {host}{path}");
        let after = (read(&requests(label, class)), read(ALL), read(DURATIONS));
        assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1), "{method} {host}{path}");
    }
    until("no request is in flight", || read(IN_FLIGHT) == 0).await;
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_response_has_ended_or_its_client_has_gone() {
    let backend = Backend::start(|mut stream: TcpStream| async move {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).await.unwrap_or_default();
        if bytes[..read].starts_with(b"GET /begun ") {
            let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun").await;
        }
        // Until the gateway closes the connection.
        while let Ok(1..) = stream.read(&mut bytes).await {}
    })
    .await;
    let gateway = gateway();
    let read = reader(&gateway);
    Table::new().plain("a", all_to(to(&[backend.address]))).serve(&gateway);
    assert_eq!(read(IN_FLIGHT), 0);
    let request = |path: &str| Request::get(path).header("host", "a").body(Full::default()).unwrap();

    let mut begun = Http1::plain(&gateway).await;
    let response = within(begun.sender.send_request(request("/begun"))).await.unwrap();
    assert_eq!((read(IN_FLIGHT), read(&requests("GET", "2xx"))), (1, 1));
    let mut silent = Http1::plain(&gateway).await;
    let mut waiting = Box::pin(silent.sender.send_request(request("/silent")));
    assert!(futures::poll!(&mut waiting).is_pending());
    until("both requests are in flight", || read(IN_FLIGHT) == 2).await;
    assert_eq!(read(ALL), 1, "only one response has begun");

    drop((waiting, silent));
    until("the client of the silent backend has gone", || read(IN_FLIGHT) == 1).await;
    assert_eq!((read(&requests("GET", "abandoned")), read(ALL), read(DURATIONS)), (1, 2, 2));
    drop((response, begun));
    until("the other client has gone", || read(IN_FLIGHT) == 0).await;
    assert_eq!((read(ALL), read(DURATIONS)), (2, 2), "a response that was cut off is counted once");
}

#[tokio::test]
async fn an_upgraded_connection_is_a_request_in_flight_until_it_is_closed() {
    let backend = upgrades::websocket().await;
    let gateway = gateway();
    let read = reader(&gateway);
    let websockets = |backends| Action::Forward(Forward { websockets: true, ..forward(backends) });
    let routes =
        vec![prefix("/", websockets(to(&[backend.address]))), prefix("/nowhere", websockets(to(&[])))];
    Table::new().https("a.local", &pair(&["a.local"]), routes).serve(&gateway);
    let connect = async || Client::new().connect(gateway.tls_addr(), "a.local").await.unwrap();
    let send_request = async |path: &str| {
        let request = upgrades::request(path, "websocket");
        pinniped_test_support::wire::raw_request(connect().await, request.as_bytes()).await.unwrap()
    };
    let mut upgraded = send_request("/").await;
    assert_eq!(upgraded.status, 101, "{}", upgraded.head);
    assert_eq!((read(IN_FLIGHT), read(&requests("GET", "1xx"))), (1, 1));
    assert_eq!(send_request("/nowhere").await.status, 503);
    assert_eq!(read(&requests("GET", "5xx")), 1);
    upgraded.stream.shutdown().await.unwrap();
    drop(upgraded);
    until("the upgraded connection is closed", || read(IN_FLIGHT) == 0).await;
    assert_eq!(read(ALL), 2);
}

#[tokio::test]
async fn the_expiry_of_each_certificate_of_the_routing_table_is_read_once() {
    let gateway = gateway();
    let read = gateway.certificate_expiries();
    assert_eq!(read(), []);
    let (own, fallback) = (pair(&["a.local"]), pair(&["fallback"]));
    let routes = || all_to(to(&[]));
    let mut table = Table::new()
        .https("a.local", &own, routes())
        .passthrough("passed.local", to(&[]))
        .plain("plain.local", routes());
    // The builder uses one value for all hosts with the same Secret.
    let host =
        Arc::clone(table.0.tls.hosts.iter().find(|(name, _)| name.to_string() == "a.local").unwrap().1);
    table = table.tls("b.local", host.action.clone());
    table.0.tls.fallback = Some(Arc::new(Fallback {
        certificate: certificate(&fallback),
        versions: TlsVersions::default(),
        hosts: HostMap::default(),
    }));
    let mut expected = [&own, &fallback].map(|pair| certificate(pair).leaf().not_after);
    expected.sort();
    table.serve(&gateway);
    let mut found = read();
    found.sort();
    assert_eq!(found, expected);
    Table::new().serve(&gateway);
    assert_eq!(read(), []);
}
