//! Requests that no Kubernetes client sends, byte for byte over HTTP/1.1.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::api_server::Script;
use crate::world::{Client, PATIENCE, World};

/// Returns the status of the response, if there is one.
async fn raw(client: &Client<'_>, request: &str) -> Option<u16> {
    let mut tls = client.tls(b"http/1.1").await;
    tls.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let reading = async {
        // The server may also close the connection.
        while tls.read_buf(&mut response).await.unwrap_or(0) > 0 {}
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("a response or the end");
    let text = String::from_utf8_lossy(&response).into_owned();
    text.strip_prefix("HTTP/1.1 ").or_else(|| text.strip_prefix("HTTP/1.0 "))?.get(..3)?.parse().ok()
}

#[tokio::test]
async fn unusual_request_targets_are_authorized_as_forwarded_or_refused() {
    // Request line, response status, path at the API server, review.
    for (line, status, path, review) in [
        ("GET https://evil.example/api/v1/pods", Some(200), "/api/v1/pods", "list /v1 pods/ /"),
        ("GET //api/v1/pods", Some(200), "//api/v1/pods", "list /v1 pods/ /"),
        ("GET /api/v1//pods", Some(200), "/api/v1//pods", "get /v1 / /pods"),
        ("GET /api/v1/../v1/secrets", Some(200), "/api/v1/../v1/secrets", "get /v1 ../secrets /v1"),
        ("GET /api/v1/pods?watch=1;x", Some(200), "/api/v1/pods", "list /v1 pods/ /"),
        ("GET /api/v1/pods?watch=falsch", Some(200), "/api/v1/pods", "watch /v1 pods/ /"),
        ("GET /api%2Fv1%2Fpods", Some(200), "/api%2Fv1%2Fpods", "list /v1 pods/ /"),
        ("GET /%00", Some(200), "/%00", "get /\0"),
        ("CONNECT kubernetes.default:443", Some(400), "", ""),
        ("GET api/v1/secrets", Some(400), "", ""),
        ("GET /%zz", Some(400), "", ""),
    ] {
        let world = World::start(Script::default()).await;
        let client = world.certificate("u", &[]);
        let got =
            raw(&client, &format!("{line} HTTP/1.1\r\nhost: proxy.example\r\nconnection: close\r\n\r\n"))
                .await;
        assert_eq!(got, status, "{line}");
        let paths: Vec<String> = world.api.seen().iter().map(|seen| seen.uri.path().to_owned()).collect();
        if path.is_empty() {
            assert_eq!(paths, [""; 0], "{line}");
        } else {
            assert_eq!(
                (paths, world.api.reviews()),
                (vec![path.to_owned()], vec![review.to_owned()]),
                "{line}"
            );
        }
    }
}

#[tokio::test]
async fn a_request_with_two_lengths_or_hosts_arrives_with_one_or_is_refused() {
    for (headers, status) in [
        ("host: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n", Some(200)),
        ("host: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n", Some(200)),
        ("host: a\r\ncontent-length: 5\r\ncontent-length: 3\r\n", Some(400)),
        ("host: a\r\ntransfer-encoding: chunked, identity\r\n", Some(400)),
        ("host: a\r\nhost: b\r\ncontent-length: 0\r\n", Some(200)),
        ("host: a b\r\ncontent-length: 0\r\n", Some(400)),
        ("host: a\r\nimpersonate-user : root\r\ncontent-length: 0\r\n", Some(400)),
        ("content-length: 0\r\n", Some(200)),
    ] {
        let world = World::start(Script::default()).await;
        let client = world.certificate("u", &[]);
        let request = format!("POST /x HTTP/1.1\r\n{headers}connection: close\r\n\r\n0\r\n\r\n");
        assert_eq!(raw(&client, &request).await, status, "{headers}");
        for seen in world.api.seen() {
            assert!(seen.all("content-length").iter().all(|length| length == "0"), "{seen:?}");
            assert!(seen.all("host").is_empty(), "{seen:?}");
            assert_eq!(seen.all("impersonate-user"), ["u"]);
        }
    }
}
