//! The observer of one session: reads its streams, and adds them to the recording.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use pinniped_logging::value::ALWAYS;
use pinniped_reverse_proxy::{Direction, NextRead, Tap};

use crate::cast::{Cast, Header};
use crate::metrics::RecordingResult;
use crate::recorder::Mode;
use crate::session::{End, Session};
use crate::streams::{Stream, Streams, Upgrade};

/// Maximum number of bytes that are read together.
const MAX_READ: usize = 16 << 10;

/// Space at the end of a file that is reserved for the lines of one read, whose JSON is longer than
/// the bytes read, and for the last marker. A recording stops when only this space remains.
pub(crate) const RESERVE: u64 = 256 << 10;

/// The text for the user of a session that must be recorded.
const ENDED: &str = "the session was ended because it must be recorded";

/// Why a session has no recording although the server may have started its command: the proxy did
/// not get, or could not use, the response of the server.
const LEFT: &str = "the client left, the connection to the server failed, or the server changed to \
                    another protocol";

/// The settings of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) record_input: bool,
    pub(crate) max_session: u64,
}

/// The observer of a session.
pub(crate) struct SessionTap {
    session: Arc<Session>,
    settings: Settings,
    started: Instant,
    /// The name of the file, and the identifier of the request.
    file: String,
    audit_id: String,
    stage: Stage,
}

enum Stage {
    /// The server has not accepted the upgrade.
    Requested(Upgrade, Box<Header>),
    Recording(Box<Active>),
    /// The session ends with a message after the current frame of the server.
    Ending(Box<Active>, String),
    /// The session ends at once.
    Ended,
    /// The session continues without a recording.
    Unrecorded,
}

struct Active {
    streams: Streams,
    cast: Cast,
    /// Size of the recording in bytes.
    size: u64,
}

impl SessionTap {
    pub(crate) fn new(
        session: Arc<Session>,
        settings: Settings,
        upgrade: Upgrade,
        header: Header,
        file: String,
    ) -> Self {
        Self {
            session,
            settings,
            started: Instant::now(),
            file,
            audit_id: header.kubernetes.audit_id.clone(),
            stage: Stage::Requested(upgrade, Box::new(header)),
        }
    }

    fn is_required(&self) -> bool {
        self.settings.mode == Mode::Required
    }

    /// Completes a recording that has only a marker.
    fn unreadable(&self, header: Header, reason: &str, is_session_ended: bool) {
        let at = self.started.elapsed();
        let mut cast = Cast::new(header);
        cast.marker(at, &format!("the session is not recorded: {reason}"));
        self.session.end(at, &cast.take_lines(), End::Finish(RecordingResult::Unreadable));
        self.report(reason, is_session_ended);
    }

    /// Ends the recording for a reason, and the session if it must be recorded.
    fn stop(&mut self, reason: &str, result: RecordingResult, can_say_why: bool) {
        let at = self.started.elapsed();
        let is_required = self.is_required();
        self.stage = match std::mem::replace(&mut self.stage, Stage::Unrecorded) {
            Stage::Recording(mut active) => {
                active.cast.end(at);
                active.cast.marker(at, &format!("the recording ends here: {reason}"));
                let lines = active.cast.take_lines();
                match (is_required, can_say_why) {
                    // The rest of a frame may follow.
                    (true, true) => {
                        active.size += self.session.push(at, &lines) as u64;
                        Stage::Ending(active, format!("{ENDED}: {reason}"))
                    }
                    (true, false) => {
                        self.session.end(at, &lines, End::Finish(result));
                        Stage::Ended
                    }
                    (false, _) => {
                        self.session.end(at, &lines, End::Finish(result));
                        Stage::Unrecorded
                    }
                }
            }
            other => other,
        };
        if let Stage::Ending(..) = self.stage {
            // The result is known already. The session still adds lines.
            self.session.decide(End::Finish(result));
        }
        self.report(reason, is_required);
    }

    fn report(&self, reason: &str, is_session_ended: bool) {
        tracing::warn!(
            auditID = self.audit_id,
            file = self.file,
            reason,
            isSessionEnded = is_session_ended,
            "the recording of a session is incomplete"
        );
    }

    /// Reads bytes into the recording. Returns the error if they cannot be read.
    fn record(&mut self, direction: Direction, bytes: &[u8]) -> Result<(), String> {
        let at = self.started.elapsed();
        let (Stage::Recording(active) | Stage::Ending(active, _)) = &mut self.stage else { return Ok(()) };
        let Active { streams, cast, size } = &mut **active;
        let record_input = self.settings.record_input;
        let read = streams.read(direction, bytes, &mut |stream, part| {
            if stream != Stream::Stdin || record_input {
                cast.part(at, stream, part);
            }
        });
        let lines = cast.take_lines();
        // A file without its first line cannot be read.
        let is_first = *size == 0;
        *size += match self.settings.mode {
            Mode::BestEffort if !is_first => self.session.push_or_lose(at, &lines),
            Mode::BestEffort | Mode::Required => self.session.push(at, &lines),
        } as u64;
        read.map_err(|error| error.to_string())
    }

    fn poll_recording(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_required() {
            self.session.wake_later(cx.waker());
        }
        if self.session.is_failed() {
            self.stop("the recording cannot be written", RecordingResult::Failed, true);
            return Poll::Ready(());
        }
        if self.is_required() && !self.session.has_room() {
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl Tap for SessionTap {
    fn accepted(&mut self, headers: &HeaderMap) {
        let Stage::Requested(upgrade, header) = std::mem::replace(&mut self.stage, Stage::Unrecorded) else {
            return;
        };
        self.started = Instant::now();
        match Streams::agreed(upgrade, headers) {
            Ok(streams) => {
                let has_terminal = header.kubernetes.tty;
                let mut cast = Cast::new(*header);
                // Without a terminal, there is no size to wait for. A session without output must
                // leave a header if the program is interrupted.
                if !has_terminal {
                    cast.begin();
                }
                let size = self.session.push(Duration::ZERO, &cast.take_lines()) as u64;
                self.stage = Stage::Recording(Box::new(Active { streams, cast, size }));
                tracing::info!(
                    target: ALWAYS,
                    auditID = self.audit_id,
                    file = self.file,
                    "recording of a session started"
                );
            }
            Err(error) => {
                if self.is_required() {
                    self.stage = Stage::Ended;
                }
                self.unreadable(*header, &error.to_string(), self.is_required());
            }
        }
    }

    fn refused(&mut self) {
        self.stage = Stage::Unrecorded;
        self.session.end(self.started.elapsed(), b"", End::Discard);
    }

    fn poll_next_read(&mut self, direction: Direction, cx: &mut Context<'_>) -> Poll<NextRead> {
        if let Stage::Recording(_) = self.stage
            && self.poll_recording(cx).is_pending()
        {
            return Poll::Pending;
        }
        let end = |last: Vec<u8>| Poll::Ready(NextRead::End(Bytes::from(last)));
        match (&self.stage, direction) {
            (Stage::Recording(_), _) => Poll::Ready(NextRead::AtMost(MAX_READ)),
            (Stage::Requested(..) | Stage::Unrecorded, _) => Poll::Ready(NextRead::AtMost(usize::MAX)),
            (Stage::Ended, _) | (Stage::Ending(..), Direction::FromClient) => end(Vec::new()),
            (Stage::Ending(active, message), Direction::ToClient) => {
                let rest = active.streams.rest_of_server_frame();
                if rest == 0 {
                    return end(active.streams.closing_frames(message));
                }
                self.session.wake_later(cx.waker());
                // The rest of the frame cannot be recorded.
                if self.session.is_failed() || active.size >= self.settings.max_session - RESERVE / 2 {
                    return end(Vec::new());
                }
                if !self.session.has_room() {
                    return Poll::Pending;
                }
                Poll::Ready(NextRead::AtMost(rest.min(MAX_READ / 4)))
            }
        }
    }

    fn observe(&mut self, direction: Direction, bytes: &[u8]) -> bool {
        if let Err(reason) = self.record(direction, bytes) {
            if let Stage::Ending(..) = self.stage {
                self.stage = Stage::Ended;
                // The result is decided already.
                self.session.end(self.started.elapsed(), b"", End::Finish(RecordingResult::Failed));
            } else {
                // Frames of the server that cannot be read have no known end.
                self.stop(&reason, RecordingResult::Unreadable, direction == Direction::FromClient);
            }
            return !self.is_required();
        }
        if let Stage::Recording(active) = &self.stage
            && active.size >= self.settings.max_session - RESERVE
        {
            let reason = format!(
                "the recording has reached {} MiB, the limit of one session",
                self.settings.max_session >> 20
            );
            self.stop(&reason, RecordingResult::Limit, true);
        }
        true
    }
}

impl Drop for SessionTap {
    fn drop(&mut self) {
        let at = self.started.elapsed();
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            // The server may have started the command nevertheless.
            Stage::Requested(_, header) => self.unreadable(*header, LEFT, true),
            Stage::Recording(mut active) => {
                active.cast.end(at);
                let lines = active.cast.take_lines();
                self.session.end(at, &lines, End::Finish(RecordingResult::Complete));
            }
            Stage::Ending(mut active, _) => {
                let lines = active.cast.take_lines();
                // The result is decided already.
                self.session.end(at, &lines, End::Finish(RecordingResult::Failed));
            }
            Stage::Ended | Stage::Unrecorded => {}
        }
    }
}
