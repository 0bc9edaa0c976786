//! Tests with files, and with sessions whose bytes the tests choose.

use std::path::Path;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use pinniped_logging::value::ALWAYS;
use pinniped_reverse_proxy::{Direction, NextRead};
use pinniped_spdy::encode::HeaderBlocks;
use pinniped_test_support::log_events::{LogEvent, LogEvents};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// A recorder whose writer runs.
struct Running {
    folder: tempfile::TempDir,
    recorder: Recorder,
    metrics: Metrics,
    stop: CancellationToken,
    writer: JoinHandle<()>,
}

fn params(folder: &Path, mode: Mode) -> RecordingParams {
    RecordingParams {
        directory: folder.to_owned(),
        mode,
        record_input: false,
        when_full: WhenFull::Keep,
        max_sessions: 16,
        max_session: MIB,
        max_total: 20 * MIB,
    }
}

impl Running {
    fn start(change: impl FnOnce(&mut RecordingParams), mode: Mode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = params(folder.path(), mode);
        change(&mut params);
        let (recorder, writer) = Recorder::open(params).unwrap();
        let (metrics, stop) = (Metrics::new(), CancellationToken::new());
        recorder.register_metrics(&metrics);
        let writer = tokio::spawn(writer.run(stop.clone()));
        Self { folder, recorder, metrics, stop, writer }
    }

    async fn begin(&self, protocol: &'static str) -> Result<Option<Begun>, Refused> {
        self.begin_as("pinny", protocol, false).await
    }

    async fn begin_as(
        &self,
        user: &str,
        protocol: &'static str,
        has_body: bool,
    ) -> Result<Option<Begun>, Refused> {
        let query = "command=sh&command=-c&command=a+b&container=c&tty=true&stdin=0";
        self.begin_with(user, protocol, has_body, query).await
    }

    async fn begin_with(
        &self,
        user: &str,
        protocol: &'static str,
        has_body: bool,
        query: &str,
    ) -> Result<Option<Begun>, Refused> {
        let attributes = ResourceAttributes {
            resource: "pods".to_owned(),
            subresource: "exec".to_owned(),
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            ..ResourceAttributes::default()
        };
        let user = User { name: user.to_owned(), groups: vec!["g".to_owned()], ..User::default() };
        let headers = HeaderMap::new();
        let request = SessionRequest {
            attributes: &attributes,
            uri: &format!("/api/v1/namespaces/n/pods/p/exec?{query}"),
            user: &user,
            impersonated_by: None,
            audit_id: "id",
            protocol: &HeaderValue::from_static(protocol),
            headers: &headers,
            has_body,
        };
        self.recorder.begin(&request).await
    }

    /// Begins a session over a WebSocket that the server has accepted.
    async fn websocket(&self) -> Box<dyn Tap> {
        let mut tap = self.begin("websocket").await.unwrap().unwrap().tap;
        tap.accepted(&agreed("v5.channel.k8s.io"));
        tap
    }

    /// Waits for the complete recordings, and returns the last one.
    async fn completed(&self, count: usize) -> Vec<Value> {
        let complete = || {
            let entries = std::fs::read_dir(self.folder.path()).unwrap();
            let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            paths.retain(|path| path.extension().is_some_and(|end| end == "cast"));
            paths.sort();
            paths
        };
        let waiting = async {
            while complete().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("complete files");
        let text = std::fs::read_to_string(complete().last().unwrap()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn stopped(self) -> (tempfile::TempDir, String) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.writer).await.expect("the writer stops").unwrap();
        (self.folder, self.metrics.text().unwrap())
    }
}

fn agreed(protocol: &'static str) -> HeaderMap {
    [("sec-websocket-protocol".parse().unwrap(), HeaderValue::from_static(protocol))].into_iter().collect()
}

fn message(channel: u8, text: &[u8]) -> Vec<u8> {
    let length = u16::try_from(text.len() + 1).unwrap().to_be_bytes();
    [&[0x82, 126, length[0], length[1], channel][..], text].concat()
}

fn room(tap: &mut dyn Tap, direction: Direction) -> Poll<NextRead> {
    tap.poll_next_read(direction, &mut Context::from_waker(Waker::noop()))
}

/// Returns the texts of events with this code.
fn texts(lines: &[Value], code: &str) -> String {
    lines[1..].iter().filter(|line| line[1] == code).map(|line| line[2].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_session_becomes_a_file_with_its_output_and_its_metadata() {
    let running = Running::start(|_| {}, Mode::BestEffort);
    let mut tap = running.websocket().await;
    assert!(tap.observe(Direction::ToClient, &message(1, b"out")));
    // Input is not recorded by default.
    assert!(tap.observe(Direction::FromClient, &[0x82, 0x83, 0, 0, 0, 0, 0, b'p', b'w']));
    assert!(tap.observe(Direction::ToClient, &message(2, "err \u{20ac}".as_bytes())));
    assert_eq!(room(&mut *tap, Direction::ToClient), Poll::Ready(NextRead::AtMost(16 << 10)));
    drop(tap);
    let lines = running.completed(1).await;
    assert_eq!((texts(&lines, "o").as_str(), texts(&lines, "i").as_str()), ("outerr \u{20ac}", ""));
    assert_eq!(lines[0]["command"], "sh -c a b");
    let wanted = json!({
        "auditID": "id", "username": "pinny", "groups": ["g"], "namespace": "n", "pod": "p",
        "container": "c", "subresource": "exec", "command": ["sh", "-c", "a b"], "tty": true, "stdin": false,
    });
    assert_eq!(lines[0]["kubernetes"], wanted);
    let (_folder, text) = running.stopped().await;
    for line in
        ["pinniped_session_recordings_total{result=\"complete\"} 1", "pinniped_session_recordings_active 0"]
    {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}

#[tokio::test]
async fn the_start_and_the_end_of_a_recording_are_logged_without_the_name_of_the_user() {
    let lines = LogEvents::record(&[ALWAYS], Level::INFO);
    let running = Running::start(|_| {}, Mode::BestEffort);
    let mut tap = running.websocket().await;
    assert!(tap.observe(Direction::ToClient, &message(1, b"out")));
    drop(tap);
    running.completed(1).await;
    drop(running.stopped().await);
    let logged = lines.all();
    let [started, ended] = logged.as_slice() else { panic!("{logged:#?}") };
    let keys = |line: &LogEvent| line.fields.keys().cloned().collect::<Vec<_>>();
    assert_eq!((started.level, started.field("message")), (Level::INFO, "recording of a session started"));
    assert_eq!(keys(started), ["auditID", "file", "message"]);
    assert_eq!((ended.level, ended.field("message")), (Level::INFO, "recording of a session ended"));
    assert_eq!(keys(ended), ["auditID", "bytes", "file", "lostBytes", "message", "result"]);
    assert_eq!((started.field("auditID"), ended.field("auditID")), ("id", "id"));
    assert_eq!(started.field("file"), ended.field("file"));
    assert!(!format!("{logged:?}").contains("pinny"));
}

#[tokio::test]
async fn a_session_over_spdy_is_recorded_with_input_if_configured() {
    let running = Running::start(|params| params.record_input = true, Mode::Required);
    let mut tap = running.begin("SPDY/3.1").await.unwrap().unwrap().tap;
    tap.accepted(&HeaderMap::new());
    let mut blocks = HeaderBlocks::default();
    for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
        let frame = blocks.syn_stream(id, &[("streamtype", kind)]).unwrap();
        assert!(tap.observe(Direction::FromClient, &frame));
    }
    assert!(tap.observe(Direction::FromClient, &[0, 0, 0, 3, 0, 0, 0, 1, b'i']));
    assert!(tap.observe(Direction::ToClient, &[0, 0, 0, 5, 0, 0, 0, 1, b'o']));
    drop(tap);
    let lines = running.completed(1).await;
    assert_eq!((texts(&lines, "o").as_str(), texts(&lines, "i").as_str()), ("o", "i"));
}

#[tokio::test]
async fn a_request_without_an_upgrade_leaves_no_file() {
    let running = Running::start(|_| {}, Mode::Required);
    running.begin("websocket").await.unwrap().unwrap().tap.refused();
    let (folder, text) = running.stopped().await;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(!text.contains("pinniped_session_recordings_total{result=\"complete\"} 1"), "{text}");
}

/// The server begins a session when it has the request, whether or not the client waits for the
/// response.
#[tokio::test]
async fn a_client_that_leaves_before_the_response_leaves_a_file() {
    let running = Running::start(|_| {}, Mode::Required);
    drop(running.begin("websocket").await.unwrap().unwrap());
    let lines = running.completed(1).await;
    assert!(texts(&lines, "m").starts_with("the session is not recorded: the client left"), "{lines:?}");
    let (_folder, text) = running.stopped().await;
    assert!(text.contains("pinniped_session_recordings_total{result=\"unreadable\"} 1"), "{text}");
}

#[tokio::test]
async fn a_session_that_must_be_recorded_is_refused_with_the_reason() {
    let running = Running::start(|params| params.max_sessions = 1, Mode::Required);
    let held = running.websocket().await;
    let refused = running.begin("websocket").await.err().unwrap();
    assert_eq!(
        (refused.0.code, refused.to_string().as_str()),
        (
            503,
            "this session must be recorded, and it cannot be: the limit of 1 concurrent recordings, or the \
             share of one client of it, is reached (recording.sessions.maxSessions)"
        )
    );
    let refused = running.begin("tcp").await.err().unwrap();
    assert_eq!(
        (refused.0.code, refused.to_string().as_str()),
        (
            400,
            "this session must be recorded, and it cannot be: the protocol \"tcp\" cannot be recorded; use SPDY/3.1 or websocket"
        )
    );
    drop(held);
    running.completed(1).await;

    let full = Running::start(|params| params.max_total = MIB - 1, Mode::Required);
    let refused = full.begin("websocket").await.err().unwrap();
    let full =
        ": the directory of recordings is full: the limit is 0 MiB (recording.sessions.maxTotalMegabytes)";
    assert!(refused.to_string().ends_with(full), "{refused}");
    let gone = Running::start(|_| {}, Mode::Required);
    std::fs::remove_dir(gone.folder.path()).unwrap();
    let refused = gone.begin("websocket").await.err().unwrap();
    assert!(refused.to_string().contains(": could not create a recording in "), "{refused}");

    let optional = Running::start(|params| params.max_total = MIB - 1, Mode::BestEffort);
    assert!(optional.begin("websocket").await.unwrap().is_none());
    assert!(optional.begin("tcp").await.unwrap().is_none());
    let text = optional.metrics.text().unwrap();
    for result in ["not_started", "unsupported"] {
        let line = format!("pinniped_session_recordings_total{{result=\"{result}\"}} 1\n");
        assert!(text.contains(&line), "{text}");
    }
}

#[tokio::test]
async fn a_session_at_the_limit_of_its_size_continues_or_ends() {
    let piece = message(1, &[b'x'; 10_000]);
    for mode in [Mode::BestEffort, Mode::Required] {
        let running = Running::start(|_| {}, mode);
        let mut tap = running.websocket().await;
        let mut sent = 0;
        let last = loop {
            let room = loop {
                match room(&mut *tap, Direction::ToClient) {
                    Poll::Ready(room) => break room,
                    Poll::Pending => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            };
            match room {
                NextRead::End(last) => break Some(last),
                NextRead::AtMost(usize::MAX) => break None,
                NextRead::AtMost(_) => {}
            }
            assert!(tap.observe(Direction::ToClient, &piece));
            sent += 10_000;
            // Otherwise text is lost, because the writer does not keep up with the test.
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        match mode {
            Mode::BestEffort => assert_eq!(last, None),
            Mode::Required => {
                let last = String::from_utf8_lossy(last.as_deref().unwrap()).into_owned();
                let message = "the session was ended because it must be recorded: the recording has reached 1 MiB, the limit of one session";
                assert!(last.contains(message), "{last}");
                let end = Poll::Ready(NextRead::End(Bytes::new()));
                assert_eq!(room(&mut *tap, Direction::FromClient), end);
            }
        }
        drop(tap);
        let lines = running.completed(1).await;
        assert_eq!(texts(&lines, "o").len(), sent);
        let marker = "the recording ends here: the recording has reached 1 MiB, the limit of one session";
        assert_eq!(texts(&lines, "m"), marker);
        let (folder, text) = running.stopped().await;
        let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
        assert!(file.metadata().unwrap().len() <= MIB);
        assert!(text.contains("pinniped_session_recordings_total{result=\"limit\"} 1"), "{text}");
    }
}

#[tokio::test]
async fn bytes_that_cannot_be_read_end_the_recording_and_a_session_that_must_be_recorded() {
    let unmasked = message(0, b"x");
    let reserved = [0xf2, 0];
    for (mode, direction, bytes, is_forwarded) in [
        (Mode::BestEffort, Direction::FromClient, &unmasked[..], true),
        (Mode::BestEffort, Direction::ToClient, &reserved[..], true),
        (Mode::Required, Direction::FromClient, &unmasked[..], false),
        (Mode::Required, Direction::ToClient, &reserved[..], false),
    ] {
        let running = Running::start(|_| {}, mode);
        let mut tap = running.websocket().await;
        assert!(tap.observe(Direction::ToClient, &message(1, b"before")));
        assert_eq!(tap.observe(direction, bytes), is_forwarded);
        let after = room(&mut *tap, Direction::ToClient);
        match (mode, direction, after) {
            (Mode::BestEffort, _, Poll::Ready(NextRead::AtMost(usize::MAX))) => {}
            (Mode::Required, Direction::ToClient, Poll::Ready(NextRead::End(last))) => {
                assert!(last.is_empty());
            }
            (Mode::Required, Direction::FromClient, Poll::Ready(NextRead::End(last))) => {
                let last = String::from_utf8_lossy(&last).into_owned();
                assert!(last.contains("WebSocket: frame whose mask does not fit its sender"), "{last}");
            }
            (.., after) => panic!("{after:?}"),
        }
        if mode == Mode::BestEffort {
            assert!(tap.observe(Direction::ToClient, &message(1, b"after")));
        }
        drop(tap);
        let lines = running.completed(1).await;
        assert_eq!(texts(&lines, "o"), "before");
        assert!(texts(&lines, "m").starts_with("the recording ends here: WebSocket: frame "), "{lines:?}");
        let (_folder, text) = running.stopped().await;
        assert!(text.contains("pinniped_session_recordings_total{result=\"unreadable\"} 1"), "{text}");
    }
}

#[tokio::test]
async fn a_message_follows_the_rest_of_a_frame() {
    let running = Running::start(|_| {}, Mode::Required);
    let mut tap = running.websocket().await;
    let frame = message(1, b"abcdef");
    assert!(tap.observe(Direction::ToClient, &frame[..7]));
    assert!(!tap.observe(Direction::FromClient, &message(0, b"unmasked")));
    assert_eq!(room(&mut *tap, Direction::ToClient), Poll::Ready(NextRead::AtMost(4)));
    assert!(tap.observe(Direction::ToClient, &frame[7..]));
    let Poll::Ready(NextRead::End(last)) = room(&mut *tap, Direction::ToClient) else { panic!("no end") };
    assert!(!last.is_empty());
    drop(tap);
    assert_eq!(texts(&running.completed(1).await, "o"), "abcdef");
}

/// The file is complete although both sides of the session break the protocol.
#[tokio::test]
async fn a_server_that_breaks_the_protocol_while_the_session_ends_completes_the_file() {
    let running = Running::start(|_| {}, Mode::Required);
    let mut tap = running.websocket().await;
    assert!(tap.observe(Direction::ToClient, &message(1, b"abcdef")[..7]));
    assert!(!tap.observe(Direction::FromClient, &message(0, b"unmasked")));
    assert!(tap.observe(Direction::ToClient, &message(1, b"abcdef")[7..]));
    assert!(!tap.observe(Direction::ToClient, &[0xf2, 0]));
    drop(tap);
    running.completed(1).await;
}

#[tokio::test]
async fn a_protocol_that_the_server_chooses_against_the_request_is_not_recorded() {
    for (mode, wanted) in
        [(Mode::BestEffort, NextRead::AtMost(usize::MAX)), (Mode::Required, NextRead::End(Bytes::new()))]
    {
        let running = Running::start(|_| {}, mode);
        let mut tap = running.begin("websocket").await.unwrap().unwrap().tap;
        tap.accepted(&agreed("base64.channel.k8s.io"));
        assert_eq!(room(&mut *tap, Direction::ToClient), Poll::Ready(wanted));
        drop(tap);
        let marker = texts(&running.completed(1).await, "m");
        assert!(marker.starts_with("the session is not recorded: the subprotocol"), "{marker}");
    }
}

#[tokio::test]
async fn a_slow_writer_loses_text_of_an_optional_recording_and_delays_a_required_one() {
    let piece = message(1, &[b'x'; 10_000]);
    for mode in [Mode::BestEffort, Mode::Required] {
        let folder = tempfile::tempdir().unwrap();
        let params =
            RecordingParams { max_sessions: 128, max_total: 1000 * MIB, ..params(folder.path(), mode) };
        let (recorder, writer) = Recorder::open(params).unwrap();
        let running = Running {
            folder,
            recorder,
            metrics: Metrics::new(),
            stop: CancellationToken::new(),
            writer: tokio::spawn(std::future::pending()),
        };
        running.recorder.register_metrics(&running.metrics);
        let mut tap = running.websocket().await;
        let mut sent = 0;
        while sent < 300_000 && room(&mut *tap, Direction::ToClient).is_ready() {
            assert!(tap.observe(Direction::ToClient, &piece));
            sent += 10_000;
        }
        // The buffer has 128 KiB.
        match mode {
            Mode::BestEffort => assert_eq!(sent, 300_000),
            Mode::Required => assert!((100_000..150_000).contains(&sent), "{sent}"),
        }
        let stop = CancellationToken::new();
        let writing = tokio::spawn(writer.run(stop.clone()));
        let drained = async {
            while room(&mut *tap, Direction::ToClient).is_pending() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, drained).await.expect("room again");
        drop(tap);
        let lines = running.completed(1).await;
        // The result is counted after the file has its final name.
        stop.cancel();
        writing.await.unwrap();
        let text = running.metrics.text().unwrap();
        if mode == Mode::BestEffort {
            let recorded = texts(&lines, "o").len();
            assert!(recorded < sent, "{recorded}");
            assert!(text.contains("pinniped_session_recordings_total{result=\"lost\"} 1"), "{text}");
        } else {
            assert_eq!(texts(&lines, "o").len(), sent);
        }
    }
}

#[tokio::test]
async fn the_rest_of_a_frame_does_not_exceed_the_buffer_after_a_required_recording_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let params = RecordingParams {
        max_sessions: 128,
        max_session: 64 * MIB,
        max_total: 1000 * MIB,
        ..params(folder.path(), Mode::Required)
    };
    let (recorder, _writer) = Recorder::open(params).unwrap();
    let running = Running {
        folder,
        recorder,
        metrics: Metrics::new(),
        stop: CancellationToken::new(),
        writer: tokio::spawn(std::future::pending()),
    };
    let mut tap = running.websocket().await;
    // The head of a frame of 40 MiB from the server, and then a frame of the client without a mask.
    let head = [&[0x82, 127][..], &(40 * MIB).to_be_bytes(), &[1]].concat();
    assert!(tap.observe(Direction::ToClient, &head));
    assert!(!tap.observe(Direction::FromClient, &[0x82, 1, 0]));
    let mut sent = 0;
    while sent < 4 * MIB as usize
        && let Poll::Ready(NextRead::AtMost(count)) = room(&mut *tap, Direction::ToClient)
    {
        assert!(tap.observe(Direction::ToClient, &vec![b'x'; count]));
        sent += count;
    }
    // The buffer has 128 KiB.
    assert!((50_000..200_000).contains(&sent), "{sent}");
}

#[tokio::test]
async fn a_session_without_terminal_and_output_has_a_header_from_its_start() {
    let running = Running::start(|_| {}, Mode::Required);
    let begun = running.begin_with("pinny", "websocket", false, "command=sleep&stdout=true").await;
    let mut tap = begun.unwrap().unwrap().tap;
    tap.accepted(&agreed("v5.channel.k8s.io"));
    let header = async {
        loop {
            let entry = std::fs::read_dir(running.folder.path()).unwrap().next().unwrap().unwrap();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            if text.ends_with('\n') {
                break serde_json::from_str::<Value>(&text).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let header = tokio::time::timeout(PATIENCE, header).await.expect("a header");
    assert_eq!(header["kubernetes"]["command"], json!(["sleep"]));
}

#[test]
fn requests_for_sessions_are_recognized() {
    let attributes = |group: &str, resource: &str, subresource: &str| {
        Attributes::Resource(ResourceAttributes {
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            ..ResourceAttributes::default()
        })
    };
    for (group, resource, subresource, wanted) in [
        ("", "pods", "exec", true),
        ("", "pods", "attach", true),
        ("", "pods", "portforward", false),
        ("", "pods", "", false),
        ("", "services", "exec", false),
        ("apps", "pods", "exec", false),
    ] {
        assert_eq!(session_of(&attributes(group, resource, subresource)).is_some(), wanted, "{subresource}");
    }
    assert_eq!(
        session_of(&Attributes::NonResource { verb: "get".to_owned(), path: "/exec".to_owned() }),
        None
    );
}

#[test]
fn long_texts_in_the_header_are_truncated() {
    let many = || (0..10_000).map(|at| at.to_string());
    let list = limited(many());
    assert!(list.len() < 2_000 && list.last().unwrap().ends_with(TRUNCATED), "{}", list.len());
    assert_eq!(limited(std::iter::once("x".repeat(5_000)))[0].len(), MAX_LIST + TRUNCATED.len());
    assert!(limited(std::iter::repeat_n(String::new(), 10_000)).len() <= MAX_LIST + 1);
}

#[tokio::test]
async fn one_client_does_not_get_all_recordings() {
    let running = Running::start(|params| params.max_sessions = 4, Mode::Required);
    let mut begun = Vec::new();
    while let Ok(Some(one)) = running.begin("websocket").await {
        begun.push(one);
    }
    assert_eq!(begun.len(), 3);
    running.begin_as("other", "websocket", false).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_with_a_body_is_not_recorded_and_refused_if_it_must_be() {
    let refused = Running::start(|_| {}, Mode::Required).begin_as("pinny", "websocket", true).await;
    let Err(Refused(status)) = refused else { panic!("it must be refused") };
    assert_eq!((status.code, status.message.ends_with("must not have a body")), (400, true), "{status:?}");
    let optional = Running::start(|_| {}, Mode::BestEffort);
    assert!(optional.begin_as("pinny", "websocket", true).await.unwrap().is_none());
}
