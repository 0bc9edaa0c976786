//! The HTTP/1.1 response of a backend, as the gateway parses it. Input: the size of the pieces in
//! which it arrives, the method of the request (`H` for HEAD), and its bytes.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use pinniped_http_client::upstream::{ParsedResponse, parse_response};
use tokio::io::AsyncWriteExt as _;

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let [size, method, bytes @ ..] = data else { return };
    let method = if *method == b'H' { Method::HEAD } else { Method::GET };
    let bytes = &bytes[..bytes.len().min(16 << 10)];

    let whole = parse_response(&method, [Bytes::copy_from_slice(bytes)]);
    let pieces = bytes.chunks(usize::from(*size).max(1)).map(Bytes::copy_from_slice);
    match (&whole, &parse_response(&method, pieces)) {
        (Ok(one), Ok(other)) => {
            assert_eq!(one.head.status(), other.head.status());
            assert_eq!(one.head.headers(), other.head.headers());
            assert_eq!((&one.body, &one.trailers), (&other.body, &other.trailers));
            assert_eq!(one.reusable, other.reusable);
        }
        (Err(_), Err(_)) => {}
        (one, other) => panic!("whole {one:?}, in pieces {other:?}"),
    }
    let Ok(whole) = whole else { return };
    assert!(whole.head.headers().get_all("content-length").iter().count() <= 1);
    if whole.head.headers().contains_key("transfer-encoding") {
        assert!(!whole.head.headers().contains_key("content-length"));
    }
    // A response that this parser accepts has the same meaning for another parser, which may accept
    // more responses but no different ones.
    if whole.head.status() != 101 {
        compare(&whole, &method, bytes);
    }
}

fn compare(ours: &ParsedResponse, method: &Method, bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let reading = async { tokio::time::timeout(Duration::from_secs(10), hyper(method, bytes)).await };
    let theirs = runtime.block_on(reading);
    let (status, body, trailers) = theirs.expect("in time").expect("an answer that we take");
    assert_eq!(ours.head.status(), status);
    assert_eq!(ours.body, body);
    // hyper returns fewer trailers than there are, never different ones.
    let known = ours.trailers.clone().unwrap_or_default();
    for (name, value) in &trailers {
        let never = ["content-length", "transfer-encoding", "connection", "host", "trailer"];
        assert!(never.contains(&name.as_str()) || known.get_all(name).iter().any(|ours| ours == value));
    }
}

type Read = (http::StatusCode, Vec<u8>, HeaderMap);

async fn hyper(method: &Method, bytes: &[u8]) -> Result<Read, hyper::Error> {
    let (near, mut far) = tokio::io::duplex(64 << 10);
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(2000)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(near))
        .await?;
    let driving = tokio::spawn(connection);
    let request = Request::builder().method(method).uri("/").header("host", "h").body(Empty::new());
    let response = sender.send_request(request.expect("a request"));
    let feeding = async {
        // The response must not arrive before the request was sent, because it would then belong to
        // no request.
        tokio::task::yield_now().await;
        far.write_all(bytes).await.expect("room");
        far.shutdown().await.expect("an open end");
    };
    let (response, ()) = tokio::join!(response, feeding);
    let (head, body) = response?.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let body = body.to_bytes().to_vec();
    drop(sender);
    driving.abort();
    Ok((head.status, body, trailers))
}
