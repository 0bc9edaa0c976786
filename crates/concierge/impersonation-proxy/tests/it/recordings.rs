//! Recordings of sessions in pods.

use std::path::Path;
use std::sync::Arc;

use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use pinniped_http_server::body;
use pinniped_session_recording::{Mode, Recorder, RecordingParams, WhenFull};
use pinniped_spdy::{Client as SpdyClient, Event};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api_server::{Handler, Script};
use crate::audit::AuditLog;
use crate::raw::Raw;
use crate::world::{Options, PATIENCE, ReceivedResponse, World, eventually};

const MIB: u64 = 1 << 20;
const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec?command=sh&container=c&stdin=true&tty=true";

/// A proxy that records.
struct Recording {
    world: World,
    folder: tempfile::TempDir,
    audit: AuditLog,
    ends: mpsc::UnboundedReceiver<TokioIo<Upgraded>>,
    stop: CancellationToken,
}

fn params(folder: &Path, mode: Mode) -> RecordingParams {
    RecordingParams {
        directory: folder.to_owned(),
        mode,
        record_input: true,
        when_full: WhenFull::Keep,
        max_sessions: 4,
        max_session: MIB,
        max_total: 8 * MIB,
    }
}

/// Accepts each upgrade, and passes the server's end to the test.
fn accepting() -> (Handler, mpsc::UnboundedReceiver<TokioIo<Upgraded>>) {
    let (sender, ends) = mpsc::unbounded_channel();
    let handler: Handler = Arc::new(move |mut request: Request<Incoming>| {
        let upgrade = hyper::upgrade::on(&mut request);
        let sender = sender.clone();
        Box::pin(async move {
            let mut response = Response::new(body::empty());
            let Some(protocol) = request.headers().get("upgrade").cloned() else { return response };
            tokio::spawn(async move { sender.send(TokioIo::new(upgrade.await.unwrap())) });
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert("connection", HeaderValue::from_static("upgrade"));
            let version =
                if protocol == "websocket" { "sec-websocket-protocol" } else { "x-stream-protocol-version" };
            headers.insert(version, HeaderValue::from_static("v4.channel.k8s.io"));
            headers.insert("upgrade", protocol);
            response
        })
    });
    (handler, ends)
}

impl Recording {
    async fn start(mode: Mode, change: impl FnOnce(&mut RecordingParams)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = params(folder.path(), mode);
        change(&mut params);
        let (recorder, writer) = Recorder::open(params).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(writer.run(stop.clone()));
        let (handler, ends) = accepting();
        let audit = AuditLog::new();
        let script = Script { handler, ..Script::default() };
        let world = audit.world(script, Options { recorder: Some(recorder), ..Options::default() }).await;
        Self { world, folder, audit, ends, stop }
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Waits for the only recording, and returns its name and its lines.
    async fn recorded(&self) -> (String, Vec<Value>) {
        eventually("a complete file", || self.names().iter().any(|name| name.ends_with(".cast"))).await;
        let names = self.names();
        let [name] = &names[..] else { panic!("{names:?}") };
        let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap();
        (name.clone(), text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

/// Returns the server's end of the next session.
async fn server_end(ends: &mut mpsc::UnboundedReceiver<TokioIo<Upgraded>>) -> TokioIo<Upgraded> {
    tokio::time::timeout(PATIENCE, ends.recv()).await.expect("upgraded").unwrap()
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn websocket() -> String {
    format!(
        "GET {EXEC} HTTP/1.1\r\nHost: proxy.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a2V5\r\nAudit-ID: the/id\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    )
}

/// Encodes a message of a server, or of a client whose mask is zero.
fn message(is_client: bool, channel: u8, text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len() + 1).unwrap();
    let mask: &[u8] = if is_client { &[0; 4] } else { &[] };
    let length = if is_client { 0x80 | length } else { length };
    [&[0x82, length][..], mask, &[channel], text.as_bytes()].concat()
}

fn texts(lines: &[Value], code: &str) -> String {
    lines[1..].iter().filter(|line| line[1] == code).map(|line| line[2].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_session_over_a_websocket_is_recorded_and_its_bytes_are_unchanged() {
    let mut recording = Recording::start(Mode::Required, |_| {}).await;
    let client = recording.world.certificate("pinny", &["developers"]);
    let mut raw = Raw::send_request(&client, websocket()).await;
    let head = raw.until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut server = server_end(&mut recording.ends).await;
    let typed = [message(true, 4, r#"{"Width":120,"Height":40}"#), message(true, 0, "ls\r")].concat();
    raw.write(&typed).await;
    let mut received = vec![0; typed.len()];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(received, typed);
    let printed = [message(false, 1, "file \u{20ac}\r\n"), message(false, 3, "{}")].concat();
    // A character arrives in two parts.
    server.write_all(&printed[..9]).await.unwrap();
    server.flush().await.unwrap();
    server.write_all(&printed[9..]).await.unwrap();
    server.shutdown().await.unwrap();
    let (rest, end) = raw.rest().await;
    assert_eq!(rest, String::from_utf8_lossy(&printed));
    end.expect("a regular end of the stream");
    raw.end().await;
    eventually("the tunnel ends", || recording.world.proxy.tunnels() == 0).await;

    let (name, lines) = recording.recorded().await;
    assert!(name.ends_with("Z_n_p_the-id.cast"), "{name}");
    assert_eq!((&lines[0]["width"], &lines[0]["height"]), (&Value::from(120), &Value::from(40)));
    assert_eq!(lines[0]["kubernetes"]["username"], "pinny");
    assert_eq!(lines[0]["kubernetes"]["container"], "c");
    assert_eq!((texts(&lines, "o").as_str(), texts(&lines, "i").as_str()), ("file \u{20ac}\r\n", "ls\r"));
    let (_, event) = recording.audit.of("the/id", "ResponseComplete").await;
    let annotation = "impersonation-proxy.concierge.pinniped.dev/recording";
    assert_eq!(event["annotations"][annotation], name.as_str());
}

#[tokio::test]
async fn a_session_over_spdy_is_recorded() {
    let mut recording = Recording::start(Mode::BestEffort, |_| {}).await;
    let client = recording.world.certificate("pinny", &[]);
    let request = Request::post(EXEC)
        .header("host", "proxy.example")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "v4.channel.k8s.io")
        .body(body::empty())
        .unwrap();
    let mut sender = client.h1().await;
    let mut response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut server = server_end(&mut recording.ends).await;
    let mut spdy = SpdyClient::new(io, 1 << 20);
    let error = spdy.open(&[("streamtype", "error")]).await.unwrap();
    let output = spdy.open(&[("streamtype", "stdout")]).await.unwrap();
    // A server sends data on a stream that it knows. The headers are not compressed.
    let mut opened = Vec::new();
    while !String::from_utf8_lossy(&opened).contains("stdout") {
        assert!(server.read_buf(&mut opened).await.unwrap() > 0, "ended before the streams are open");
    }
    let frame = |stream: u32, text: &[u8]| {
        let length = u32::try_from(text.len()).unwrap() | 1 << 24;
        [&stream.to_be_bytes()[..], &length.to_be_bytes(), text].concat()
    };
    server.write_all(&[frame(output, b"printed"), frame(error, b"{}")].concat()).await.unwrap();
    server.flush().await.unwrap();
    assert_eq!(spdy.next().await.unwrap(), Some(Event::Data(output, b"printed")));
    drop((spdy, server));
    let (_, lines) = recording.recorded().await;
    assert_eq!((texts(&lines, "o").as_str(), texts(&lines, "m").as_str()), ("printed", ""));
    assert_eq!(lines[0]["command"], "sh");
}

#[tokio::test]
async fn a_session_that_must_be_recorded_and_cannot_be_does_not_reach_the_api_server() {
    let recording = Recording::start(Mode::Required, |params| params.max_total = MIB - 1).await;
    let client = recording.world.certificate("pinny", &[]);
    let mut raw = Raw::send_request(&client, websocket()).await;
    let head = raw.until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let status = raw.until("\"code\":503}").await;
    assert!(
        status
            .contains("this session must be recorded, and it cannot be: the directory of recordings is full"),
        "{status}"
    );
    assert!(recording.world.api.seen().is_empty());
    // Other requests are served.
    assert_eq!(client.get("/api/v1/pods").await.status, StatusCode::OK);

    let optional = Recording::start(Mode::BestEffort, |params| params.max_total = MIB - 1).await;
    let client = optional.world.certificate("pinny", &[]);
    let mut raw = Raw::send_request(&client, websocket()).await;
    let head = raw.until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(optional.names().is_empty());
}

#[tokio::test]
async fn a_session_that_can_no_longer_be_recorded_ends_with_a_message() {
    let mut recording = Recording::start(Mode::Required, |_| {}).await;
    let client = recording.world.certificate("pinny", &[]);
    let mut raw = Raw::send_request(&client, websocket()).await;
    raw.until("\r\n\r\n").await;
    let mut server = server_end(&mut recording.ends).await;
    server.write_all(&message(false, 1, "before")).await.unwrap();
    server.flush().await.unwrap();
    raw.until("before").await;
    // A client must mask its frames.
    raw.write(message(false, 0, "hidden")).await;
    let message = "the session was ended because it must be recorded: WebSocket: frame whose mask does not fit its sender";
    raw.until(message).await;
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, server.read_to_end(&mut received)).await.expect("an end").unwrap();
    assert!(received.is_empty(), "bytes that cannot be recorded are not forwarded");
    drop(server);
    eventually("the tunnel ends", || recording.world.proxy.tunnels() == 0).await;
    let (_, lines) = recording.recorded().await;
    assert_eq!(texts(&lines, "o"), "before");
}

#[tokio::test]
async fn other_upgrades_and_refused_sessions_have_no_recording() {
    let mut recording = Recording::start(Mode::Required, |_| {}).await;
    let client = recording.world.certificate("pinny", &[]);
    let forward = websocket().replace("/exec?", "/portforward?");
    let mut raw = Raw::send_request(&client, forward).await;
    assert!(raw.until("\r\n\r\n").await.starts_with("HTTP/1.1 101 "));
    let mut server = server_end(&mut recording.ends).await;
    server.write_all(b"no frame at all").await.unwrap();
    server.flush().await.unwrap();
    raw.until("no frame at all").await;
    assert!(recording.names().is_empty());

    // The API server could read the body as the beginning of the session.
    let seen = recording.world.api.seen().len();
    let with_body = websocket().replace("\r\n\r\n", "\r\ncontent-length: 3\r\n\r\nabc");
    let mut raw = Raw::send_request(&client, with_body).await;
    assert!(raw.until("\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    raw.until("a request for a session must not have a body").await;
    assert_eq!(recording.world.api.seen().len(), seen);

    let base64 = websocket().replace("Protocol: v4.channel", "Protocol: base64.channel");
    let mut raw = Raw::send_request(&client, base64).await;
    assert!(raw.until("\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    raw.until("use v5.channel.k8s.io or v4.channel.k8s.io").await;
    // Without an upgrade there is no session.
    let response: ReceivedResponse = client.get(EXEC).await;
    assert_eq!(response.status, StatusCode::OK);
    assert!(recording.names().is_empty());
}
