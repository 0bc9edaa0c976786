//! A buffer of encoded events between requests and a backend. It is bounded in events and in
//! bytes: an event that does not fit is lost, so that a backend that fails never delays a request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Maximum size of the events of a buffer in bytes. A batch that is being written is not counted.
pub(crate) const MAX_BUFFER_BYTES: usize = 8 << 20;
/// Maximum size in bytes of a batch for a webhook, unless its first event is larger.
pub(crate) const MAX_SENT_BYTES: usize = 1 << 20;
/// Maximum size in bytes of a batch for the log, unless its first event is larger. It is small, so
/// that the memory of a batch fits into the caches of the processor.
pub(crate) const MAX_WRITTEN_BYTES: usize = 64 << 10;

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
    /// Ends the wait of the requests, when the events are delivered or lost.
    pub(crate) done: Option<DropGuard>,
}

/// The event does not fit into the buffer.
#[derive(Debug)]
pub(crate) struct Full;

/// Whether requests wait for their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Requests do not wait. A batch is ready when it is complete, or at the end of its waiting
    /// time.
    Never,
    /// Requests wait. A batch is ready when it has an event.
    UntilDelivered,
}

/// The buffer.
#[derive(Debug)]
pub(crate) struct Queue {
    params: BatchParams,
    /// Maximum size of a batch in bytes, unless its first event is larger.
    max_batch_bytes: usize,
    waits: Waits,
    waiting: Mutex<Waiting>,
    /// A batch is ready.
    ready: Notify,
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
    /// Returns an empty buffer. A batch has at most `max_batch_bytes`, unless its first event is
    /// larger.
    pub(crate) fn new(params: BatchParams, max_batch_bytes: usize, waits: Waits) -> Self {
        Self { params, max_batch_bytes, waits, waiting: Mutex::default(), ready: Notify::new() }
    }

    /// Returns whether requests wait for their events.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits == Waits::UntilDelivered
    }

    /// Adds an event. If requests wait, returns a token that is cancelled when the event is
    /// delivered or lost.
    ///
    /// # Errors
    /// Returns an error when the event does not fit.
    pub(crate) fn push(&self, line: &[u8]) -> Result<Option<CancellationToken>, Full> {
        let mut waiting = self.lock();
        if waiting.events >= self.params.buffer_size || waiting.bytes + line.len() > MAX_BUFFER_BYTES {
            return Err(Full);
        }
        waiting.events += 1;
        waiting.bytes += line.len();
        let is_complete = |batch: &Batch| {
            batch.events >= self.params.max_size || batch.lines.len() + line.len() > self.max_batch_bytes
        };
        if waiting.batches.back().is_none_or(is_complete) {
            let lines = std::mem::take(&mut waiting.spare);
            let done = (self.waits == Waits::UntilDelivered).then(|| CancellationToken::new().drop_guard());
            waiting.batches.push_back(Batch { lines, events: 0, done });
        }
        let Some(batch) = waiting.batches.back_mut() else { return Err(Full) };
        batch.lines.extend_from_slice(line);
        batch.events += 1;
        let delivered = batch.done.as_ref().map(|done| done.token().clone());
        let is_ready =
            batch.events == self.params.max_size || waiting.batches.len() > 1 || delivered.is_some();
        drop(waiting);
        if is_ready {
            self.ready.notify_one();
        }
        Ok(delivered)
    }

    /// Waits until a batch is ready, or incomplete for `max_wait`, or `stop` is cancelled.
    pub(crate) async fn wait(&self, stop: &CancellationToken) {
        tokio::select! {
            () = self.ready.notified() => {}
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
    pub(crate) fn recycle(&self, mut lines: Vec<u8>) {
        lines.clear();
        let mut waiting = self.lock();
        // A buffer that grows by doubling has at most twice the capacity that it needs.
        if waiting.spare.capacity() == 0 && lines.capacity() <= 2 * self.max_batch_bytes {
            waiting.spare = lines;
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
        let max_wait = Duration::from_secs(30);
        Queue::new(BatchParams { buffer_size, max_size, max_wait }, MAX_SENT_BYTES, Waits::Never)
    }

    fn fits(queue: &Queue, line: &[u8]) -> bool {
        queue.push(line).is_ok()
    }

    #[test]
    fn events_leave_in_batches_in_their_order() {
        let queue = queue(10, 2);
        for line in ["a\n", "b\n", "c\n"] {
            assert!(fits(&queue, line.as_bytes()));
        }
        let first = queue.take().unwrap();
        assert_eq!((&*first.lines, first.events), (&b"a\nb\n"[..], 2));
        queue.recycle(first.lines);
        assert_eq!(queue.take().unwrap().lines, b"c\n");
        assert!(queue.take().is_none());
        assert!(fits(&queue, b"d\n"));
        assert_eq!(queue.take().unwrap().lines, b"d\n");
    }

    #[test]
    fn the_buffer_is_bounded_in_events_and_in_bytes() {
        let queue = queue(3, 2);
        assert_eq!([(); 5].map(|()| fits(&queue, b"x\n")), [true, true, true, false, false]);
        queue.take().unwrap();
        assert_eq!([(); 3].map(|()| fits(&queue, b"x\n")), [true, true, false]);

        let queue = super::tests::queue(usize::MAX, usize::MAX);
        let line = vec![b'x'; MAX_SENT_BYTES / 2];
        let pushed = (0..100).take_while(|_| fits(&queue, &line)).count();
        assert_eq!(pushed * line.len(), MAX_BUFFER_BYTES);
        assert_eq!(queue.take().unwrap().lines.len(), MAX_SENT_BYTES);
    }

    #[test]
    fn the_memory_of_a_batch_is_used_again_and_that_of_a_larger_event_is_not() {
        let params = BatchParams { buffer_size: 1000, max_size: 1000, max_wait: Duration::from_secs(30) };
        let queue = Queue::new(params, MAX_WRITTEN_BYTES, Waits::Never);
        assert!((0..100).all(|_| fits(&queue, &[b'x'; 900])));
        let full = queue.take().unwrap();
        assert_eq!((full.events, full.lines.len()), (72, 72 * 900));
        queue.recycle(full.lines);
        assert!(queue.lock().spare.capacity() >= 72 * 900);
        queue.lock().spare = Vec::new();
        queue.recycle(Vec::with_capacity(2 * MAX_WRITTEN_BYTES + 1));
        assert_eq!(queue.lock().spare.capacity(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_ready_when_it_is_complete_or_has_waited() {
        let (queue, stop) = (queue(10, 2), CancellationToken::new());
        let start = tokio::time::Instant::now();
        assert!(fits(&queue, b"a"));
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        assert!(fits(&queue, b"b"));
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        stop.cancel();
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_until_their_batch_is_delivered_or_lost() {
        let params = BatchParams { buffer_size: 10, max_size: 2, max_wait: Duration::from_secs(30) };
        let (queue, stop) =
            (Queue::new(params, MAX_SENT_BYTES, Waits::UntilDelivered), CancellationToken::new());
        let start = tokio::time::Instant::now();
        let [one, two, three] = [(); 3].map(|()| queue.push(b"x").unwrap().unwrap());
        queue.wait(&stop).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let first = queue.take().unwrap();
        assert!(!one.is_cancelled() && !two.is_cancelled());
        drop(first);
        assert!(one.is_cancelled() && two.is_cancelled() && !three.is_cancelled());
        drop(queue);
        assert!(three.is_cancelled());
    }
}
