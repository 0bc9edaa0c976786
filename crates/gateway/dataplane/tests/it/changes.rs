//! The effect of a new routing table and of shutdown on open connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pinniped_gateway_routing::table::{HostPattern, Routes, Terminated, Termination, TlsAction};
use pinniped_test_support::process_status;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::world::{
    Backend, CA, Client, Http1, Http2, ReceivedResponse, Table, all_to, demand, gateway, one, pair, service,
    termination, to, until, within,
};

/// A backend that sends each response when it gets a permit.
async fn slow(permits: &Arc<Semaphore>) -> Backend {
    let permits = Arc::clone(permits);
    Backend::start(move |stream: TcpStream| {
        let permits = Arc::clone(&permits);
        let service = service_fn(move |_: Request<hyper::body::Incoming>| {
            let permits = Arc::clone(&permits);
            async move {
                permits.acquire().await.unwrap().forget();
                Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::from_static(b"slow"))))
            }
        });
        async move {
            let _gone = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn a_new_table_does_not_close_connections_of_an_unchanged_host() {
    let [one, other] = [Backend::http("one").await, Backend::http("other").await];
    let gateway = gateway();
    let pair = pair(&["a.local"]);
    let certificate =
        |backend: &Backend| Table::new().https("a.local", &pair, all_to(to(&[backend.address])));
    certificate(&one).serve(&gateway);
    let mut http1 = Http1::tls(&gateway, "a.local").await;
    let mut http2 = Http2::tls(&gateway, "a.local").await;
    for backend in [&one, &other, &one, &other] {
        certificate(backend).plain("b.local", all_to(to(&[one.address]))).serve(&gateway);
        let wanted = if backend.address == one.address { "one" } else { "other" };
        assert_eq!(http1.get("a.local", "/").await.backend_name(), wanted);
        assert_eq!(http2.get("a.local", "/").await.backend_name(), wanted);
    }
    assert_eq!(gateway.tls_stats().accepted, 2);
}

#[tokio::test]
async fn connections_of_a_removed_host_finish_their_requests_and_close() {
    let permits = Arc::new(Semaphore::new(0));
    let backend = slow(&permits).await;
    let gateway = gateway();
    Table::new().https("a.local", &pair(&["a.local"]), all_to(to(&[backend.address]))).serve(&gateway);
    let idle = Http1::tls(&gateway, "a.local").await;
    let mut busy = Http2::tls(&gateway, "a.local").await;
    let mut sender = busy.sender.clone();
    let request = Request::get("https://a.local/").body(Full::default()).unwrap();
    let running =
        tokio::spawn(
            async move { ReceivedResponse::read(sender.send_request(request).await.unwrap()).await },
        );
    until("the request runs", || backend.accepted() == 1).await;
    Table::new().serve(&gateway);
    until("the idle connection is closed", || idle.sender.is_closed()).await;
    until("only the busy one is left", || gateway.tls_stats().open == 1).await;
    permits.add_permits(1);
    assert_eq!(within(running).await.unwrap().unwrap().body, "slow");
    busy.ended().await;
}

#[tokio::test]
async fn a_connection_without_a_client_certificate_is_not_served_once_the_host_requires_one() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let own = pair(&["a.local"]);
    Table::new().https("a.local", &own, all_to(to(&[backend.address]))).serve(&gateway);
    // A running request keeps the connection open while the gateway closes it gracefully.
    let stream = Client::new().connect(gateway.tls_addr(), "a.local").await.unwrap();
    let mut http = Http1::over(stream).await;
    assert_eq!(http.get("a.local", "/").await.status, 200);
    let inside =
        Terminated::Http(Arc::new(Routes::new(all_to(to(&[backend.address])).into_iter().map(Arc::new))));
    let demanding =
        Termination { client_validation: Some(Arc::new(demand(&CA))), ..termination(&own, inside) };
    Table::new().tls("a.local", TlsAction::Terminate(demanding)).serve(&gateway);
    let request = Request::get("/").header("host", "a.local").body(Full::default()).unwrap();
    match http.send(request).await {
        Ok(response) => assert_eq!(response.status, 421),
        Err(error) => {
            assert!(error.is_closed() || error.is_canceled() || error.is_incomplete_message(), "{error:?}");
        }
    }
    assert_eq!(backend.accepted(), 1);
}

#[tokio::test]
async fn a_removed_endpoint_finishes_its_requests() {
    let permits = Arc::new(Semaphore::new(0));
    let old = slow(&permits).await;
    let new = Backend::http("new").await;
    let gateway = gateway();
    Table::new().plain("a", all_to(to(&[old.address]))).serve(&gateway);
    let mut first = Http1::plain(&gateway).await;
    let request = Request::get("/").header("host", "a").body(Full::default()).unwrap();
    let running = tokio::spawn(async move { first.send(request).await });
    until("the request runs", || old.accepted() == 1).await;
    Table::new().plain("a", all_to(to(&[new.address]))).serve(&gateway);
    let mut second = Http1::plain(&gateway).await;
    for _ in 0..5 {
        assert_eq!(second.get("a", "/").await.backend_name(), "new");
    }
    permits.add_permits(1);
    assert_eq!(within(running).await.unwrap().unwrap().body, "slow");
}

#[tokio::test]
async fn shutdown_waits_for_requests_and_then_closes_the_rest() {
    let permits = Arc::new(Semaphore::new(0));
    let backend = slow(&permits).await;
    let silent = Backend::start(|stream: TcpStream| async move {
        let _kept = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let gateway = gateway();
    Table::new()
        .https("a.local", &pair(&["a.local"]), all_to(to(&[backend.address])))
        .passthrough("b.local", to(&[silent.address]))
        .serve(&gateway);
    let mut http = Http1::tls(&gateway, "a.local").await;
    let request = Request::get("/").header("host", "a.local").body(Full::default()).unwrap();
    let running = tokio::spawn(async move { http.send(request).await });
    let relayed = TcpStream::connect(gateway.tls_addr()).await.unwrap();
    let mut relayed = Box::pin(relayed);
    tokio::io::AsyncWriteExt::write_all(&mut relayed, &Client::new().hello("b.local")).await.unwrap();
    until("both have arrived", || backend.accepted() + silent.accepted() == 2).await;
    let (tls, plain) = (gateway.tls_addr(), gateway.plain_addr());
    let stopping = tokio::spawn(gateway.stop(Duration::from_millis(1500)));
    until("the ports are closed", || {
        [tls, plain].iter().all(|port| std::net::TcpStream::connect(port).is_err())
    })
    .await;
    permits.add_permits(1);
    assert_eq!(within(running).await.unwrap().unwrap().body, "slow");
    within(stopping).await.unwrap();
    // The connection terminates with an end of stream or with an error.
    let mut rest = Vec::new();
    let _reset = within(tokio::io::AsyncReadExt::read_to_end(&mut relayed, &mut rest)).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn streams_continue_through_every_change() {
    let backend = Backend::start(|stream: TcpStream| async move {
        let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
            Ok::<_, hyper::Error>(http::Response::new(request.into_body()))
        });
        let _gone =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    })
    .await;
    let gateway = gateway();
    Table::new().plain("a", all_to(to(&[backend.address]))).serve(&gateway);
    let stream = TcpStream::connect(gateway.plain_addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driving = tokio::spawn(connection);
    let (chunks, body) = tokio::sync::mpsc::channel::<Bytes>(1);
    let body = http_body_util::StreamBody::new(futures::stream::unfold(body, |mut body| async move {
        let chunk = body.recv().await?;
        Some((Ok::<_, hyper::Error>(http_body::Frame::data(chunk)), body))
    }));
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let response =
        tokio::spawn(async move { sender.send_request(request).await.map(|response| (response, sender)) });
    chunks.send(Bytes::from_static(b"first")).await.unwrap();
    let (response, _sender) = within(response).await.unwrap().unwrap();
    let mut response = response.into_body();
    for chunk in [&b"first"[..], b"second", b"third"] {
        if chunk != b"first" {
            chunks.send(Bytes::from_static(chunk)).await.unwrap();
        }
        let frame = within(response.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), chunk);
        Table::new().serve(&gateway);
    }
    drop(chunks);
    assert!(within(response.frame()).await.is_none());
    driving.abort();
}

#[tokio::test]
async fn ten_thousand_hosts_are_served_at_once_with_little_memory() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let pair = pair(&["*.many.local", "many.local"]);
    let certificate = crate::world::certificate(&pair);
    let table = || {
        let mut table = Table::new();
        for n in 0..10_000 {
            let name = format!("h{n}");
            let backends = || {
                one(service(
                    &name,
                    pinniped_gateway_routing::table::Protocol::Http1,
                    None,
                    &[backend.address],
                ))
            };
            let routes = Arc::new(Routes::new(all_to(backends()).into_iter().map(Arc::new)));
            let host = Termination {
                certificate: Arc::clone(&certificate),
                ..termination(&pair, Terminated::Http(Arc::clone(&routes)))
            };
            table = table.tls(&format!("{name}.many.local"), TlsAction::Terminate(host));
            table.0.plain.hosts.insert(HostPattern::parse(&format!("{name}.many.local")), routes);
        }
        Arc::new(table.0)
    };
    let (first, second) = (table(), table());
    let resident = || process_status::resident_memory(std::process::id()).unwrap();
    let before = resident();
    let start = Instant::now();
    gateway.update(first);
    let made = start.elapsed();
    let kept = resident().saturating_sub(before);
    let mut open = Http1::tls(&gateway, "h7.many.local").await;
    let start = Instant::now();
    gateway.update(second);
    println!("10,000 hosts: live after {made:?}, changed in {:?}, {} KiB more", start.elapsed(), kept >> 10);
    for host in ["h0.many.local", "h9999.many.local"] {
        assert_eq!(Http1::tls(&gateway, host).await.get(host, "/").await.status, 200);
        assert_eq!(Http1::plain(&gateway).await.get(host, "/").await.status, 200);
    }
    assert_eq!(open.get("h7.many.local", "/").await.status, 200);
}
