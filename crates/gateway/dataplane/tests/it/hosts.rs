//! The host of a request: the server name of its connection, and the host in the request.

use std::sync::Arc;

use pinniped_gateway_routing::table::{Fallback, HostMap, HostPattern, Routes, TlsVersions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{Backend, Client, Http1, Http2, Table, all_to, certificate, gateway, pair, to, within};

#[tokio::test]
async fn r1_the_host_of_another_connection_is_misdirected_and_port_and_case_do_not_matter() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let pair = pair(&["a.local", "b.local"]);
    Table::new()
        .https("a.local", &pair, all_to(to(&[backend.address])))
        .https("b.local", &pair, all_to(to(&[backend.address])))
        .serve(&gateway);
    let mut http1 = Http1::tls(&gateway, "a.local").await;
    let mut http2 = Http2::tls(&gateway, "a.local").await;
    for (host, status) in
        [("a.local", 200), ("b.local", 421), ("a.local:9999", 200), ("A.Local", 200), ("unknown", 421)]
    {
        for response in [http1.get(host, "/").await, http2.get(host, "/").await] {
            assert_eq!(response.status, status, "{host}");
            assert_eq!(response.body.is_empty(), status != 200, "{}", response.body);
        }
    }
    assert_eq!(gateway.counts().misdirected, 4);
    // The backend receives the host exactly as the client sent it.
    assert_eq!(http1.get("A.Local:9999", "/").await.report("host"), Some("A.Local:9999"));
}

#[tokio::test]
async fn i9_a_wildcard_host_serves_one_label_and_only_the_name_of_its_connection() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let pair = pair(&["*.w.local", "a.b.w.local"]);
    Table::new().https("*.w.local", &pair, all_to(to(&[backend.address]))).serve(&gateway);
    for (host, name, status) in [
        ("a.w.local", "a.w.local", 200),
        ("a.b.w.local", "a.b.w.local", 404),
        ("a.w.local", "c.w.local", 421),
        ("a.w.local:9999", "a.w.local", 200),
    ] {
        assert_eq!(Http1::tls(&gateway, name).await.get(host, "/").await.status, status, "{host} {name}");
        assert_eq!(Http2::tls(&gateway, name).await.get(host, "/").await.status, status, "{host} {name}");
    }
}

#[tokio::test]
async fn r8_exact_and_wildcard_hosts_have_their_own_backends() {
    let [bare, wild, bar] =
        [Backend::http("bare").await, Backend::http("wild").await, Backend::http("bar").await];
    let gateway = gateway();
    let pair = pair(&["domain.io", "*.domain.io", "bar.foo.domain.io"]);
    let mut table = Table::new();
    for (host, backend) in [("domain.io", &bare), ("*.domain.io", &wild), ("bar.domain.io", &bar)] {
        table = table
            .https(host, &pair, all_to(to(&[backend.address])))
            .plain(host, all_to(to(&[backend.address])));
    }
    table.serve(&gateway);
    for (host, wanted) in [
        ("domain.io", "bare"),
        ("foo.domain.io", "wild"),
        ("bar.domain.io", "bar"),
        ("bar.foo.domain.io", ""),
    ] {
        let over_tls = Http1::tls(&gateway, host).await.get(host, "/").await;
        let plain = Http1::plain(&gateway).await.get(host, "/").await;
        for response in [over_tls, plain] {
            assert_eq!(response.backend_name(), wanted, "{host}");
            assert_eq!(response.status, if wanted.is_empty() { 404 } else { 200 }, "{host}");
        }
    }
}

#[tokio::test]
async fn d16_the_fallback_serves_missing_and_unknown_server_names_by_the_host_header() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let own = pair(&["a.local"]);
    let fallback = pair(&["fallback.local", "unknown.local", "a.local"]);
    let routes: Arc<Routes> = Arc::new(Routes::new(all_to(to(&[backend.address])).into_iter().map(Arc::new)));
    let mut hosts = HostMap::default();
    hosts.insert(HostPattern::parse("a.local"), routes);
    let mut table = Table::new().https("a.local", &own, all_to(to(&[backend.address])));
    table.0.tls.fallback = Some(Arc::new(Fallback {
        certificate: certificate(&fallback),
        versions: TlsVersions::default(),
        hosts,
    }));
    table.serve(&gateway);
    for client in [Client::new(), Client::new().no_sni()] {
        let stream = client.connect(gateway.tls_addr(), "unknown.local").await.unwrap();
        let seen = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        assert_eq!(seen, fallback.der().unwrap());
        let mut http = Http1::over(stream).await;
        assert_eq!(http.get("a.local", "/").await.status, 200);
        assert_eq!(http.get("unknown.local", "/").await.status, 404);
    }
    // The host itself keeps its own certificate and requires its own server name.
    let stream = Client::new().connect(gateway.tls_addr(), "a.local").await.unwrap();
    assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec(), own.der().unwrap());
    assert_eq!(Http1::over(stream).await.get("unknown.local", "/").await.status, 421);
}

#[tokio::test]
async fn a_request_without_an_unambiguous_host_is_refused() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    Table::new().plain("*", all_to(to(&[backend.address]))).serve(&gateway);
    for (head, status) in [
        ("GET / HTTP/1.1\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a b\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: user@a\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\n", "200"),
        ("GET / HTTP/1.0\r\nHost: a\r\n", "200"),
        ("GET http://a/ HTTP/1.1\r\nHost: b\r\n", "200"),
        ("GET http://user@a/ HTTP/1.1\r\nHost: a\r\n", "400"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n", "404"),
    ] {
        let mut stream = TcpStream::connect(gateway.plain_addr()).await.unwrap();
        let request = format!("{head}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        within(stream.read_to_string(&mut response)).await.unwrap();
        assert_eq!(response.get(9..12), Some(status), "{head}: {response}");
        // The host in the URI takes precedence, for the gateway and for the backend (RFC 9112,
        // section 3.2.2).
        assert!(!response.contains("host: b"), "{response}");
    }
}
