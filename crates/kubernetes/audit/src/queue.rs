//! A buffer of encoded events between requests and a backend. It is bounded in events and in
//! bytes: an event that does not fit is lost, so that a backend that fails never delays a request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Maximum size of the events of a buffer in bytes. A batch that is being written is not counted.
pub(crate) const MAX_BUFFER_BYTES: usize = 8 << 20;
/// Maximum size of one batch in bytes, unless its first event is larger.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// The batches of a backend, like the flags `--audit-*-batch-*` of kube-apiserver.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchParams {
    /// Maximum number of events that wait.
    pub buffer_size: usize,
    /// Maximum number of events of a batch.
    pub max_size: usize,
    /// The longest time for which an event waits until its batch is sent.
    pub max_wait: Duration,
}

/// Encoded events, each with its line break.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) lines: Vec<u8>,
    pub(crate) events: usize,
}

/// The buffer.
#[derive(Debug)]
pub(crate) struct Queue {
    params: BatchParams,
    waiting: Mutex<Waiting>,
    /// A batch is complete.
    complete: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    events: usize,
    bytes: usize,
    /// An empty buffer for the next batch.
    spare: Vec<u8>,
}

impl Queue {
    pub(crate) fn new(params: BatchParams) -> Self {
        Self { params, waiting: Mutex::default(), complete: Notify::new() }
    }

    /// Adds an event. Returns `false` if it does not fit.
    pub(crate) fn push(&self, line: &[u8]) -> bool {
        let mut waiting = self.lock();
        if waiting.events >= self.params.buffer_size || waiting.bytes + line.len() > MAX_BUFFER_BYTES {
            return false;
        }
        waiting.events += 1;
        waiting.bytes += line.len();
        let is_complete = |batch: &Batch| {
            batch.events >= self.params.max_size || batch.lines.len() + line.len() > MAX_BATCH_BYTES
        };
        if waiting.batches.back().is_none_or(is_complete) {
            let lines = std::mem::take(&mut waiting.spare);
            waiting.batches.push_back(Batch { lines, events: 0 });
        }
        let Some(batch) = waiting.batches.back_mut() else { return false };
        batch.lines.extend_from_slice(line);
        batch.events += 1;
        let is_ready = batch.events == self.params.max_size || waiting.batches.len() > 1;
        drop(waiting);
        if is_ready {
            self.complete.notify_one();
        }
        true
    }

    /// Waits until a batch is complete, or incomplete for `max_wait`, or `stop` is cancelled.
    pub(crate) async fn wait(&self, stop: &CancellationToken) {
        tokio::select! {
            () = self.complete.notified() => {}
            () = tokio::time::sleep(self.params.max_wait) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Returns the next batch.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut waiting = self.lock();
        let batch = waiting.batches.pop_front()?;
        waiting.events -= batch.events;
        waiting.bytes -= batch.lines.len();
        Some(batch)
    }

    /// Uses the memory of a batch again.
    pub(crate) fn recycle(&self, mut batch: Batch) {
        batch.lines.clear();
        let mut waiting = self.lock();
        if waiting.spare.capacity() == 0 && batch.lines.capacity() <= MAX_BATCH_BYTES {
            waiting.spare = batch.lines;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(buffer_size: usize, max_size: usize) -> Queue {
        Queue::new(BatchParams { buffer_size, max_size, max_wait: Duration::from_secs(30) })
    }

    #[test]
    fn events_leave_in_batches_in_their_order() {
        let queue = queue(10, 2);
        for line in ["a\n", "b\n", "c\n"] {
            assert!(queue.push(line.as_bytes()));
        }
        let first = queue.take().unwrap();
        assert_eq!((&*first.lines, first.events), (&b"a\nb\n"[..], 2));
        queue.recycle(first);
        assert_eq!(queue.take().unwrap().lines, b"c\n");
        assert!(queue.take().is_none());
        assert!(queue.push(b"d\n"));
        assert_eq!(queue.take().unwrap().lines, b"d\n");
    }

    #[test]
    fn the_buffer_is_bounded_in_events_and_in_bytes() {
        let queue = queue(3, 2);
        assert_eq!([(); 5].map(|()| queue.push(b"x\n")), [true, true, true, false, false]);
        queue.take().unwrap();
        assert_eq!([(); 3].map(|()| queue.push(b"x\n")), [true, true, false]);

        let queue = super::tests::queue(usize::MAX, usize::MAX);
        let line = vec![b'x'; MAX_BATCH_BYTES / 2];
        let pushed = (0..100).take_while(|_| queue.push(&line)).count();
        assert_eq!(pushed * line.len(), MAX_BUFFER_BYTES);
        assert_eq!(queue.take().unwrap().lines.len(), MAX_BATCH_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_ready_when_it_is_complete_or_has_waited() {
        let (queue, stop) = (queue(10, 2), CancellationToken::new());
        let start = tokio::time::Instant::now();
        queue.push(b"a");
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        queue.push(b"b");
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        stop.cancel();
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }
}
