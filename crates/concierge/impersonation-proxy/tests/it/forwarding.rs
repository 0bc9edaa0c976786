//! The parts of requests and responses that the proxy forwards unchanged, and those that it
//! changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use pinniped_http_server::{Body, BoxError, body};

use crate::api_server::{Handler, Script, json_response};
use crate::world::{PATIENCE, ReceivedResponse, World, eventually};

fn handler<F>(respond: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static) -> Handler
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    Arc::new(move |request| Box::pin(respond(request)))
}

type Frames = tokio::sync::mpsc::Receiver<Result<Frame<Bytes>, BoxError>>;

fn streamed(frames: Frames) -> Response<Body> {
    let stream = futures::stream::unfold(frames, |mut frames| async move {
        frames.recv().await.map(|frame| (frame, frames))
    });
    Response::new(Body::new(StreamBody::new(stream.boxed())))
}

#[tokio::test]
async fn path_and_query_arrive_byte_for_byte() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    let paths = [
        "/api/v1/namespaces/a%2Fb//c/../d?x=%2f",
        "/x?a=1&b=;x%zz",
        "//double",
        "/api/v1/pods/%7Euser/.%2e",
        "/q?",
        "/q?a=b?c=d&e=%20+%2B",
        "/t/*!'();:@&=+$,~",
        "/quotes\"{}",
    ];
    for path in paths {
        assert_eq!(client.get(path).await.status, StatusCode::OK, "{path}");
        let request = Request::get(path).header("host", "h").body(body::empty()).unwrap();
        let response = client.h1().await.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path} over HTTP/1.1");
    }
    let seen: Vec<String> =
        world.api.seen().iter().map(|seen| seen.uri.path_and_query().unwrap().as_str().to_owned()).collect();
    let twice: Vec<&str> = paths.iter().flat_map(|path| [*path, *path]).collect();
    assert_eq!(seen, twice);
}

#[tokio::test]
async fn the_host_and_end_to_end_headers_of_the_client_are_preserved() {
    let world = World::start(Script::default()).await;
    let request = Request::get("/api/v1/namespaces")
        .header("host", "proxy.example:8444")
        .header("connection", "keep-alive, X-Hop, Impersonate-User")
        .header("x-hop", "gone")
        .header("keep-alive", "5")
        .header("te", "trailers, gzip")
        .header("proxy-authorization", "gone")
        .header("x-remote-user", "gone")
        .header("x-remote-extra-a", "gone")
        .header("user-agent", "my-agent")
        .header("accept", "a")
        .header("accept", "b")
        .header("forwarded", "for=x")
        .header("x-forwarded-host", "h")
        .header("x-forwarded-proto", "https")
        .header("audit-id", "id")
        .header("x-bytes", HeaderValue::from_bytes(b"\xc3\xbc\xff").unwrap())
        .body(body::empty())
        .unwrap();
    let response = world.certificate("u", &[]).h1().await.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let seen = world.api.only_seen();
    assert_eq!(seen.uri.authority().unwrap(), "proxy.example:8444");
    for (name, wanted) in [
        ("te", &["trailers"][..]),
        ("user-agent", &["my-agent"]),
        ("accept", &["a", "b"]),
        ("forwarded", &["for=x"]),
        ("x-forwarded-host", &["h"]),
        ("x-forwarded-proto", &["https"]),
        ("audit-id", &["id"]),
        ("impersonate-user", &["u"]),
        ("x-hop", &[]),
        ("keep-alive", &[]),
        ("connection", &[]),
        ("host", &[]),
        ("proxy-authorization", &[]),
        ("x-remote-user", &[]),
        ("x-remote-extra-a", &[]),
    ] {
        assert_eq!(seen.all(name), wanted, "{name}");
    }
    assert_eq!(seen.headers["x-bytes"].as_bytes(), b"\xc3\xbc\xff");
}

#[tokio::test]
async fn the_proxy_adds_no_unexpected_headers() {
    let world = World::start(Script::default()).await;
    world.certificate("u", &[]).get("/api/v1/namespaces").await;
    let seen = world.api.only_seen();
    for name in ["user-agent", "accept", "accept-encoding", "content-length", "content-type", "te"] {
        assert_eq!(seen.all(name), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test]
async fn responses_are_forwarded_after_the_headers_of_the_proxy() {
    let script = Script {
        handler: handler(|_| async {
            let mut response = Response::new(body::full("gone"));
            *response.status_mut() = StatusCode::GONE;
            let headers = response.headers_mut();
            for (name, value) in [
                ("cache-control", "private"),
                ("audit-id", "theirs"),
                ("warning", "299 - \"a\""),
                ("warning", "299 - \"b\""),
                ("x-kubernetes-pf-flowschema-uid", "x"),
                ("etag", "\"e\""),
            ] {
                headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            response
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let received = world.certificate("u", &[]).get_with("/api/v1/pods", &[("audit-id", "ours")]).await;
    assert_eq!((received.status, received.text.as_str()), (StatusCode::GONE, "gone"));
    assert_eq!(received.all("cache-control"), ["no-cache,no-store,max-age=0,must-revalidate", "private"]);
    assert_eq!(received.all("audit-id"), ["ours", "theirs"]);
    assert_eq!(received.all("warning"), ["299 - \"a\"", "299 - \"b\""]);
    assert_eq!(received.all("x-kubernetes-pf-flowschema-uid"), ["x"]);
    assert_eq!(received.all("etag"), ["\"e\""]);
    assert_eq!(received.all("content-length"), ["4"]);
    assert!(received.headers.contains_key("date"));
}

/// Responds with the audit ID of the request, as API servers do.
fn taking_over_audit_ids() -> Script {
    Script {
        handler: handler(|request: Request<Incoming>| async move {
            let mut response = Response::new(body::empty());
            for id in request.headers().get_all("audit-id") {
                response.headers_mut().append("audit-id", id.clone());
            }
            response
        }),
        ..Script::default()
    }
}

#[tokio::test]
async fn the_proxy_and_the_api_server_log_the_same_audit_id() {
    let world = World::start(taking_over_audit_ids()).await;
    let client = world.certificate("u", &[]);
    let (fresh, given, unfit) = (
        client.get("/api/v1/pods").await,
        client.get_with("/api/v1/pods", &[("audit-id", "mine")]).await,
        client.get_with("/api/v1/pods", &[("audit-id", "")]).await,
    );
    let seen: Vec<Vec<String>> = world.api.seen().iter().map(|seen| seen.all("audit-id")).collect();
    assert_eq!(seen, [fresh.all("audit-id"), given.all("audit-id"), unfit.all("audit-id")]);
    assert_eq!(given.all("audit-id"), ["mine"]);
    for made in [fresh, unfit] {
        let lengths: Vec<usize> = made.all("audit-id").iter().map(|id| id.len()).collect();
        assert_eq!(lengths, [36], "one UUID");
    }
}

#[tokio::test]
async fn bodies_and_announced_trailers_stream_in_both_directions() {
    let script = Script {
        handler: handler(|request: Request<Incoming>| async move {
            // Echoes the body, including trailers.
            Response::new(Body::new(request.into_body()))
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let (sender, frames) = tokio::sync::mpsc::channel(1);
    let mut h2 = world.certificate("u", &[]).h2::<Body>().await;
    let request = Request::builder().method(Method::PATCH).uri("https://h/api/v1/namespaces/n/pods/p");
    let request = request.header("trailer", "x-sum").body(streamed(frames).into_body()).unwrap();
    let response = h2.send_request(request).await.unwrap();
    let mut received = response.into_body();
    for text in ["one", "two"] {
        sender.send(Ok(Frame::data(Bytes::from(text)))).await.unwrap();
        let frame = tokio::time::timeout(PATIENCE, received.frame()).await.expect("not buffered");
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), text);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("42"));
    sender.send(Ok(Frame::trailers(trailers.clone()))).await.unwrap();
    drop(sender);
    let frame = tokio::time::timeout(PATIENCE, received.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap(), trailers);
    assert_eq!(world.api.only_seen().method, Method::PATCH);
}

#[tokio::test]
async fn a_large_body_is_forwarded_completely() {
    let script = Script {
        handler: handler(|request: Request<Incoming>| async move {
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            json_response(&serde_json::json!(bytes.len()))
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let mut h2 = world.certificate("u", &[]).h2::<Full<Bytes>>().await;
    let request =
        Request::post("https://h/api/v1/namespaces").body(Full::new(Bytes::from(vec![b'x'; 3 << 20])));
    let response = h2.send_request(request.unwrap()).await.unwrap();
    assert_eq!(ReceivedResponse::read(response).await.text, (3 << 20).to_string());
    assert_eq!(world.api.only_seen().all("content-length"), [(3 << 20).to_string()]);
}

#[tokio::test]
async fn a_broken_response_body_is_an_error_for_the_client() {
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let begun = Arc::clone(&go);
    let script = Script {
        handler: handler(move |_| {
            let go = Arc::clone(&begun);
            async move {
                let (sender, frames) = tokio::sync::mpsc::channel(1);
                tokio::spawn(async move {
                    sender.send(Ok(Frame::data(Bytes::from("begin")))).await.unwrap();
                    // Fails only after the client has read, because a reset overtakes data that is
                    // not sent yet.
                    go.acquire().await.unwrap().forget();
                    sender.send(Err(BoxError::from("broken"))).await.unwrap();
                });
                streamed(frames)
            }
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    let mut h2 = client.h2::<Body>().await;
    let over_h2 = h2.send_request(client.request("/x").body(body::empty()).unwrap()).await.unwrap();
    let request = Request::get("/x").header("host", "h").body(body::empty()).unwrap();
    let over_h1 = client.h1().await.send_request(request).await.unwrap();
    for response in [over_h2, over_h1] {
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "begin");
        go.add_permits(1);
        // HTTP/2 resets the stream. HTTP/1.1 closes the connection before the last chunk.
        body.collect().await.expect_err("broken");
    }
    eventually("all streams end", || world.upstream.stats().streams == 0).await;
}

#[tokio::test]
async fn a_client_that_disconnects_closes_its_upstream_stream() {
    let (gone, mut is_gone) = tokio::sync::mpsc::channel::<()>(1);
    let script = Script {
        handler: handler(move |_| {
            let gone = gone.clone();
            async move {
                let (sender, frames) = tokio::sync::mpsc::channel(1);
                sender.send(Ok(Frame::data(Bytes::from("event")))).await.unwrap();
                tokio::spawn(async move {
                    sender.closed().await;
                    let _ = gone.send(()).await;
                });
                streamed(frames)
            }
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    let mut h2 = client.h2::<Body>().await;
    let request = client.request("/api/v1/pods?watch=1").body(body::empty()).unwrap();
    let mut body = h2.send_request(request).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(world.upstream.stats().streams, 1);
    drop((body, h2));
    tokio::time::timeout(PATIENCE, is_gone.recv()).await.expect("the API server sees it");
    eventually("the stream is closed", || world.upstream.stats().streams == 0).await;
}

#[tokio::test]
async fn the_deadline_also_ends_a_response_that_has_begun() {
    let script = Script {
        handler: handler(|_| async {
            let (sender, frames) = tokio::sync::mpsc::channel(2);
            sender.send(Ok(Frame::data(Bytes::from("begin")))).await.unwrap();
            tokio::spawn(async move { sender.closed().await });
            streamed(frames)
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    let mut h2 = client.h2::<Body>().await;
    let request = client.request("/x?timeout=300ms").body(body::empty()).unwrap();
    let response = h2.send_request(request).await.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(10), response.into_body().collect()).await;
    read.expect("the deadline is short").expect_err("the stream is reset");
}

#[tokio::test]
async fn a_response_body_that_never_begins_becomes_a_timeout_status() {
    let script = Script {
        handler: handler(|_| async {
            let (sender, frames) = tokio::sync::mpsc::channel(2);
            tokio::spawn(async move { sender.closed().await });
            let mut response = streamed(frames);
            response.headers_mut().insert("content-length", http::HeaderValue::from_static("5"));
            response
        }),
        ..Script::default()
    };
    let world = World::start(script).await;
    let client = world.certificate("u", &[]);
    let received = client.get("/api/v1/pods?timeout=300ms").await;
    assert_eq!(received.status, StatusCode::GATEWAY_TIMEOUT);
    assert!(
        received.text.contains("request did not complete within the allotted timeout"),
        "{}",
        received.text
    );
}

#[tokio::test]
async fn an_unreachable_api_server_is_a_bad_gateway() {
    let world = World::start(Script::default()).await;
    let client = world.certificate("u", &[]);
    // Reviews are cached, so only forwarding fails.
    assert_eq!(client.get("/api/v1/pods").await.status, StatusCode::OK);
    let mut h2 = client.h2::<Body>().await;
    let World { api, proxy, .. } = world;
    drop(api);
    let request = Request::get("https://h/api/v1/pods").body(body::empty()).unwrap();
    let response = ReceivedResponse::read(h2.send_request(request).await.unwrap()).await;
    assert_eq!((response.status, response.text.as_str()), (StatusCode::BAD_GATEWAY, ""));
    assert_eq!(response.all("content-length"), ["0"]);
    drop(proxy);
}

#[tokio::test]
async fn huge_headers_are_forwarded() {
    let world = World::start(Script::default()).await;
    let big = "x".repeat(200_000);
    let response = world.certificate("u", &[]).get_with("/api/v1/pods", &[("x-big", &big)]).await;
    assert_eq!(response.status, StatusCode::OK);
    assert_eq!(world.api.only_seen().all("x-big"), [big]);
}
