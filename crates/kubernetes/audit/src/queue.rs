//! A buffer of events between requests and a backend. It is bounded in events and in bytes: an
//! event that does not fit is lost, so that a backend that fails never delays a request.
//!
//! Events are encoded in groups, by the request that completes a group or a batch, or by the worker
//! that takes all events. Until then, they count with the maximum length of their encoded form.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::event::{Event, Format};
use crate::losses::Backend;

/// Maximum size of the events of a buffer in bytes. A batch that is being written is not counted.
pub(crate) const MAX_BUFFER_BYTES: usize = 8 << 20;
/// Maximum size in bytes of a batch for a webhook, unless its first event is larger.
pub(crate) const MAX_WEBHOOK_BATCH_BYTES: usize = 1 << 20;
/// Maximum size in bytes of a batch for the log, unless its first event is larger. The memory of a
/// batch should fit into the caches of the processor, and a batch should have many events, because
/// two threads wake up for each.
pub(crate) const MAX_LOG_BATCH_BYTES: usize = 512 << 10;

/// A group is encoded when it has this many events, or when their maximum lengths reach this many
/// bytes.
const MAX_GROUP_EVENTS: usize = 16;
const MAX_GROUP_BYTES: usize = 64 << 10;

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

/// Encoded events that are delivered together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) encoded: Encoded,
    /// Ends the wait of the requests, when the events are delivered or lost.
    pub(crate) done: Option<DropGuard>,
}

/// Encoded events, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    /// The end of each event.
    pub(crate) ends: Vec<usize>,
}

/// The event does not fit into the buffer.
#[derive(Debug)]
pub(crate) struct Full;

/// Whether requests wait for their events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Requests do not wait. A batch is ready when it is complete; at the end of the waiting time,
    /// all are taken.
    Never,
    /// Requests wait. A batch is ready when it has an event.
    UntilDelivered,
}

/// The batches that a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Those that are ready. Events of an incomplete batch wait for others, because two threads
    /// wake up for each batch.
    Ready,
    /// All events.
    All,
}

/// The buffer.
#[derive(Debug)]
pub(crate) struct Queue {
    params: BatchParams,
    format: Format,
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
    /// Events that are not yet encoded.
    group: Vec<Event>,
    /// The sum of their maximum lengths.
    group_bytes: usize,
    /// The number of all events.
    events: usize,
    /// The size of all batches.
    bytes: usize,
    /// The empty memory of a batch, for the next one.
    spare: Encoded,
}

impl Queue {
    /// Returns an empty buffer. Requests wait for a webhook in mode `blocking`.
    pub(crate) fn new(params: BatchParams, backend: Backend, waits: Waits) -> Self {
        let (format, max_batch_bytes) = match backend {
            Backend::Log => (Format::Line, MAX_LOG_BATCH_BYTES),
            Backend::Webhook => (Format::Item, MAX_WEBHOOK_BATCH_BYTES),
        };
        let (waiting, ready) = (Mutex::default(), Notify::new());
        Self { params, format, max_batch_bytes, waits, waiting, ready }
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
    pub(crate) fn push(&self, event: Event) -> Result<Option<CancellationToken>, Full> {
        let length = event.max_len();
        let mut waiting = self.lock();
        let bytes = waiting.bytes + waiting.group_bytes;
        if waiting.events >= self.params.buffer_size || bytes + length > MAX_BUFFER_BYTES {
            return Err(Full);
        }
        waiting.events += 1;
        waiting.group_bytes += length;
        waiting.group.push(event);
        let in_batch = waiting.batches.back().map_or(0, |last| last.encoded.ends.len());
        // Events after a complete batch begin another one.
        let in_batch = if in_batch < self.params.max_size { in_batch } else { 0 };
        let completes_batch = in_batch + waiting.group.len() >= self.params.max_size;
        let is_group_complete =
            waiting.group.len() >= MAX_GROUP_EVENTS || waiting.group_bytes >= MAX_GROUP_BYTES;
        if !is_group_complete && !completes_batch && !self.is_awaited() {
            return Ok(None);
        }
        self.encode(&mut waiting);
        let delivered = waiting.batches.back().and_then(|last| last.done.as_ref());
        let delivered = delivered.map(|done| done.token().clone());
        let is_ready = self.ready_batches(&waiting) > 0;
        drop(waiting);
        if is_ready {
            self.ready.notify_one();
        }
        Ok(delivered)
    }

    /// Returns the number of batches that are ready: all, except an incomplete last one if requests
    /// do not wait.
    fn ready_batches(&self, waiting: &Waiting) -> usize {
        let is_open = |batch: &Batch| !self.is_awaited() && batch.encoded.ends.len() < self.params.max_size;
        let batches = &waiting.batches;
        batches.len() - usize::from(batches.back().is_some_and(is_open))
    }

    /// Encodes the events that wait for it.
    fn encode(&self, waiting: &mut Waiting) {
        let Waiting { batches, group, group_bytes, bytes, spare, .. } = waiting;
        let batch = |encoded| {
            let done = self.is_awaited().then(|| CancellationToken::new().drop_guard());
            Batch { encoded, done }
        };
        for event in group.drain(..) {
            if batches.back().is_none_or(|last| last.encoded.ends.len() >= self.params.max_size) {
                batches.push_back(batch(std::mem::take(spare)));
            }
            let Some(Batch { encoded, .. }) = batches.back_mut() else { return };
            let start = encoded.bytes.len();
            event.write(self.format, &mut encoded.bytes);
            let end = encoded.bytes.len();
            *bytes += end - start;
            if start == 0 || end <= self.max_batch_bytes {
                encoded.ends.push(end);
                continue;
            }
            // The event begins the next batch.
            let mut next = std::mem::take(spare);
            next.bytes.extend(encoded.bytes.drain(start..));
            next.ends.push(next.bytes.len());
            // The limit of the buffer does not count capacity.
            encoded.bytes.shrink_to_fit();
            batches.push_back(batch(next));
        }
        *group_bytes = 0;
    }

    /// Returns the time at which all events are due that are pushed from now on.
    pub(crate) fn next_flush(&self) -> Instant {
        Instant::now() + self.params.max_wait
    }

    /// Waits until a batch is ready, or until `flush`, or until `stop` is cancelled, and returns
    /// the batches to take.
    pub(crate) async fn wait(&self, flush: Instant, stop: &CancellationToken) -> Due {
        tokio::select! {
            // The time comes first, so that batches which are always ready do not delay it.
            biased;
            () = stop.cancelled() => Due::All,
            () = tokio::time::sleep_until(flush) => Due::All,
            () = self.ready.notified() => Due::Ready,
        }
    }

    /// Returns the number of batches that are due now. Events that arrive later are not among them
    /// if all are due, so that a backend which is slower than they arrive gets complete batches.
    pub(crate) fn due(&self, due: Due) -> usize {
        let mut waiting = self.lock();
        match due {
            Due::Ready => self.ready_batches(&waiting),
            Due::All => {
                self.encode(&mut waiting);
                waiting.batches.len()
            }
        }
    }

    /// Returns the first batch.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut waiting = self.lock();
        let batch = waiting.batches.pop_front()?;
        waiting.events -= batch.encoded.ends.len();
        waiting.bytes -= batch.encoded.bytes.len();
        Some(batch)
    }

    /// Keeps the memory of a delivered batch for another one.
    pub(crate) fn recycle(&self, mut encoded: Encoded) {
        encoded.bytes.clear();
        encoded.ends.clear();
        let mut waiting = self.lock();
        // A buffer that grows by doubling has at most twice the capacity that it needs.
        if waiting.spare.bytes.capacity() == 0 && encoded.bytes.capacity() <= 2 * self.max_batch_bytes {
            waiting.spare = encoded;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::event::tests::event;

    fn queue(buffer_size: usize, max_size: usize) -> Queue {
        let max_wait = Duration::from_secs(30);
        Queue::new(BatchParams { buffer_size, max_size, max_wait }, Backend::Log, Waits::Never)
    }

    fn fits(queue: &Queue, audit_id: &str) -> bool {
        queue.push(event(audit_id)).is_ok()
    }

    /// Returns the first batch, also an incomplete one.
    fn take(queue: &Queue) -> Option<Batch> {
        queue.due(Due::All);
        queue.take()
    }

    /// Returns the audit IDs of a batch for the log.
    fn ids(encoded: &Encoded) -> Vec<String> {
        let starts = std::iter::once(0).chain(encoded.ends.iter().copied());
        let lines = starts.zip(&encoded.ends).map(|(start, end)| &encoded.bytes[start..*end]);
        lines
            .map(|line| serde_json::from_slice::<Value>(line).unwrap())
            .map(|event| event["auditID"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn events_leave_in_batches_in_their_order() {
        let queue = queue(10, 2);
        assert!(["a", "b", "c"].into_iter().all(|id| fits(&queue, id)));
        let first = take(&queue).unwrap();
        assert_eq!(ids(&first.encoded), ["a", "b"]);
        queue.recycle(first.encoded);
        assert_eq!(ids(&take(&queue).unwrap().encoded), ["c"]);
        assert!(take(&queue).is_none());
        assert!(fits(&queue, "d"));
        assert_eq!(ids(&take(&queue).unwrap().encoded), ["d"]);
    }

    #[test]
    fn the_buffer_is_bounded_in_events_and_in_bytes() {
        let queue = queue(3, 2);
        assert_eq!([(); 5].map(|()| fits(&queue, "x")), [true, true, true, false, false]);
        take(&queue).unwrap();
        assert_eq!([(); 3].map(|()| fits(&queue, "x")), [true, true, false]);

        let queue = super::tests::queue(usize::MAX, usize::MAX);
        let mut large = event("x");
        large.request_object = Some(vec![b'1'; MAX_LOG_BATCH_BYTES / 2].into());
        let pushed = (0..100).take_while(|_| queue.push(large.clone()).is_ok()).count();
        assert_eq!(pushed, MAX_BUFFER_BYTES / large.max_len());
        // Two of them are too large for a batch.
        let batches = std::iter::from_fn(|| take(&queue)).map(|batch| batch.encoded.ends.len());
        assert_eq!(batches.collect::<Vec<_>>(), vec![1; pushed]);
    }

    #[test]
    fn events_share_a_batch_until_their_real_length_exceeds_its_limit() {
        let queue = queue(1000, 1000);
        let mut large = event("x");
        large.request_object = Some(vec![b'1'; MAX_LOG_BATCH_BYTES / 4 - 1000].into());
        large.annotations = vec![("a", "1".repeat(1000).into())];
        assert!(5 * large.max_len() > MAX_LOG_BATCH_BYTES);
        assert!((0..5).all(|_| queue.push(large.clone()).is_ok()));
        let batches = std::iter::from_fn(|| take(&queue)).map(|batch| batch.encoded.ends.len());
        assert_eq!(batches.collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn an_event_that_begins_another_batch_leaves_no_capacity_in_the_previous_one() {
        let queue = queue(1000, 1000);
        for size in [1, MAX_LOG_BATCH_BYTES] {
            let request_object = Some(vec![b'1'; size].into());
            queue.push(Event { request_object, ..event("x") }).unwrap();
        }
        let first = take(&queue).unwrap().encoded;
        assert_eq!((first.ends.len(), first.bytes.capacity()), (1, first.bytes.len()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_the_batch_that_its_event_begins() {
        let params = BatchParams { buffer_size: 10, max_size: 10, max_wait: Duration::from_secs(30) };
        let queue = Queue::new(params, Backend::Webhook, Waits::UntilDelivered);
        let [first, second] = [(); 2].map(|()| {
            let request_object = Some(vec![b'1'; MAX_WEBHOOK_BATCH_BYTES / 2].into());
            queue.push(Event { request_object, ..event("x") }).unwrap().unwrap()
        });
        drop(take(&queue).unwrap());
        assert!(first.is_cancelled() && !second.is_cancelled());
        drop(take(&queue).unwrap());
        assert!(second.is_cancelled());
    }

    #[test]
    fn events_that_are_not_encoded_count_until_they_are_taken() {
        let queue = queue(MAX_GROUP_EVENTS / 2, 100);
        let pushed = (0..MAX_GROUP_EVENTS).filter(|_| fits(&queue, "x")).count();
        assert_eq!(pushed, MAX_GROUP_EVENTS / 2);
        assert_eq!(queue.lock().bytes, 0);
        assert_eq!(take(&queue).unwrap().encoded.ends.len(), pushed);
        let Waiting { events, bytes, group_bytes, .. } = &*queue.lock();
        assert_eq!((*events, *bytes, *group_bytes), (0, 0, 0));
    }

    #[test]
    fn the_memory_of_a_batch_is_used_again_and_that_of_a_larger_event_is_not() {
        let queue = queue(1000, 1000);
        assert!((0..1000).all(|_| fits(&queue, "x")));
        let full = take(&queue).unwrap();
        let length = full.encoded.bytes.len();
        queue.recycle(full.encoded);
        assert!(queue.lock().spare.bytes.capacity() >= length);
        queue.lock().spare = Encoded::default();
        let bytes = Vec::with_capacity(2 * MAX_LOG_BATCH_BYTES + 1);
        queue.recycle(Encoded { bytes, ends: Vec::new() });
        assert_eq!(queue.lock().spare.bytes.capacity(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_ready_when_it_is_complete() {
        let start = tokio::time::Instant::now();
        let stop = CancellationToken::new();
        for max_size in [1, MAX_GROUP_EVENTS - 1, MAX_GROUP_EVENTS, MAX_GROUP_EVENTS + 1] {
            let queue = queue(1000, max_size);
            assert!((0..max_size).all(|_| fits(&queue, "x")));
            queue.wait(queue.next_flush(), &stop).await;
            assert_eq!(start.elapsed(), Duration::ZERO);
        }
        let queue = queue(1000, 1000);
        let large =
            || Event { request_object: Some(vec![b'1'; MAX_LOG_BATCH_BYTES - 1].into()), ..event("x") };
        assert!((0..2).all(|_| queue.push(large()).is_ok()));
        queue.wait(queue.next_flush(), &stop).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_batch_waits() {
        let (queue, stop) = (queue(10, 2), CancellationToken::new());
        let start = tokio::time::Instant::now();
        assert!(fits(&queue, "a"));
        assert_eq!(queue.wait(queue.next_flush(), &stop).await, Due::All);
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        stop.cancel();
        assert_eq!(queue.wait(queue.next_flush(), &stop).await, Due::All);
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }

    #[test]
    fn batches_after_a_complete_one_are_ready_when_they_are_complete() {
        for max_size in [1, 2, MAX_GROUP_EVENTS - 1, MAX_GROUP_EVENTS, MAX_GROUP_EVENTS + 1] {
            let queue = queue(1000, max_size);
            for batches in 1..4 {
                assert!((0..max_size).all(|_| fits(&queue, "x")));
                assert_eq!(queue.due(Due::Ready), batches, "{max_size} events a batch");
            }
        }
    }

    #[test]
    fn events_that_arrive_while_all_are_delivered_wait_for_others() {
        let queue = queue(10, 2);
        assert!(["a", "b", "c"].into_iter().all(|id| fits(&queue, id)));
        assert_eq!(queue.due(Due::All), 2);
        assert_eq!(ids(&queue.take().unwrap().encoded), ["a", "b"]);
        assert_eq!(ids(&queue.take().unwrap().encoded), ["c"]);
        assert!(fits(&queue, "d"));
        assert_eq!(queue.due(Due::Ready), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_after_a_complete_batch_waits_for_others() {
        let (queue, stop) = (queue(10, 2), CancellationToken::new());
        let start = tokio::time::Instant::now();
        assert!(["a", "b", "c"].into_iter().all(|id| fits(&queue, id)));
        let mut taken = Vec::new();
        for _ in 0..2 {
            let due = queue.wait(queue.next_flush(), &stop).await;
            let batches = (0..queue.due(due)).map(|_| queue.take().unwrap());
            taken.extend(batches.map(|batch| (start.elapsed().as_secs(), ids(&batch.encoded).concat())));
        }
        assert_eq!(taken, [(0, "ab".to_owned()), (30, "c".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_delivery_does_not_extend_the_waiting_time() {
        let (queue, stop) = (queue(10, 2), CancellationToken::new());
        let flush = queue.next_flush();
        assert!(["a", "b", "c"].into_iter().all(|id| fits(&queue, id)));
        // A batch is ready, too, but the event after it has waited long enough.
        tokio::time::sleep(Duration::from_secs(40)).await;
        let start = tokio::time::Instant::now();
        assert_eq!((queue.wait(flush, &stop).await, start.elapsed()), (Due::All, Duration::ZERO));
        assert_eq!(queue.due(Due::All), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_until_their_batch_is_delivered_or_lost() {
        let params = BatchParams { buffer_size: 10, max_size: 2, max_wait: Duration::from_secs(30) };
        let (queue, stop) =
            (Queue::new(params, Backend::Webhook, Waits::UntilDelivered), CancellationToken::new());
        let start = tokio::time::Instant::now();
        let [one, two, three] = [(); 3].map(|()| queue.push(event("x")).unwrap().unwrap());
        queue.wait(queue.next_flush(), &stop).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let first = take(&queue).unwrap();
        assert!(!one.is_cancelled() && !two.is_cancelled());
        drop(first);
        assert!(one.is_cancelled() && two.is_cancelled() && !three.is_cancelled());
        drop(queue);
        assert!(three.is_cancelled());
    }
}
