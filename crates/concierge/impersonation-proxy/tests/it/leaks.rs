//! Repeats all kinds of hostile clients and servers, and checks that no resources are left.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use pinniped_http_server::{Body, BoxError, Limits, body, workers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::api_server::{Handler, Script, json_response};
use crate::raw::Raw;
use crate::world::{Client, Options, PATIENCE, World, eventually};

/// Set for the process that runs only this test.
const ALONE: &str = "PINNIPED_TEST_ALONE";

#[tokio::test]
async fn hostile_clients_and_servers_get_their_answers_and_leave_nothing_behind() {
    if std::env::var_os(ALONE).is_none() {
        // File descriptors belong to the process, and other tests open some.
        let name = "leaks::hostile_clients_and_servers_get_their_answers_and_leave_nothing_behind";
        let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", name, "--nocapture"])
            .env(ALONE, "1")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(8 * PATIENCE, command.output()).await.expect("an end").unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
        return;
    }
    // Long enough for a complete head and a complete handshake on a busy machine.
    let limits = Limits {
        header_read_timeout: Duration::from_secs(2),
        handshake_timeout: Duration::from_secs(3),
        ..Limits::default()
    };
    let script = Script { handler: bad_server(), ..Script::default() };
    let world = World::start_with(script, Options { limits, ..Options::default() }).await;
    let client = world.certificate("u", &[]);
    // The first round fills caches and pools, of which each worker has its own.
    let mut of_each_lane = Vec::new();
    for _ in 0..workers::Share::Half.count() {
        let mut h1 = client.h1().await;
        let request = client.request("/api/v1/pods").body(body::empty()).unwrap();
        let response = h1.send_request(request).await.unwrap();
        response.into_body().collect().await.unwrap();
        of_each_lane.push(h1);
    }
    drop(of_each_lane);
    everything(&world, &client).await;
    let before = left_over(&world).await;
    for _ in 0..2 {
        everything(&world, &client).await;
    }
    eventually("nothing is left", || {
        let now = count(&world);
        println!("files and tasks: {now:?}, wanted {before:?}");
        now.0 <= before.0 && now.1 <= before.1
    })
    .await;
    assert_eq!(client.get("/api/v1/pods").await.status, StatusCode::OK);
}

/// Returns the number of file descriptors of the process and tasks of its runtimes, once all
/// clients have disconnected.
async fn left_over(world: &World) -> (usize, usize) {
    let quiet = || {
        let upstream = world.upstream.stats();
        world.proxy.stats().open == 0 && world.proxy.tunnels() == 0 && upstream.streams == 0
    };
    eventually("all clients are gone", quiet).await;
    count(world)
}

fn count(world: &World) -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    (files, tasks + world.proxy.tasks())
}

/// Returns an API server that misbehaves in the way that the path names.
fn bad_server() -> Handler {
    Arc::new(|mut request: Request<Incoming>| {
        Box::pin(async move {
            match request.uri().path() {
                "/breaks" => {
                    let frames =
                        [Ok(Frame::data(Bytes::from_static(b"begin"))), Err(BoxError::from("broken"))];
                    // Delayed, because a reset overtakes data that is not sent yet.
                    let frames = futures::stream::iter(frames).then(|frame| async {
                        tokio::task::yield_now().await;
                        frame
                    });
                    Response::new(Body::new(StreamBody::new(frames.boxed())))
                }
                "/silent" => std::future::pending().await,
                "/switches" => {
                    let upgrade = hyper::upgrade::on(&mut request);
                    tokio::spawn(async move { drop(upgrade.await) });
                    let mut response = Response::new(body::empty());
                    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                    response.headers_mut().insert("connection", http::HeaderValue::from_static("upgrade"));
                    response.headers_mut().insert("upgrade", http::HeaderValue::from_static("other"));
                    response
                }
                "/reads" => match request.into_body().collect().await {
                    Ok(body) => Response::new(body::full(body.to_bytes())),
                    // The client has disconnected.
                    Err(_broken) => Response::new(body::empty()),
                },
                _ => json_response(&serde_json::json!({})),
            }
        })
    })
}

async fn everything(world: &World, client: &Client<'_>) {
    let mut wrong = Vec::new();
    for (name, wanted, request) in requests() {
        // Printed for diagnosis when a case hangs.
        println!("{name}");
        let response = Raw::open(client).await.exchange(&request).await;
        let got = status(&response);
        if got != wanted && !is_broken_at_once(name, got) {
            wrong.push(format!("{name}: {got:?} instead of {wanted:?}: {response}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    tokio::join!(garbage_instead_of_tls(world), slow_heads(client), slow_bodies(client));
    over_http2(client).await;
    leavers(client).await;
}

/// Returns whether the case may end without a response: head and end of the server's response may
/// be read at once, and the reset then overtakes the head.
fn is_broken_at_once(name: &str, got: Option<u16>) -> bool {
    name == "a broken response" && got.is_none()
}

/// Returns the status of the last response; `None` without a response.
fn status(responses: &str) -> Option<u16> {
    responses
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| responses.strip_prefix("HTTP/1.0 "))?
        .get(..3)?
        .parse()
        .ok()
}

/// Returns the requests and the expected status of each.
fn requests() -> Vec<(&'static str, Option<u16>, Vec<u8>)> {
    let head = |line: &str, headers: &[u8]| {
        let mut bytes = format!("{line} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n").into_bytes();
        bytes.extend(headers);
        bytes.extend(b"\r\n");
        bytes
    };
    let get = |path: &str| head(&format!("GET {path}"), b"");
    let with = |headers: &[u8]| head("GET /api/v1/pods", headers);
    let chunked =
        |body: &str| [&head("POST /reads", b"transfer-encoding: chunked\r\n"), body.as_bytes()].concat();
    let fields = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>().into_bytes();
    let large = |bytes: usize| format!("x-large: {}\r\n", "x".repeat(bytes)).into_bytes();
    let upgrade = |more: &str| format!("GET /switches HTTP/1.1\r\nhost: h\r\n{more}\r\n").into_bytes();
    vec![
        ("no request at all", None, Vec::new()),
        ("bytes", Some(400), b"\0\xff\x80\r\n\r\n".to_vec()),
        ("a word", Some(400), b"hello\r\n\r\n".to_vec()),
        ("HTTP/0.9", Some(400), b"GET /\r\n\r\n".to_vec()),
        ("HTTP/3.0", Some(400), b"GET / HTTP/3.0\r\nhost: h\r\n\r\n".to_vec()),
        ("the preface of HTTP/2", None, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("HTTP/1.0", Some(200), b"GET /api/v1/pods HTTP/1.0\r\nhost: h\r\n\r\n".to_vec()),
        ("a control character in the method", Some(400), head("G\x01T /", b"")),
        ("an unknown method on a resource", Some(403), head("BREW /api/v1/pods", b"")),
        ("a space in the path", Some(400), get("/a b")),
        ("a control character in the path", Some(400), get("/a\x01b")),
        ("no path", Some(400), get("")),
        ("no slash", Some(400), get("api/v1/pods")),
        ("an authority", Some(400), head("CONNECT kubernetes:443", b"")),
        ("half an escape", Some(400), get("/api/v1/pods/%")),
        ("half an escape more", Some(400), get("/api/v1/pods/%4")),
        ("no escape", Some(400), get("/api/v1/pods/%zz")),
        ("an escape of no UTF-8", Some(200), get("/api/v1/pods/%ff%fe")),
        ("an escaped zero", Some(200), get("/api/v1/pods/%00")),
        ("no escape in the query", Some(200), get("/api/v1/pods?a=%zz")),
        ("a path as long as HTTP's crates take", Some(200), get(&format!("/{}", "a".repeat(65_000)))),
        ("a longer path", Some(414), get(&format!("/{}", "a".repeat(70_000)))),
        ("a bad timeout", Some(400), get("/api/v1/pods?timeout=soon")),
        ("a header without a colon", Some(400), with(b"nonsense\r\n")),
        ("a header without a name", Some(400), with(b": x\r\n")),
        ("a space before the colon", Some(400), with(b"x : x\r\n")),
        ("a folded header", Some(400), with(b"x: a\r\n b\r\n")),
        ("a zero in a header", Some(400), with(b"x: a\0b\r\n")),
        ("a control character in a header", Some(400), with(b"x: a\x01b\r\n")),
        ("no UTF-8 in a header", Some(200), with(b"x: \xff\xfe\r\n")),
        ("no UTF-8 in a name", Some(400), with(b"x\xff: a\r\n")),
        ("no UTF-8 in a credential", Some(200), with(b"authorization: \xff\xfe\r\n")),
        ("no UTF-8 in an impersonated name", Some(400), with(b"impersonate-user: \xff\xfe\r\n")),
        ("half an impersonation", Some(400), with(b"impersonate-group: g\r\n")),
        ("an unknown impersonation", Some(500), with(b"impersonate-user: a\r\nimpersonate-all: b\r\n")),
        ("many fields", Some(200), with(&fields(1900))),
        ("too many fields", Some(431), with(&fields(2100))),
        ("large headers", Some(200), with(&large(900 << 10))),
        ("too large headers", Some(431), with(&large(1 << 20))),
        ("two lengths", Some(400), with(b"content-length: 1\r\ncontent-length: 2\r\n")),
        ("a length that is none", Some(400), with(b"content-length: x\r\n")),
        ("an unknown coding", Some(400), with(b"transfer-encoding: gzip\r\n")),
        ("a chunk without a length", Some(502), chunked("zz\r\n")),
        ("a chunk too long for anybody", Some(502), chunked("fffffffffffffffff\r\n")),
        ("a chunk with a wrong end", Some(502), chunked("1\r\naXX")),
        (
            "another protocol than asked for",
            Some(502),
            upgrade("connection: upgrade, close\r\nupgrade: x\r\n"),
        ),
        ("no protocol asked for", Some(502), upgrade("connection: upgrade, close\r\n")),
        ("a broken response", Some(200), get("/breaks")),
        ("no response", Some(504), get("/silent?timeout=200ms")),
    ]
}

/// Clients that do not use TLS, or stop during the handshake.
async fn garbage_instead_of_tls(world: &World) {
    let hello_of_nothing = [&[22, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
    let cases = [
        &b""[..],
        b"\0",
        b"GET / HTTP/1.1\r\nhost: h\r\n\r\n",
        b"\x16\x03\x01",
        b"\x16\x03\x01\xff\xff\x01",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x80\x2e\x01\x03\x01",
        &hello_of_nothing,
    ];
    let trying = cases.map(|garbage| async move {
        let mut tcp = TcpStream::connect(world.address()).await.unwrap();
        tcp.write_all(garbage).await.unwrap();
        let mut response = Vec::new();
        // By an alert, a close or a reset; some only after the handshake timeout.
        let ended = tokio::time::timeout(PATIENCE, tcp.read_to_end(&mut response)).await;
        assert!(ended.is_ok(), "{garbage:?}");
    });
    futures::future::join_all(trying).await;
}

/// A head that arrives byte by byte and never completes.
async fn slow_heads(client: &Client<'_>) {
    for begin in ["GET /api", "GET /api/v1/pods HTTP/1.1\r\nhost: h\r\nx-a: "] {
        let mut raw = Raw::send_request(client, begin).await;
        let began = tokio::time::Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            if raw.try_write("a").await.is_err() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "it would continue indefinitely");
        }
    }
}

/// A body that arrives byte by byte until the deadline.
async fn slow_bodies(client: &Client<'_>) {
    let head = "POST /reads?timeout=300ms HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\n";
    let mut raw = Raw::send_request(client, head).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..4 {
        ticks.tick().await;
        raw.write("a").await;
    }
    let (response, _) = raw.rest().await;
    assert_eq!(status(&response), Some(504), "{response}");
}

/// Attacks that are specific to HTTP/2.
async fn over_http2(client: &Client<'_>) {
    let h2 = client.h2::<Body>().await;
    let send_request = async |request: http::request::Builder| {
        let response = h2.clone().send_request(request.body(body::empty()).unwrap()).await?;
        Ok::<_, hyper::Error>(response.status().as_u16())
    };
    let uri = |path: &str| format!("https://h{path}");
    let large = "x".repeat(1 << 20);
    for (name, wanted, request) in [
        ("no escape", Some(400), Request::get(uri("/%zz"))),
        ("too large headers", Some(431), Request::get(uri("/api/v1/pods")).header("x", large)),
        ("CONNECT", Some(400), Request::builder().method(Method::CONNECT).uri("kubernetes:443")),
        ("a broken response", Some(200), Request::get(uri("/breaks"))),
        ("no response", Some(504), Request::get(uri("/silent?timeout=200ms"))),
        ("an ordinary request", Some(200), Request::get(uri("/api/v1/pods"))),
    ] {
        let got = tokio::time::timeout(PATIENCE, send_request(request)).await.expect(name);
        let status = got.as_ref().ok().copied();
        assert!(status == wanted || is_broken_at_once(name, status), "{name}: {got:?}, not {wanted:?}");
    }

    // Bytes that are not frames, after a valid preface.
    let mut tls = client.tls(b"h2").await;
    tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    tls.write_all(&[0xff; 4096]).await.unwrap();
    let mut response = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, tls.read_to_end(&mut response)).await;
    assert!(ended.is_ok(), "it is ended");
}

/// Clients that disconnect in the middle of a request.
async fn leavers(client: &Client<'_>) {
    for begun in [
        "",
        "GET /api/v1",
        "GET /silent HTTP/1.1\r\nhost: h\r\n\r\n",
        "POST /reads HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nabc",
        "GET /breaks HTTP/1.1\r\nhost: h\r\n\r\n",
        "GET /switches HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
    ] {
        Raw::send_request(client, begun).await.vanish();
    }
}
