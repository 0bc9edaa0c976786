//! Concurrent streams and the connection pool.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::runtime::watcher::{self, watcher};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_server::{Body, BoxError, body, workers};
use pinniped_impersonation_proxy::proxy::InFlightLimits;
use pinniped_kube_client::{
    ApiServerError, RequestBody, Upstream, UpstreamLimits, UpstreamParams, kube_client, through,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::api_server::{ApiServer, Handler, Script, json_response};
use crate::world::{Options, PATIENCE, World, eventually, upstream_of};

/// Sends one event, then nothing.
fn watch_handler() -> Handler {
    Arc::new(|_| {
        Box::pin(async {
            let event = futures::stream::once(async { Ok::<_, BoxError>(Frame::data(Bytes::from("event"))) });
            let silence = futures::stream::pending();
            let stream = futures::StreamExt::chain(event, silence);
            http::Response::new(Body::new(StreamBody::new(stream)))
        })
    })
}

#[tokio::test]
async fn more_watches_than_one_connection_allows_are_all_served() {
    let script = Script { handler: watch_handler(), max_streams: 100, ..Script::default() };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    let h2 = client.h2::<Body>().await;
    let watches = (0..150).map(|_| {
        let mut h2 = h2.clone();
        let request = client.request("/api/v1/pods?watch=1").body(body::empty()).unwrap();
        async move {
            let mut body = h2.send_request(request).await.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
            body
        }
    });
    let open = tokio::time::timeout(PATIENCE, join_all(watches)).await.expect("every watch is answered");
    assert_eq!(open.len(), 150);
    assert_eq!(world.upstream.stats().streams, 150);
    assert!(world.upstream.stats().connections >= 2);

    // Ordinary requests still succeed over the same pool.
    let other = world.certificate("other", &[]);
    let response = other
        .h2::<Body>()
        .await
        .send_request(other.request("/x").body(body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);

    drop((open, response));
    eventually("all streams are given back", || world.upstream.stats().streams == 0).await;
}

#[tokio::test]
async fn a_slow_reader_does_not_block_other_clients() {
    let script = Script {
        handler: Arc::new(|request| {
            Box::pin(async move {
                if request.uri().path() == "/flood" {
                    let chunk = || async {
                        Some((Ok::<_, BoxError>(Frame::data(Bytes::from(vec![0; 16 << 10]))), ()))
                    };
                    let flood = futures::stream::unfold((), move |()| chunk());
                    return http::Response::new(Body::new(StreamBody::new(flood)));
                }
                http::Response::new(body::full("quick"))
            })
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    // On every worker; otherwise the fast requests would not share a connection with them.
    let mut floods = Vec::new();
    for _ in 0..workers::Share::Half.count() {
        let slow = client.h2::<Body>().await;
        let of_one = (0..20).map(|_| {
            let mut slow = slow.clone();
            let request = client.request("/flood").body(body::empty()).unwrap();
            async move { slow.send_request(request).await.unwrap() }
        });
        // The bodies of these responses are never read.
        floods.push((join_all(of_one).await, slow));
    }
    for _ in 0..20 {
        let response = tokio::time::timeout(PATIENCE, client.get("/quick")).await.expect("not stopped");
        assert_eq!(response.text, "quick");
    }
    assert_eq!(world.upstream.stats().connections, workers::Share::Half.count());
    drop(floods);
}

fn get(path: &str) -> Request<RequestBody> {
    Request::get(path).body(RequestBody::Empty).unwrap()
}

#[tokio::test]
async fn the_pool_closes_unused_connections() {
    let script = Script { handler: watch_handler(), max_streams: 2, ..Script::default() };
    let api = ApiServer::start(script).await;
    let mut params =
        UpstreamParams::new(format!("https://{}", api.address).parse().unwrap(), api.roots.clone());
    params.limits = UpstreamLimits { idle_timeout: Duration::ZERO, ..UpstreamLimits::default() };
    let upstream = Upstream::new(params).unwrap();
    // The limit is known after the first response.
    drop(upstream.send(get("/first")).await.unwrap());
    let open = join_all((0..6).map(|_| upstream.send(get("/watch")))).await;
    assert!(open.iter().all(Result::is_ok));
    // The first request was cancelled, and still counts.
    assert_eq!(upstream.stats().connections, 4);
    drop(open);
    // Without another request, which may not arrive for a long time after a peak.
    eventually("all but one are closed", || upstream.stats().connections == 1).await;
    drop(upstream.send(get("/last")).await.unwrap());
    assert_eq!(upstream.stats().connections, 1);
}

#[tokio::test]
async fn the_pool_connects_through_the_proxy_of_the_environment() {
    let handler: Handler = Arc::new(|_| Box::pin(async { http::Response::new(body::full("answer")) }));
    let api = ApiServer::start(Script { handler, ..Script::default() }).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let environment =
        ProxyEnvironment::new(format!("http://{}", listener.local_addr().unwrap()), "10.0.0.0/8");
    let target = api.address;
    let proxy = AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut requested = Vec::new();
        while !requested.ends_with(b"\r\n\r\n") {
            requested.push(client.read_u8().await.unwrap());
        }
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
        let mut server = TcpStream::connect(target).await.unwrap();
        let relaying = tokio::spawn(async move {
            let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        (String::from_utf8(requested).unwrap(), AbortOnDropHandle::new(relaying))
    }));
    let params = |server: &str| UpstreamParams::new(server.parse().unwrap(), api.roots.clone());
    // Exempt are the addresses in NO_PROXY, and always loopback.
    for exempt in ["https://10.96.0.1", "https://127.0.0.1:6443"] {
        assert!(through(params(exempt), &environment).unwrap().dial.is_none(), "{exempt}");
    }
    // The server's certificate is for loopback, so its address stays the same, and only the dialer
    // is replaced.
    let way = through(params("https://192.0.2.1:6443"), &environment).unwrap().dial;
    let upstream =
        Upstream::new(UpstreamParams { dial: way, ..params(&format!("https://{target}")) }).unwrap();
    assert_eq!(upstream.send(get("/x")).await.unwrap().status(), 200);
    let (requested, _relaying) = proxy.await.unwrap();
    assert_eq!(requested, format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
}

#[tokio::test]
async fn a_full_pool_returns_an_error() {
    let script = Script { handler: watch_handler(), max_streams: 1, ..Script::default() };
    let api = ApiServer::start(script).await;
    let mut params =
        UpstreamParams::new(format!("https://{}", api.address).parse().unwrap(), api.roots.clone());
    params.limits = UpstreamLimits { connections: 1, ..UpstreamLimits::default() };
    let upstream = Upstream::new(params).unwrap();
    let first = upstream.send(get("/watch")).await.unwrap();
    let error = upstream.send(get("/watch")).await.unwrap_err();
    assert_eq!(ApiServerError::from(error).to_string(), "all 1 connections to the API server are full");
    drop(first);
}

#[tokio::test]
async fn one_dial_serves_all_waiting_requests() {
    let api = ApiServer::start(Script::default()).await;
    let upstream = upstream_of(&api);
    let responses = join_all((0..50).map(|_| upstream.send(get("/x")))).await;
    assert!(responses.iter().all(Result::is_ok));
    assert_eq!(api.connections(), 1);
}

#[tokio::test]
async fn a_broken_connection_is_replaced() {
    let api = ApiServer::start(Script::default()).await;
    let upstream = upstream_of(&api);
    drop(upstream.send(get("/x")).await.unwrap());
    // The server closes the connection while it processes this request.
    let cut = Script { handler: Arc::new(|_| Box::pin(async { panic!("cut") })), ..Script::default() };
    let other = ApiServer::start(cut).await;
    let doomed = upstream_of(&other);
    assert!(doomed.send(get("/x")).await.is_err());
    drop(other);
    assert!(doomed.send(get("/x")).await.is_err());
    assert_eq!(upstream.send(get("/x")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(api.connections(), 1);
}

#[tokio::test]
async fn the_kubernetes_client_uses_the_pool_with_its_own_token() {
    let api = ApiServer::start(Script::default()).await;
    let upstream = upstream_of(&api);
    let client = kube_client(&upstream, crate::world::token_source(Some("mine")), "ns");
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client);
    namespaces.list(&kube::api::ListParams::default()).await.unwrap();
    let seen = api.only_seen();
    assert_eq!(seen.version, http::Version::HTTP_2);
    assert_eq!(seen.all("authorization"), ["Bearer mine"]);
    assert!(seen.all("user-agent")[0].contains("kubernetes"));
    assert_eq!(upstream.stats().connections, 1);
}

#[tokio::test]
async fn a_watch_of_the_kubernetes_client_that_ends_at_once_is_repeated_after_a_second() {
    let (watched, mut watches) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |request| {
        if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            // The receiver is dropped at the end.
            let _ended = watched.send(Instant::now());
            return Box::pin(async { http::Response::new(body::empty()) });
        }
        let list = json!({"kind": "NamespaceList", "apiVersion": "v1", "items": [],
            "metadata": {"resourceVersion": "1"}});
        Box::pin(async move { json_response(&list) })
    });
    let api = ApiServer::start(Script { handler, ..Script::default() }).await;
    let client = kube_client(&upstream_of(&api), crate::world::token_source(Some("mine")), "ns");
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client);
    let events = watcher(namespaces, watcher::Config::default());
    let first_two = async { (watches.recv().await.unwrap(), watches.recv().await.unwrap()) };
    let (first, second) = tokio::select! {
        () = futures::StreamExt::for_each(events, async |_| {}) => panic!("the watch ended"),
        both = tokio::time::timeout(PATIENCE, first_two) => both.expect("a second watch"),
    };
    assert!(second - first >= Duration::from_secs(1), "{:?}", second - first);
}

/// A connection to the API server that can be cut.
struct Line {
    address: SocketAddr,
    cut: mpsc::UnboundedSender<()>,
    _task: AbortOnDropHandle<()>,
}

impl Line {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, mut cuts) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    cut = cuts.recv() => {
                        cut.expect("the line is still there");
                        connections.abort_all();
                    }
                    accepted = listener.accept() => {
                        let (mut near, _) = accepted.unwrap();
                        connections.spawn(async move {
                            let mut far = TcpStream::connect(server).await.unwrap();
                            tokio::io::copy_bidirectional(&mut near, &mut far).await
                        });
                    }
                }
            }
        });
        Self { address, cut, _task: AbortOnDropHandle::new(task) }
    }
}

#[tokio::test]
async fn only_requests_without_side_effects_are_retried_after_a_cut_connection() {
    for _ in 0..20 {
        // The first request of each kind arrives and is never answered.
        let (heard, mut hearing) = mpsc::unbounded_channel();
        let attempts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counted = Arc::clone(&attempts);
        let handler: Handler = Arc::new(move |request| {
            let first = counted[usize::from(request.method() == http::Method::POST)]
                .fetch_add(1, Ordering::SeqCst)
                == 0;
            let heard = heard.clone();
            Box::pin(async move {
                if first {
                    heard.send(()).unwrap();
                    std::future::pending::<()>().await;
                }
                http::Response::new(body::full("answer"))
            })
        });
        let api = ApiServer::start(Script { handler, ..Script::default() }).await;
        let line = Line::to(api.address).await;
        let server = format!("https://{}", line.address).parse().unwrap();
        let upstream = Upstream::new(UpstreamParams::new(server, api.roots.clone())).unwrap();
        let post = Request::post("/x").body(RequestBody::Full(Bytes::from("once"))).unwrap();
        for (kind, request, survives) in [(0, get("/x"), true), (1, post, false)] {
            let cutting = async {
                hearing.recv().await.unwrap();
                line.cut.send(()).unwrap();
            };
            let both = async { tokio::join!(upstream.send(request), cutting) };
            let (response, ()) = tokio::time::timeout(PATIENCE, both).await.expect("an end of it");
            assert_eq!(response.is_ok(), survives, "{response:?}");
            assert_eq!(attempts[kind].load(Ordering::SeqCst), if survives { 2 } else { 1 });
        }
    }
}

#[tokio::test]
async fn requests_of_the_kubernetes_client_time_out_on_a_silent_server() {
    let handler: Handler = Arc::new(|_| Box::pin(std::future::pending()));
    let api = ApiServer::start(Script { handler, ..Script::default() }).await;
    let server = format!("https://{}", api.address).parse().unwrap();
    let mut params = UpstreamParams::new(server, api.roots.clone());
    params.limits.response_timeout = Duration::from_millis(50);
    let upstream = Upstream::new(params).unwrap();
    let client = kube_client(&upstream, crate::world::token_source(Some("mine")), "ns");
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::namespaced(client, "ns");
    let response = tokio::time::timeout(PATIENCE, secrets.get("s")).await.expect("an end of it");
    let error = response.unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(
        format!("{error} {source:?}").contains("the API server did not respond in time"),
        "{error} {source:?}"
    );
}

/// A response that is larger than the buffers on the path to a client that does not read.
fn flood_handler() -> Handler {
    Arc::new(|_| {
        Box::pin(async {
            let chunk =
                || async { Some((Ok::<_, BoxError>(Frame::data(Bytes::from(vec![0; 16 << 10]))), ())) };
            let flood = futures::stream::unfold((), move |()| chunk());
            http::Response::new(Body::new(StreamBody::new(flood)))
        })
    })
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_permit_at_the_deadline() {
    let script = Script { handler: flood_handler(), ..Script::default() };
    let in_flight = InFlightLimits { short: 1, waiting: 1, ..InFlightLimits::PROXY };
    let world = World::start_with(script, Options { in_flight, ..Options::default() }).await;
    let client = world.certificate("u", &[]);

    // This client accepts no byte of a body.
    let io = TokioIo::new(client.tls(b"h2").await);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (mut h2, connection) = builder.initial_stream_window_size(0).handshake::<_, Body>(io).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = client.request("/x?timeout=500ms").body(body::empty()).unwrap();
    let unread = h2.send_request(request).await.unwrap();
    let mut h1 = client.h1().await;
    let request = Request::get("/x?timeout=10s").header("host", "proxy.example");
    let second = h1.send_request(request.body(body::empty()).unwrap()).await.unwrap();
    assert_eq!(second.status(), StatusCode::OK, "the first one gave its place up, after a while");
    eventually("both streams are given back", || world.upstream.stats().streams == 0).await;
    drop((unread, second));
}
