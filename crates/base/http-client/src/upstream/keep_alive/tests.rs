use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use pinniped_http_core::{BoxError, PlainWrite};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Connection, SocketState};
use crate::dial::Stream;
use crate::upstream::socket::Transport;
use crate::upstream::{AddressParams, RequestBody, ResponseBody, Upstream, UpstreamError, UpstreamLimits};

const PATIENCE: Duration = Duration::from_secs(10);

/// A server whose bytes the test writes itself.
struct Server {
    listener: TcpListener,
    upstream: Upstream,
}

impl Server {
    async fn start() -> Self {
        Self::with(UpstreamLimits::default()).await
    }

    async fn with(limits: UpstreamLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = Upstream::to_address(&AddressParams { address, tls: None, limits });
        Self { listener, upstream }
    }

    async fn accept(&self) -> Far {
        Far(within(self.listener.accept()).await.unwrap().0)
    }

    /// Sends a request while the test plays the server.
    async fn exchange<T>(
        &self,
        mut request: Request<RequestBody>,
        serve: impl Future<Output = T>,
    ) -> (Result<Response<ResponseBody>, UpstreamError>, T) {
        within(futures::future::join(self.upstream.try_send_keep_alive(&mut request), serve)).await
    }

    /// Returns a connection that has served a request and is idle.
    async fn used(&self) -> Far {
        let serve = async {
            let mut far = self.accept().await;
            far.respond(OK).await;
            far
        };
        let (response, far) = self.exchange(get(), serve).await;
        assert_eq!(text(response.unwrap()).await.unwrap(), "ok");
        far
    }
}

/// The server's end of a connection.
struct Far(TcpStream);

impl Far {
    async fn read_until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let byte = within(self.0.read_u8()).await;
            text.push(
                byte.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&text))),
            );
        }
        String::from_utf8(text).unwrap()
    }

    async fn write(&mut self, text: &str) {
        within(self.0.write_all(text.as_bytes())).await.unwrap();
    }

    /// Reads a head and sends a response.
    async fn respond(&mut self, text: &str) -> String {
        let head = self.read_until("\r\n\r\n").await;
        self.write(text).await;
        head
    }

    /// Returns whether the connection was reset; otherwise it was closed normally.
    async fn is_reset(&mut self) -> bool {
        let end = within(self.0.read_to_end(&mut Vec::new())).await;
        end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    }

    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        within(self.0.read_to_end(&mut rest)).await.map_or(true, |_| rest.is_empty())
    }
}

async fn within<F: Future>(what: F) -> F::Output {
    timeout(PATIENCE, what).await.expect("in time")
}

fn request(method: Method, body: RequestBody) -> Request<RequestBody> {
    Request::builder().method(method).uri("/x").header("host", "a.local").body(body).unwrap()
}

fn get() -> Request<RequestBody> {
    request(Method::GET, RequestBody::Empty)
}

type Frames = mpsc::Sender<Result<Frame<Bytes>, BoxError>>;

/// Returns a body whose frames the test sends; it ends when the sender is dropped.
fn fed() -> (Frames, RequestBody) {
    let (sender, receiver) = mpsc::channel(1);
    let frames = futures::stream::unfold(receiver, async |mut receiver: mpsc::Receiver<_>| {
        Some((receiver.recv().await?, receiver))
    });
    (sender, RequestBody::Boxed(StreamBody::new(frames).boxed_unsync()))
}

async fn text(response: Response<ResponseBody>) -> Result<String, String> {
    let read = within(response.into_body().collect()).await;
    read.map(|body| String::from_utf8(body.to_bytes().to_vec()).unwrap()).map_err(|error| error.to_string())
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn consecutive_requests_use_one_connection() {
    let server = Server::start().await;
    let mut far = None;
    let responses = [
        OK,
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
        OK,
    ];
    for wanted in responses {
        let serve = async {
            if far.is_none() {
                far = Some(server.accept().await);
            }
            far.as_mut().unwrap().respond(wanted).await
        };
        let (response, head) = server.exchange(get(), serve).await;
        assert_eq!(head, "GET /x HTTP/1.1\r\nhost: a.local\r\n\r\n");
        let response = response.unwrap();
        assert!(!response.headers().contains_key("link"));
        let body = if response.status() == 200 { "ok" } else { "" };
        assert_eq!(text(response).await.unwrap(), body, "{wanted}");
    }
    let mut head = request(Method::HEAD, RequestBody::Empty);
    let serve =
        async { far.as_mut().unwrap().respond("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await };
    let (response, ()) =
        within(futures::future::join(server.upstream.try_send_keep_alive(&mut head), async {
            serve.await;
        }))
        .await;
    assert_eq!(text(response.unwrap()).await.unwrap(), "");
}

#[tokio::test]
async fn a_get_on_a_closed_connection_is_sent_again_and_a_post_is_not() {
    for (method, body, again) in [
        (Method::GET, RequestBody::Empty, true),
        (Method::DELETE, RequestBody::Empty, false),
        (Method::POST, RequestBody::Full(Bytes::from_static(b"once")), false),
    ] {
        let server = Server::start().await;
        let mut far = server.used().await;
        let serve = async {
            far.read_until("\r\n\r\n").await;
            drop(far);
            if again {
                server.accept().await.respond(OK).await;
            }
        };
        let (response, ()) = server.exchange(request(method.clone(), body), serve).await;
        assert_eq!(response.is_ok(), again, "{method}: {response:?}");
        if !again {
            let another = timeout(Duration::from_millis(50), server.listener.accept()).await;
            assert!(another.is_err(), "{method} was repeated");
        }
    }
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_or_written_to_is_not_used_again() {
    for unasked in ["", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"] {
        let server = Server::start().await;
        let mut far = server.used().await;
        far.write(unasked).await;
        if unasked.is_empty() {
            drop(far);
        }
        // Data on the loopback interface is visible after the runtime has polled the socket.
        for _attempt in 0..10 {
            tokio::task::yield_now().await;
        }
        let serve = async { server.accept().await.respond(OK).await };
        let mut post = request(Method::DELETE, RequestBody::Empty);
        let (response, _) =
            within(futures::future::join(server.upstream.try_send_keep_alive(&mut post), serve)).await;
        assert_eq!(text(response.unwrap()).await.unwrap(), "ok");
    }
}

#[tokio::test]
async fn bytes_after_a_response_are_not_the_response_to_the_next_request() {
    for response in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2, 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let server = Server::start().await;
        let (got, mut far) = server
            .exchange(get(), async {
                let mut far = server.accept().await;
                far.respond(response).await;
                far
            })
            .await;
        let got = got.unwrap();
        assert!(got.headers().get_all("content-length").iter().all(|length| length == "2"), "{got:?}");
        assert!(
            !got.headers().contains_key("transfer-encoding") || !got.headers().contains_key("content-length")
        );
        assert_eq!(text(got).await.unwrap(), "ok", "{response}");
        assert!(far.is_closed().await, "{response}");
    }
}

#[tokio::test]
async fn a_truncated_response_is_an_error_and_one_without_a_length_ends_with_its_connection() {
    for (response, wanted) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", None),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", None),
        ("HTTP/1.1 200 OK\r\n\r\nok", Some("ok")),
    ] {
        let server = Server::start().await;
        let (got, ()) = server
            .exchange(get(), async {
                server.accept().await.respond(response).await;
            })
            .await;
        assert_eq!(text(got.unwrap()).await.ok().as_deref(), wanted, "{response}");
    }
}

#[tokio::test]
async fn a_malformed_response_is_an_error_with_its_cause() {
    let many = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(super::MAX_INTERIM + 1);
    let long = format!("HTTP/1.1 200 OK\r\nlong: {}", "x".repeat(70 << 10));
    for (response, why) in [
        ("", "the server closed the connection before the response was complete"),
        ("HTTP/1.1 200", "the server closed the connection before the response was complete"),
        ("220 smtp.example.com\r\n", "the head of the response is malformed: invalid HTTP version"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "the transfer coding of the response is unknown",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "the content length of the response is malformed or contradictory",
        ),
        (&many, "the server sent too many interim responses"),
        (&long, "the head of the response is too long"),
    ] {
        let server =
            Server::with(UpstreamLimits { header_bytes: 64 << 10, ..UpstreamLimits::default() }).await;
        let (got, ()) = server
            .exchange(get(), async {
                let mut far = server.accept().await;
                far.read_until("\r\n\r\n").await;
                // The client may have closed the connection before all bytes are sent.
                let _may_be_closed = far.0.write_all(response.as_bytes()).await;
            })
            .await;
        let Err(UpstreamError::Http1(error)) = got else { panic!("{response:.40}: {got:?}") };
        assert_eq!(error.to_string(), why, "{response:.40}");
    }
}

#[tokio::test]
async fn bodies_are_sent_with_a_length_or_in_chunks_and_the_connection_stays_open() {
    let server = Server::start().await;
    let (frames, body) = fed();
    let mut far = None;
    let serve = async {
        let mut accepted = server.accept().await;
        let head = accepted.read_until("\r\n\r\n").await;
        assert!(head.contains("\r\ntransfer-encoding: chunked\r\n") && !head.contains("length"), "{head}");
        for word in ["one", "two"] {
            frames.send(Ok(Frame::data(Bytes::from(word)))).await.unwrap();
            assert_eq!(accepted.read_until("\r\n").await, "3\r\n", "not kept back");
            assert_eq!(accepted.read_until("\r\n").await, format!("{word}\r\n"));
        }
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "7".parse().unwrap());
        trailers.insert("x-unannounced", "7".parse().unwrap());
        frames.send(Ok(Frame::trailers(trailers))).await.unwrap();
        assert_eq!(accepted.read_until("\r\n\r\n").await, "0\r\nx-sum: 7\r\n\r\n");
        accepted.write(OK).await;
        far = Some(accepted);
    };
    let mut upload = request(Method::POST, body);
    upload.headers_mut().insert("trailer", "X-Sum".parse().unwrap());
    let (response, ()) = server.exchange(upload, serve).await;
    assert_eq!(text(response.unwrap()).await.unwrap(), "ok");

    let large = vec![b'x'; 1 << 20];
    let mut far = far.unwrap();
    let serve = async {
        let head = far.read_until("\r\n\r\n").await;
        assert!(head.contains("\r\ncontent-length: 1048576\r\n"), "{head}");
        let mut seen = vec![0; 1 << 20];
        far.0.read_exact(&mut seen).await.unwrap();
        far.write(OK).await;
        seen
    };
    let (response, seen) =
        server.exchange(request(Method::PUT, RequestBody::Full(large.clone().into())), serve).await;
    assert!(seen == large);
    assert_eq!(text(response.unwrap()).await.unwrap(), "ok");
    let (response, _) = server.exchange(get(), async { far.respond(OK).await }).await;
    assert_eq!(text(response.unwrap()).await.unwrap(), "ok");
}

#[tokio::test]
async fn a_response_may_arrive_and_end_during_the_upload() {
    let server = Server::start().await;
    let (frames, body) = fed();
    let serve = async {
        let mut far = server.accept().await;
        far.respond("HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig").await;
        far
    };
    let (response, mut far) = server.exchange(request(Method::POST, body), serve).await;
    let response = response.unwrap();
    assert_eq!(response.status(), 413);
    // The upload continues while the response is open, even when the response is not read at the
    // moment.
    frames.send(Ok(Frame::data(Bytes::from_static(b"more")))).await.unwrap();
    assert_eq!(far.read_until("more\r\n").await, "4\r\nmore\r\n");
    assert_eq!(text(response).await.unwrap(), "big");
    within(frames.closed()).await;
    assert!(far.is_closed().await, "a request is in the middle of it");
}

#[tokio::test]
async fn a_body_that_fails_or_has_the_wrong_length_ends_the_exchange_and_its_connection() {
    struct Lying(u64, RequestBody);
    impl http_body::Body for Lying {
        type Data = Bytes;
        type Error = BoxError;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            std::pin::Pin::new(&mut self.1).poll_frame(cx)
        }
        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(self.0)
        }
    }
    for (promised, given, why) in [
        (5, Ok(Bytes::from_static(b"four")), "the body is shorter than its announced length"),
        (3, Ok(Bytes::from_static(b"four")), "the body is longer than its announced length"),
        (5, Err(BoxError::from("the client is gone")), "the client is gone"),
    ] {
        let server = Server::start().await;
        let (frames, body) = fed();
        let body = RequestBody::Boxed(Lying(promised, body).boxed_unsync());
        let serve = async {
            let mut far = server.accept().await;
            frames.send(given.map(Frame::data)).await.unwrap();
            drop(frames);
            let mut seen = String::new();
            let _reset = far.0.read_to_string(&mut seen).await;
            seen
        };
        let (response, seen) = server.exchange(request(Method::POST, body), serve).await;
        let Err(UpstreamError::Http1(error)) = response else { panic!("{why}: {response:?}") };
        assert_eq!(error.to_string(), format!("the body of the request failed: {why}"));
        let body = seen.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert!(body.len() as u64 <= promised && !body.contains("four!"), "{seen}");
    }
}

#[tokio::test]
async fn a_connection_is_reset_if_its_request_is_cancelled_or_its_response_is_dropped() {
    let server = Server::start().await;
    let mut get = get();
    let (mut far, head) = {
        let mut request_future = std::pin::pin!(server.upstream.try_send_keep_alive(&mut get));
        let reading = async {
            let mut far = server.accept().await;
            let head = far.read_until("\r\n\r\n").await;
            (far, head)
        };
        tokio::select! {
            _ = request_future.as_mut() => panic!("there is no response"),
            read = within(reading) => read,
        }
    };
    assert!(head.starts_with("GET "));
    assert!(far.is_reset().await);

    let (response, mut far) = server
        .exchange(self::get(), async {
            let mut far = server.accept().await;
            far.respond("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
            far
        })
        .await;
    drop(response);
    assert!(far.is_reset().await);

    let mut far = {
        let mut request_future = std::pin::pin!(server.upstream.send_http1(self::get()));
        let reading = async {
            let mut far = server.accept().await;
            far.read_until("\r\n\r\n").await;
            far
        };
        tokio::select! {
            _ = request_future.as_mut() => panic!("there is no response"),
            far = within(reading) => far,
        }
    };
    assert!(far.is_reset().await);

    let (sender, body) = fed();
    let mut unread = request(Method::POST, body);
    let mut far = {
        let mut request_future = std::pin::pin!(server.upstream.try_send_keep_alive(&mut unread));
        let reading = async {
            let mut far = server.accept().await;
            far.read_until("\r\n\r\n").await;
            sender.send(Ok(Frame::data(Bytes::from(vec![0; 100])))).await.unwrap();
            far
        };
        tokio::select! {
            _ = request_future.as_mut() => panic!("there is no response"),
            far = within(reading) => far,
        }
    };
    assert!(far.is_reset().await);
}

#[tokio::test]
async fn a_connection_closes_normally_after_a_whole_response() {
    let server = Server::start().await;
    let mut idle = server.used().await;
    let serve = idle.respond("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
    let (response, _) = server.exchange(get(), serve).await;
    assert_eq!(text(response.unwrap()).await.unwrap(), "ok");
    assert!(!idle.is_reset().await);

    let refused = async {
        let mut far = server.accept().await;
        far.respond("HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
        far
    };
    let (response, mut far) = within(futures::future::join(server.upstream.send_http1(get()), refused)).await;
    assert_eq!(response.unwrap().status(), 403);
    assert!(!far.is_reset().await);

    let mut idle = server.used().await;
    drop(server);
    assert!(!idle.is_reset().await);
}

fn small_heads() -> UpstreamLimits {
    UpstreamLimits { header_bytes: 1 << 10, ..UpstreamLimits::default() }
}

#[test]
fn debug_prints_no_credential() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _runtime = runtime.enter();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let stream = Stream::Left(TcpStream::from_std(stream).unwrap());
    let mut connection = Connection::new(Transport::Plain(PlainWrite(stream)), &small_heads());
    connection.output.extend_from_slice(b"authorization: Bearer secret");
    connection.input.ready = Bytes::from_static(b"set-cookie: secret");
    assert!(!format!("{connection:?}").contains("secret"));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_for_reads_closes_when_data_is_not_acknowledged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let connection = Connection::new(Transport::Plain(PlainWrite(Stream::Left(tcp))), &small_heads());
    connection.set_user_timeout(Duration::from_secs(45)).unwrap();
    let SocketState::Both(socket) = &connection.socket else { unreachable!("as made above") };
    let socket = socket2::SockRef::from(socket.tcp());
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(45)));
}
