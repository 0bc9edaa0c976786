//! The activity of a connection, for the timeouts that hyper does not have.
//!
//! hyper has one timer, for the headers of HTTP/1.1 requests, and it also runs between two
//! requests; for HTTP/2 it has none. Clients of servers written in Go rely on three rules: a time
//! limit for headers, a time limit without any request, and no time limit while a request runs. The
//! service counts requests when they arrive and when their bodies are finished, the socket records
//! when the first byte of the next request arrives, and [`Activity::next_step`] decides what to do
//! with the connection.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pinniped_http_core::{Body, BoxError, delivery};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::capacity::{ConnectionPermit, Refusal};
use crate::in_transit::{self, Held};
use crate::limits::ResetLimits;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the first request and for each request that has begun to arrive; `None` for HTTP/2,
    /// whose requests do not arrive one after the other.
    pub(crate) header: Option<Duration>,
    /// For a connection without any request.
    pub(crate) idle: Duration,
}

/// The action that a connection needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Check again at this time.
    CheckAgain(Instant),
    /// The connection was unused for too long: close it gracefully.
    Idle,
    /// The client does not finish its headers in time: drop the connection.
    HeaderTimeout,
}

/// The state that a connection's socket, service and bodies share. Times are milliseconds since
/// `began`.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    running: AtomicU32,
    served: AtomicBool,
    idle_since: AtomicU64,
    /// The time at which the first byte of the next request was read, plus one; 0 means not yet.
    head_since: AtomicU64,
    /// Counts the requests that the client cancelled.
    pub(crate) resets: Resets,
    /// The permit that memory is charged to.
    pub(crate) permit: Arc<ConnectionPermit>,
    /// Bytes of request headers that arrived since the last request.
    head_bytes: AtomicUsize,
    /// The part of `head_bytes` that is charged to the permit.
    head_charged: AtomicUsize,
}

/// The rate at which a client cancels requests, as a leaky bucket.
#[derive(Debug)]
pub(crate) struct Resets {
    limits: ResetLimits,
    /// The moment, in microseconds since the connection began, at which the bucket is empty.
    empty_at: AtomicU64,
    too_many: AtomicBool,
}

impl Resets {
    fn new(limits: ResetLimits) -> Self {
        Self { limits, empty_at: AtomicU64::new(0), too_many: AtomicBool::new(false) }
    }

    /// Counts one cancelled request. `now` is in microseconds since the connection began.
    fn count(&self, now: u64) {
        let each = 1_000_000 / u64::from(self.limits.per_second.max(1));
        let add = |empty_at: u64| Some(empty_at.max(now).saturating_add(each));
        let before = self.empty_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let level = before.unwrap_or_else(|unchanged| unchanged).saturating_sub(now) / each;
        if level >= u64::from(self.limits.burst) {
            self.too_many.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the limit was ever exceeded.
    pub(crate) fn are_too_many(&self) -> bool {
        self.too_many.load(Ordering::Relaxed)
    }
}

/// Memory of a running request in bytes: its tasks, its stream and its response.
const REQUEST_BYTES: usize = 8 << 10;
/// Memory of one field in a header map in bytes, in addition to its text.
const FIELD_BYTES: usize = 128;

impl Activity {
    pub(crate) fn new(permit: Arc<ConnectionPermit>, resets: ResetLimits) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            running: AtomicU32::new(0),
            served: AtomicBool::new(false),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            resets: Resets::new(resets),
            permit,
            head_bytes: AtomicUsize::new(0),
            head_charged: AtomicUsize::new(0),
        })
    }

    /// Records that a request's headers are complete, in a map with capacity for `fields`. The
    /// returned guard must live as long as the response.
    pub(crate) fn request(self: &Arc<Self>, fields: usize) -> Result<Running, Refusal> {
        self.running.fetch_add(1, Ordering::AcqRel);
        self.served.store(true, Ordering::Release);
        self.head_since.store(0, Ordering::Release);
        let mut running = Running { activity: Arc::clone(self), charged: 0 };
        let head = self.head_bytes.swap(0, Ordering::AcqRel);
        self.permit.release(self.head_charged.swap(0, Ordering::AcqRel));
        // Twice: the bytes as received and the decoded text.
        let bytes = REQUEST_BYTES + fields.saturating_mul(FIELD_BYTES) + head.saturating_mul(2);
        self.permit.charge(bytes)?;
        running.charged = bytes;
        Ok(running)
    }

    /// Records bytes that may begin the next request, for a protocol without frames.
    fn bytes_arrived(&self, count: usize) -> Result<(), Refusal> {
        if self.running.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        if self.head_since.load(Ordering::Acquire) == 0 {
            self.head_since.store(self.elapsed() + 1, Ordering::Release);
        }
        self.head_arrived(count);
        self.permit.charge(count)?;
        self.head_charged.fetch_add(count, Ordering::AcqRel);
        Ok(())
    }

    /// Records bytes of request headers.
    pub(crate) fn head_arrived(&self, count: usize) {
        self.head_bytes.fetch_add(count, Ordering::AcqRel);
    }

    pub(crate) fn next_step(&self, now: Instant, timeouts: Timeouts) -> NextStep {
        let recheck = timeouts.header.unwrap_or(timeouts.idle).min(timeouts.idle);
        if self.running.load(Ordering::Acquire) > 0 {
            return NextStep::CheckAgain(now + recheck);
        }
        let idle_end = self.at(self.idle_since.load(Ordering::Acquire)) + timeouts.idle;
        let head_end = timeouts.header.and_then(|header| {
            if !self.served.load(Ordering::Acquire) {
                return Some(self.began + header);
            }
            let since = self.head_since.load(Ordering::Acquire).checked_sub(1)?;
            Some(self.at(since) + header)
        });
        match head_end {
            Some(end) if end <= now => NextStep::HeaderTimeout,
            Some(end) => NextStep::CheckAgain(end),
            None if idle_end <= now => NextStep::Idle,
            // Headers may begin before the idle time is over, and their deadline may then be
            // earlier.
            None => NextStep::CheckAgain(idle_end.min(now + recheck)),
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.began + Duration::from_millis(millis)
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

/// A guard that counts a request as running until it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    activity: Arc<Activity>,
    /// Bytes that are charged for the request.
    charged: usize,
}

impl Running {
    /// Creates the guard of a request that was refused. Nothing is charged for it.
    pub(crate) fn refused(activity: &Arc<Activity>) -> Self {
        activity.running.fetch_add(1, Ordering::AcqRel);
        Self { activity: Arc::clone(activity), charged: 0 }
    }

    /// Records that the response has begun. The charge of a confirmed client is released, because
    /// its response may take long and costs little. A client that is not confirmed stays charged,
    /// because it may leave the response unread.
    pub(crate) fn begins_response(&mut self) {
        if self.activity.permit.is_confirmed() {
            self.activity.permit.release(std::mem::take(&mut self.charged));
        }
    }

    /// Holds bytes that are in transit to the client.
    pub(crate) fn hold(&self, bytes: usize) -> Held {
        Held::new(&self.activity.permit, bytes)
    }

    /// Records that the client cancelled the request.
    pub(crate) fn reset(&self) {
        let now = u64::try_from(self.activity.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.activity.resets.count(now);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.activity.permit.release(self.charged);
        self.activity.idle_since.store(self.activity.elapsed(), Ordering::Release);
        self.activity.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A response body that counts its request as running.
#[derive(Debug)]
pub(crate) struct CountedBody {
    inner: Body,
    running: Running,
}

impl CountedBody {
    pub(crate) fn new(inner: Body, running: Running) -> Self {
        Self { inner, running }
    }

    /// Returns the guard of the request that this body belongs to.
    pub(crate) fn running(&self) -> &Running {
        &self.running
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        delivery::clear_deadline();
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let permit = &self.running.activity.permit;
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|text| in_transit::hold(permit, text)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Receives the socket of a [`RecordedSocket`] when hyper drops it.
#[derive(Debug)]
pub(crate) struct SocketReturn<T>(Mutex<Option<T>>);

impl<T> SocketReturn<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A socket that records incoming bytes and hands its inner socket back when hyper drops it.
#[derive(Debug)]
pub(crate) struct RecordedSocket<T> {
    inner: Option<T>,
    activity: Arc<Activity>,
    /// Weak, because an upgraded socket outlives its connection; it is not handed back then.
    back_to: Weak<SocketReturn<T>>,
    /// Whether bytes between two requests are request headers. For HTTP/2, [`crate::read_limit`]
    /// counts them instead, from the frames.
    has_heads: bool,
}

impl<T> RecordedSocket<T> {
    pub(crate) fn new(
        inner: T,
        activity: Arc<Activity>,
        back_to: &Arc<SocketReturn<T>>,
        has_heads: bool,
    ) -> Self {
        Self { inner: Some(inner), activity, back_to: Arc::downgrade(back_to), has_heads }
    }
}

/// Bytes of an HTTP/1.1 body that are read at once. The buffer for them grows with the size of the
/// reads, and belongs to the connection while no upstream takes the body.
const BODY_PIECE: usize = 16 << 10;

impl<T: Unpin> RecordedSocket<T> {
    fn socket(&mut self) -> Pin<&mut T> {
        Pin::new(self.inner.as_mut().expect("taken only in drop"))
    }
}

impl<T> Drop for RecordedSocket<T> {
    fn drop(&mut self) {
        if let (Some(socket), Some(back_to)) = (self.inner.take(), self.back_to.upgrade()) {
            *back_to.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for RecordedSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let is_body = self.has_heads && self.activity.running.load(Ordering::Acquire) > 0;
        let result = if is_body && buf.remaining() > BODY_PIECE && self.back_to.strong_count() > 0 {
            let mut piece = ReadBuf::new(buf.initialize_unfilled_to(BODY_PIECE));
            let result = self.socket().poll_read(cx, &mut piece);
            let count = piece.filled().len();
            buf.advance(count);
            result
        } else {
            self.socket().poll_read(cx, buf)
        };
        let count = buf.filled().len() - before;
        // Bytes after an upgrade are not request headers.
        if self.has_heads && count > 0 && self.back_to.strong_count() > 0 {
            self.activity.bytes_arrived(count).map_err(io::Error::other)?;
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for RecordedSocket<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.socket().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket().poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H1: Timeouts = Timeouts { header: Some(Duration::from_secs(32)), idle: Duration::from_secs(90) };
    const H2: Timeouts = Timeouts { header: None, idle: Duration::from_secs(90) };

    fn permit() -> Arc<ConnectionPermit> {
        crate::capacity::Capacity::default().connect([127, 0, 0, 1].into()).unwrap()
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_request_must_arrive_within_the_header_timeout() {
        let activity = Activity::new(permit(), ResetLimits::default());
        let start = Instant::now();
        assert_eq!(activity.next_step(start, H1), NextStep::CheckAgain(start + secs(32)));
        assert_eq!(activity.next_step(start + secs(32), H1), NextStep::HeaderTimeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_request_has_no_timeout() {
        let activity = Activity::new(permit(), ResetLimits::default());
        let start = Instant::now();
        let _running = activity.request(0).unwrap();
        assert_eq!(activity.next_step(start + secs(1000), H1), NextStep::CheckAgain(start + secs(1032)));
        assert_eq!(activity.next_step(start + secs(1000), H2), NextStep::CheckAgain(start + secs(1090)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_timeout_applies_between_requests_until_a_byte_arrives() {
        let activity = Activity::new(permit(), ResetLimits::default());
        drop(activity.request(0).unwrap());
        let start = Instant::now();
        assert_eq!(activity.next_step(start, H1), NextStep::CheckAgain(start + secs(32)));
        assert_eq!(activity.next_step(start + secs(64), H1), NextStep::CheckAgain(start + secs(90)));
        assert_eq!(activity.next_step(start + secs(90), H1), NextStep::Idle);
        tokio::time::advance(secs(80)).await;
        activity.bytes_arrived(1).unwrap();
        assert_eq!(activity.next_step(start + secs(90), H1), NextStep::CheckAgain(start + secs(112)));
        assert_eq!(activity.next_step(start + secs(112), H1), NextStep::HeaderTimeout);
    }

    #[tokio::test(start_paused = true)]
    async fn an_http2_connection_without_requests_is_idle_from_its_start() {
        let activity = Activity::new(permit(), ResetLimits::default());
        let start = Instant::now();
        assert_eq!(activity.next_step(start, H2), NextStep::CheckAgain(start + secs(90)));
        assert_eq!(activity.next_step(start + secs(90), H2), NextStep::Idle);
    }

    #[test]
    fn resets_exceed_the_limit_when_they_are_faster_than_the_bucket_leaks() {
        let limits = ResetLimits { burst: 10, per_second: 100 };
        let steady = Resets::new(limits);
        for turn in 0..10_000 {
            steady.count(turn * 10_000);
        }
        assert!(!steady.are_too_many());
        let crowd = Resets::new(limits);
        for _ in 0..10 {
            crowd.count(5);
        }
        assert!(!crowd.are_too_many());
        crowd.count(5);
        assert!(crowd.are_too_many());
        let fast = Resets::new(limits);
        let turns = (0..1000).take_while(|turn| {
            fast.count(turn * 5_000);
            !fast.are_too_many()
        });
        assert_eq!(turns.count(), 20);
    }
}
