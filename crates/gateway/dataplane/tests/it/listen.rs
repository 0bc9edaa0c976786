//! Connections to port 443 without a valid or complete ClientHello.

use std::net::SocketAddr;
use std::time::Duration;

use pinniped_gateway_dataplane::Gateway;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{Client, Table, gateway, gateway_with, to, until, within};

async fn respond(gateway: &Gateway, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway.tls_addr()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut response = Vec::new();
    within(stream.read_to_end(&mut response)).await.unwrap();
    response
}

#[tokio::test]
async fn plain_http_gets_a_response_and_other_bytes_a_regular_close() {
    let gateway = gateway();
    let report = respond(&gateway, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let report = String::from_utf8(report).unwrap();
    assert!(report.starts_with("HTTP/1.0 400 Bad Request\r\n\r\n"), "{report}");
    assert!(report.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{report}");
    let mut oversized = vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc];
    oversized.resize(20_000, 0);
    for garbage in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], &[0; 100], &[22, 3, 1, 0, 5, 2, 0, 0, 1, 0], &oversized]
    {
        assert_eq!(respond(&gateway, garbage).await, b"", "{:?}", &garbage[..10]);
    }
    until("all are counted", || gateway.counts().not_tls == 5).await;
}

#[tokio::test]
async fn a_late_or_incomplete_client_hello_closes_the_connection() {
    let gateway = gateway_with(|params| params.limits.handshake_timeout = Duration::from_millis(300));
    let hello = Client::new().hello("a.local");
    // No bytes, and a ClientHello without its last byte.
    for sent in [&hello[..0], &hello[..hello.len() - 1]] {
        assert_eq!(respond_or_reset(gateway.tls_addr(), sent, false).await, b"");
    }
    until("both are counted", || gateway.counts().client_hello_unfinished == 2).await;
    until("both as slow", || gateway.tls_stats().handshakes_failed == 2).await;
    // A close within the ClientHello is detected immediately, even with the default handshake
    // timeout.
    let patient = crate::world::gateway();
    assert_eq!(respond_or_reset(patient.tls_addr(), &hello[..100], true).await, b"");
    until("it is counted", || patient.counts().client_hello_unfinished == 1).await;
}

async fn respond_or_reset(address: SocketAddr, bytes: &[u8], end: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    if end {
        stream.shutdown().await.unwrap();
    }
    let mut response = Vec::new();
    // Unread bytes at the gateway make the close a reset.
    let _reset = within(stream.read_to_end(&mut response)).await;
    response
}

#[tokio::test]
async fn a_slow_client_hello_does_not_delay_other_clients() {
    let gateway = gateway();
    let backend = crate::world::Backend::start(|mut stream: TcpStream| async move {
        let _gone = stream.write_all(b"here").await;
        let _gone = stream.shutdown().await;
        let _hello = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    Table::new().passthrough("a.local", to(&[backend.address])).serve(&gateway);
    let hello = Client::new().hello("a.local");
    let mut slow = Vec::new();
    for end in 0..200 {
        let mut stream = TcpStream::connect(gateway.tls_addr()).await.unwrap();
        stream.write_all(&hello[..end]).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(respond(&gateway, &hello).await, b"here");
    // The slow clients are served, too, once their ClientHello is complete.
    for (end, mut stream) in slow.into_iter().enumerate() {
        stream.write_all(&hello[end..]).await.unwrap();
        let mut response = Vec::new();
        within(stream.read_to_end(&mut response)).await.unwrap();
        assert_eq!(response, b"here");
    }
}
