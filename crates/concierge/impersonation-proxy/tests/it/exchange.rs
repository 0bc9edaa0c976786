//! Single requests and responses over HTTP/1.1, with clients and servers that disconnect in the
//! middle.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use pinniped_http_server::{Body, BoxError, Connection, Limits, Listener, body, serve, workers};
use pinniped_kube_client::{RequestBody, Upstream};
use pinniped_reverse_proxy::{ProtocolPolicy, ResponseDeadline, forward};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::api_server::{Handler, Script};
use crate::raw::Raw;
use crate::tls_server::TlsServer;
use crate::world::{PATIENCE, World, eventually};

/// Returns the request as the response, including trailers.
fn echo() -> Handler {
    Arc::new(|request: Request<Incoming>| {
        Box::pin(async move {
            let trailer = request.headers().get("trailer").cloned();
            let mut response = Response::new(Body::new(request.into_body()));
            if let Some(names) = trailer {
                response.headers_mut().insert("trailer", names);
            }
            response
        })
    })
}

async fn echo_world() -> World {
    World::start(Script { handler: echo(), ..Script::default() }).await
}

#[tokio::test]
async fn the_proxy_answers_expect_continue_itself() {
    let world = echo_world().await;
    let client = world.certificate("u", &[]);
    let head = "POST /api/v1/namespaces HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 5\r\n";
    let mut raw = Raw::send_request(&client, format!("{head}connection: close\r\n\r\n")).await;
    assert_eq!(raw.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    raw.write("hello").await;
    let (response, _) = raw.rest().await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nhello"), "{response}");
    assert!(world.api.only_seen().all("expect").is_empty());
}

#[tokio::test]
async fn a_refused_client_receives_no_100_continue() {
    let world = World::start(Script { policy: Arc::new(|_| false), ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let head = "POST /api/v1/namespaces HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 5\r\n";
    let mut raw = Raw::send_request(&client, format!("{head}\r\n")).await;
    let (response, _) = raw.rest().await;
    assert!(response.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{response}");
}

#[tokio::test]
async fn chunks_and_trailers_are_forwarded_over_http1() {
    let world = echo_world().await;
    let client = world.certificate("u", &[]);
    let head = "PATCH /api/v1/namespaces/n HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\nte: trailers\r\n\
        trailer: x-sum\r\n\r\n";
    let mut raw = Raw::send_request(&client, head).await;
    let response = raw.until("\r\n\r\n").await;
    assert!(response.contains("\r\ntrailer: x-sum\r\n"), "{response}");
    for chunk in ["3\r\none\r\n", "3\r\ntwo\r\n"] {
        raw.write(chunk).await;
        assert_eq!(raw.until(chunk).await, chunk, "not kept back");
    }
    raw.write("0\r\nx-sum: 42\r\n\r\n").await;
    assert_eq!(raw.until("\r\n\r\n").await, "0\r\nx-sum: 42\r\n\r\n");
    assert_eq!(world.api.only_seen().all("trailer"), ["x-sum"]);
}

#[tokio::test]
async fn a_request_over_http1_upstream_keeps_its_trailers() {
    let world = echo_world().await;
    let client = world.certificate("u", &[]);
    // An upgrade that the server does not support: an ordinary request over HTTP/1.1.
    let head = "POST /api/v1/namespaces HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\nte: trailers\r\n\
        connection: upgrade\r\nupgrade: x\r\ntrailer: x-sum\r\n\r\n";
    let mut raw = Raw::send_request(&client, head).await;
    raw.write("2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n").await;
    raw.until("\r\n\r\n").await;
    assert_eq!(raw.until("\r\n\r\n").await, "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n");
    assert_eq!(world.api.only_seen().version, http::Version::HTTP_11);
}

/// Never responds; reports when a request arrives, and when it is cancelled.
fn silent() -> (Handler, mpsc::UnboundedReceiver<&'static str>) {
    struct NotifyOnDrop(mpsc::UnboundedSender<&'static str>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            let _nobody_listens = self.0.send("gone");
        }
    }
    let (sender, reported) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |_| {
        let sender = sender.clone();
        Box::pin(async move {
            sender.send("come").unwrap();
            let _tell = NotifyOnDrop(sender);
            std::future::pending().await
        })
    });
    (handler, reported)
}

#[tokio::test]
async fn a_disconnect_before_the_response_cancels_the_upstream_request() {
    let (handler, mut reported) = silent();
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let ways = ["reset of the stream", "close_notify", "no word"].repeat(workers::Share::Half.count());
    for way in ways {
        let mut hear = async || tokio::time::timeout(PATIENCE, reported.recv()).await.expect(way);
        if way == "reset of the stream" {
            let mut h2 = client.h2::<Body>().await;
            let asking = h2.send_request(client.request("/x").body(body::empty()).unwrap());
            tokio::select! {
                response = asking => panic!("{response:?}"),
                come = hear() => assert_eq!(come, Some("come"), "{way}"),
            }
            assert_eq!(hear().await, Some("gone"), "{way}");
            continue;
        }
        let mut raw = Raw::send_request(&client, "GET /x HTTP/1.1\r\nhost: h\r\n\r\n").await;
        assert_eq!(hear().await, Some("come"), "{way}");
        if way == "no word" {
            raw.vanish();
        } else {
            raw.end().await;
        }
        assert_eq!(hear().await, Some("gone"), "{way}");
    }
    eventually("all streams end", || world.upstream.stats().streams == 0).await;
    let connections = world.upstream.stats().connections;
    assert!(connections <= workers::Share::Half.count(), "a reset is no reason to dial: {connections}"); // One for each worker.
}

#[tokio::test]
async fn a_disconnect_during_the_body_cancels_the_upstream_request() {
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |request: Request<Incoming>| {
        let gone = gone.clone();
        Box::pin(async move {
            // The error must be visible, or the server would accept half of a body as a complete
            // one.
            let broken = request.into_body().collect().await.is_err();
            gone.send(broken).unwrap();
            Response::new(body::empty())
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    for framing in ["content-length: 10", "transfer-encoding: chunked"] {
        let head = format!("POST /api/v1/namespaces HTTP/1.1\r\nhost: h\r\n{framing}\r\n\r\n3\r\none");
        let mut raw = Raw::send_request(&client, head).await;
        eventually("the request arrives", || !world.api.seen().is_empty()).await;
        raw.end().await;
        let broken = tokio::time::timeout(PATIENCE, is_gone.recv()).await.expect("it is told");
        assert_eq!(broken, Some(true), "{framing}");
    }
}

#[tokio::test]
async fn a_broken_response_with_a_content_length_is_truncated() {
    let handler: Handler = Arc::new(|_| {
        Box::pin(async {
            let frames = futures::stream::iter([
                Ok(Frame::data(Bytes::from_static(b"begin"))),
                Err(BoxError::from("broken")),
            ]);
            let mut response = Response::new(Body::new(http_body_util::StreamBody::new(frames)));
            response.headers_mut().insert("content-length", http::HeaderValue::from_static("100"));
            response
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    // Short and long-running requests use different connections here.
    for path in ["/api/v1/pods", "/api/v1/pods?watch=1"] {
        let mut raw = Raw::send_request(
            &client,
            format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"),
        )
        .await;
        let (received, _) = raw.rest().await;
        let body = received.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert!(body.len() < 100, "{received}");
        let mut h2 = client.h2::<Body>().await;
        let received = h2.send_request(client.request(path).body(body::empty()).unwrap()).await;
        if let Ok(received) = received {
            let status = received.status();
            let body = received.into_body().collect().await;
            assert!(body.is_err() || status == 502, "{status} {body:?}");
        }
    }
    eventually("all streams end", || world.upstream.stats().streams == 0).await;
}

#[tokio::test]
async fn informational_responses_are_skipped_over_http1() {
    let get = || Request::get("/api/v1/pods").body(RequestBody::Empty).unwrap();
    let server = TlsServer::bind(&[b"h2"]).await;
    let upstream = Upstream::new(server.params()).unwrap();
    let serving = async {
        let mut connection = h2::server::handshake(server.accept().await).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        respond.send_informational(Response::builder().status(103).body(()).unwrap()).unwrap();
        respond.send_response(Response::new(()), true).unwrap();
        connection.accept().await.is_none()
    };
    tokio::select! {
        response = upstream.send(get()) => assert_eq!(response.unwrap().status(), 200),
        _ = serving => panic!("the server has ended"),
    }

    let server = TlsServer::bind(&[b"http/1.1"]).await;
    let upstream = Upstream::new(server.params()).unwrap();
    let serving = async {
        let mut io = server.accept().await;
        let mut request = [0; 16];
        io.read_exact(&mut request).await.unwrap();
        let response =
            "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        io.write_all(response.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        response = upstream.send_http1(get()) => {
            let response = response.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers().get("link"), None);
        }
        () = serving => panic!("the server has ended"),
    }
}

#[tokio::test]
async fn informational_responses_reach_a_client_over_http2() {
    let behind = TlsServer::bind(&[b"h2"]).await;
    let upstream = Upstream::new(behind.params()).unwrap();
    let front = TlsServer::bind(&[b"h2"]).await;
    let service = move |_: &Arc<Connection>, request: Request<pinniped_http_server::Incoming>| {
        let upstream = upstream.clone();
        async move {
            let mut request = request.map(RequestBody::from);
            *request.uri_mut() = http::Uri::from_static("/api/v1/pods");
            forward(&upstream, &mut request, &[], ProtocolPolicy::Any, ResponseDeadline::Long, ())
                .await
                .unwrap()
        }
    };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = serve(listener, Arc::clone(front.acceptor.config()), service, Limits::default());

    let io = front.client(proxy.local_addr(), b"h2").await;
    let (mut send, connection) = h2::client::handshake(io).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let get = Request::get("https://k/api/v1/pods").body(()).unwrap();
    let (mut response, _) = send.send_request(get, true).unwrap();
    let serving = async {
        let mut connection = h2::server::handshake(behind.accept().await).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let early = Response::builder().status(103).header("link", "</x>").body(()).unwrap();
        respond.send_informational(early).unwrap();
        // The final response is sent only after the client has received the informational one.
        let mut requested = std::pin::pin!(std::future::poll_fn(|cx| response.poll_informational(cx)));
        let early = tokio::select! {
            early = requested.as_mut() => early.unwrap().unwrap(),
            _ = connection.accept() => panic!("the connection has ended"),
        };
        respond.send_response(Response::new(()), true).unwrap();
        (early, connection)
    };
    let (early, mut connection) = tokio::time::timeout(PATIENCE, serving).await.unwrap();
    assert_eq!((early.status().as_u16(), &early.headers()["link"]), (103, &"</x>".parse().unwrap()));
    tokio::select! {
        response = response => assert_eq!(response.unwrap().status(), 200),
        _ = connection.accept() => panic!("the connection has ended"),
    }
}

#[tokio::test]
async fn repeated_headers_stay_separate_and_in_order_over_http1() {
    let handler: Handler = Arc::new(|_| {
        Box::pin(async {
            let mut response = Response::new(body::full("x"));
            let headers: &mut HeaderMap = response.headers_mut();
            for value in ["299 - \"b, c\"", "299 - \"a\""] {
                headers.append("warning", http::HeaderValue::from_static(value));
            }
            response
        })
    });
    let world = World::start(Script { handler, ..Script::default() }).await;
    let client = world.certificate("u", &[]);
    let mut raw =
        Raw::send_request(&client, "GET /api/v1/pods HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    let (received, _) = raw.rest().await;
    let warnings: Vec<_> = received.lines().filter(|line| line.starts_with("warning")).collect();
    assert_eq!(warnings, ["warning: 299 - \"b, c\"", "warning: 299 - \"a\""]);
}
