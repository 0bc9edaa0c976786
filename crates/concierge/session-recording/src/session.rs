//! The bounded buffer between a session and its file.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::Notify;

use crate::cast::lost_marker;
use crate::metrics::RecordingResult;

/// A larger buffer is released when its text is written.
const RETAINED: usize = 16 << 10;

/// The end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// There is no session: the server has not accepted the upgrade.
    Discard,
    /// The session or its recording has ended.
    Finish(RecordingResult),
}

/// The buffer of one session, which its observer fills and its writer drains.
#[derive(Debug)]
pub(crate) struct Session {
    /// Maximum size of the buffer in bytes.
    most: usize,
    state: Mutex<State>,
    filled: Notify,
    /// The session, if it waits for room.
    waiting: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    buffer: Vec<u8>,
    /// Size of the text that is being written.
    writing: usize,
    end: Option<End>,
    /// The end that was decided before the last lines are added.
    decided: Option<End>,
    is_failed: bool,
    /// Bytes that are lost, and those of them that no marker has.
    lost: u64,
    unmarked: u64,
}

/// Text to write.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) text: Vec<u8>,
    /// The end of the recording, after the text.
    pub(crate) end: Option<End>,
}

impl Session {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), filled: Notify::new(), waiting: AtomicWaker::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds lines if there is room; otherwise counts them as lost. Returns the bytes that were
    /// added.
    pub(crate) fn push_or_lose(&self, at: Duration, lines: &[u8]) -> usize {
        let mut state = self.state();
        if state.buffer.len() + state.writing + lines.len() > self.most {
            state.lost += lines.len() as u64;
            state.unmarked += lines.len() as u64;
            return 0;
        }
        self.add(&mut state, at, lines)
    }

    /// Adds lines. The caller waits until [`Self::has_room`] before it reads more.
    pub(crate) fn push(&self, at: Duration, lines: &[u8]) -> usize {
        self.add(&mut self.state(), at, lines)
    }

    fn add(&self, state: &mut State, at: Duration, lines: &[u8]) -> usize {
        if lines.is_empty() && state.unmarked == 0 {
            return 0;
        }
        let before = state.buffer.len();
        let unmarked = std::mem::take(&mut state.unmarked);
        if unmarked > 0 {
            lost_marker(&mut state.buffer, at, unmarked);
        }
        state.buffer.extend_from_slice(lines);
        // The writer waits a moment for more, but not when half of the buffer is full.
        if before == 0 || (before < self.most / 2 && self.is_urgent(state)) {
            self.filled.notify_one();
        }
        state.buffer.len() - before
    }

    /// Ends the recording; the first end counts. `lines` are the last ones.
    pub(crate) fn end(&self, at: Duration, lines: &[u8], end: End) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        self.add(&mut state, at, lines);
        let end = state.decided.unwrap_or(end);
        state.end = Some(match end {
            End::Finish(RecordingResult::Complete) if state.lost > 0 => End::Finish(RecordingResult::Lost),
            end => end,
        });
        self.filled.notify_one();
    }

    /// Decides how the recording will end; the first decision counts.
    pub(crate) fn decide(&self, end: End) {
        self.state().decided.get_or_insert(end);
    }

    /// Returns whether more lines can be added.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.state();
        state.buffer.len() + state.writing < self.most
    }

    /// Returns whether the file cannot be written.
    pub(crate) fn is_failed(&self) -> bool {
        self.state().is_failed
    }

    /// Returns the number of bytes that are lost.
    pub(crate) fn lost(&self) -> u64 {
        self.state().lost
    }

    /// Wakes this task when there is room again, and when the file cannot be written.
    pub(crate) fn wake_later(&self, waker: &Waker) {
        self.waiting.register(waker);
    }

    /// Waits until there is something to write, and a moment longer for more.
    pub(crate) async fn filled(&self, moment: Duration) {
        self.filled.notified().await;
        let is_urgent = self.is_urgent(&self.state());
        if !is_urgent {
            let _more = tokio::time::timeout(moment, self.filled.notified()).await;
        }
    }

    fn is_urgent(&self, state: &State) -> bool {
        state.end.is_some() || state.buffer.len() >= self.most / 2
    }

    /// Removes the text. It takes room until [`Self::written`].
    pub(crate) fn take(&self, empty: Vec<u8>) -> Batch {
        let mut state = self.state();
        let batch = Batch { text: std::mem::replace(&mut state.buffer, empty), end: state.end };
        state.writing = batch.text.len();
        batch
    }

    /// Frees the room of the text that was taken.
    pub(crate) fn written(&self) {
        self.state().writing = 0;
        self.waiting.wake();
    }

    /// Records that the file cannot be written.
    pub(crate) fn fail(&self) {
        self.state().is_failed = true;
        self.waiting.wake();
    }
}

/// Returns a buffer for the next text.
pub(crate) fn reused(mut text: Vec<u8>) -> Vec<u8> {
    if text.capacity() > RETAINED {
        return Vec::new();
    }
    text.clear();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(100);
    const AT: Duration = Duration::from_secs(1);

    #[test]
    fn lines_without_room_are_lost_and_the_next_line_follows_a_marker() {
        let session = Session::new(10);
        assert_eq!(session.push_or_lose(AT, b"12345678\n"), 9);
        assert_eq!(session.push_or_lose(AT, b"lost\n"), 0);
        assert_eq!(session.push_or_lose(AT, b"too\n"), 0);
        assert_eq!((session.lost(), session.has_room()), (9, true));
        assert_eq!(session.take(Vec::new()).text, b"12345678\n");
        // Text that is being written takes room, too.
        assert_eq!(session.push_or_lose(AT, b"more\n"), 0);
        session.written();
        session.push_or_lose(AT, b"next\n");
        let marked = b"[1.000000, \"m\", \"14 bytes of the recording are lost here\"]\nnext\n";
        assert_eq!(session.take(Vec::new()).text, marked);
        session.end(AT, b"", End::Finish(RecordingResult::Complete));
        assert_eq!(session.take(Vec::new()).end, Some(End::Finish(RecordingResult::Lost)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_writer_waits_a_moment_for_more_unless_the_buffer_fills_or_ends() {
        let session = Session::new(100);
        let waited = async || {
            let start = tokio::time::Instant::now();
            session.filled(MOMENT).await;
            start.elapsed()
        };
        session.push(AT, b"a\n");
        assert_eq!(waited().await, MOMENT);
        session.take(Vec::new());
        session.push(AT, &[b'x'; 60]);
        assert_eq!(waited().await, Duration::ZERO);
        session.take(Vec::new());
        session.push(AT, b"a\n");
        session.end(AT, b"", End::Discard);
        assert_eq!(waited().await, Duration::ZERO);
    }

    #[test]
    fn the_first_end_counts() {
        let session = Session::new(100);
        session.end(AT, b"last\n", End::Finish(RecordingResult::Limit));
        session.end(AT, b"later\n", End::Finish(RecordingResult::Complete));
        let batch = session.take(Vec::new());
        assert_eq!((&batch.text[..], batch.end), (&b"last\n"[..], Some(End::Finish(RecordingResult::Limit))));
    }
}
