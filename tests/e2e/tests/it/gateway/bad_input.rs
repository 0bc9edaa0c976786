//! Clients without TLS, without a known host, or with a ClientHello that never ends.

use std::time::Duration;

use pinniped_test_support::{wait, wire};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::backend::Backend;
use super::environment;
use crate::installed::TIME_LIMIT;

/// Returns all bytes that a server sends in response to these, until it closes the connection.
async fn last_words(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    // The server may reset the connection in between.
    let _refused = stream.write_all(bytes).await;
    let mut words = Vec::new();
    let read = tokio::time::timeout(TIME_LIMIT, stream.read_to_end(&mut words)).await;
    let _reset_or_closed = read.expect("the connection stays open");
    words
}

#[tokio::test]
async fn clients_without_tls_or_a_known_host_get_no_information_and_are_counted() {
    let Some(environment) = environment::shared("bad-input").await else { return };
    let host = environment.host("web");
    let web = Backend::plain("web").await;
    let mut objects = environment.service("web", web.address);
    objects.push(environment.secret("cert", &environment.serving("web", &host)));
    objects.push(environment.proxy(
        "web",
        json!({"virtualhost": {"fqdn": host, "tls": {"secretName": "cert"}},
            "routes": [{"services": [{"name": "web", "port": 80}]}]}),
    ));
    environment.apply(&objects).await;
    environment.await_served(&host, "web", "web to nobody about /").await;
    let door = environment.door();
    let restarts = || environment.running().iter().map(|(_, pod)| pod.restarts).sum::<u32>();
    let before = restarts();
    let refused = async |reason: &str| {
        environment
            .metric(door, &format!("pinniped_gateway_client_hellos_refused_total{{reason=\"{reason}\"}}"))
            .await
    };

    let not_tls = refused("not_tls").await;
    for garbage in
        [&b"\x00\xff\x13\x37 no TLS at all"[..], &[0x16; 4096], b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n"]
    {
        // An alert at most, and no certificate.
        let words = last_words(environment.raw(door).await, garbage).await;
        assert!(words.len() <= 7, "{words:?}");
    }
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let words = last_words(environment.raw(door).await, request.as_bytes()).await;
    assert!(!String::from_utf8_lossy(&words).contains("200"), "{words:?}");
    assert!(refused("not_tls").await > not_tls);

    let unknown = refused("unknown_name").await;
    for name in ["nobody.example.com", "192.0.2.1"] {
        // An address is never a server name, so the ClientHello has none.
        wire::connect_unverified(environment.raw(door).await, name, &[], None).await.unwrap_err();
    }
    assert!(refused("unknown_name").await >= unknown + 2);

    // A ClientHello that never ends: its first bytes, and then silence.
    let unfinished = refused("unfinished").await;
    let slow = last_words(environment.raw(door).await, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    // Other clients are served meanwhile.
    let served = environment.await_served(&host, "web", "web to nobody about /");
    let (words, ()) = tokio::join!(slow, served);
    assert!(words.len() <= 7, "{words:?}");
    wait::until(Duration::from_secs(5), "the slow hello to be counted", async || {
        (refused("unfinished").await > unfinished).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(restarts(), before);
}

#[tokio::test]
async fn unknown_hosts_and_paths_on_port_80_get_404() {
    let Some(environment) = environment::shared("not-found").await else { return };
    for door in environment.doors() {
        let response = environment.send_plain_request(door, "nobody.example.com", "/").await.unwrap();
        assert_eq!((response.status, response.body.as_str()), (404, ""));
        let mut stream = TcpStream::connect((door, 8080)).await.unwrap();
        stream.write_all(b"\x16\x03\x01 a hello at the wrong door\r\n\r\n").await.unwrap();
        let mut words = Vec::new();
        let read = tokio::time::timeout(TIME_LIMIT, stream.read_to_end(&mut words)).await;
        let _reset_or_closed = read.expect("the connection stays open");
        let words = String::from_utf8_lossy(&words);
        assert!(words.is_empty() || words.starts_with("HTTP/1.1 400 "), "{words}");
    }
}
