//! The bytes of bodies that a connection holds: of requests that no upstream has taken yet, and of
//! responses that the client has not read yet.
//!
//! Flow control bounds these bytes for one stream or one connection, but not for all connections of
//! a program. Their limit is a quarter of the memory that open connections and the used part of the
//! budget of the [`Capacity`](crate::Capacity) leave free, with a minimum and a maximum. Above half
//! of the limit, connections are closed that have held bytes for longer than [`STALLED`] without
//! progress. At the limit, provisional connections are closed first, and then the others. In each
//! group, those that hold about the most bytes are closed first, and of these the ones with the
//! oldest bytes. Those with only incomplete requests are closed last.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use pinniped_http_core::MapData;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::capacity::ConnectionPermit;

/// Bytes that each connection may hold without being counted.
const FREE: usize = 8 << 10;

/// Memory of a connection that holds more, in bytes: full buffers of TLS, HTTP and an upstream.
/// Measured: 90 KiB for such a connection, 43 for an idle one.
const ACTIVE_BYTES: usize = 64 << 10;

/// Memory of a piece of a body in bytes, in addition to its data: the state of its stream, and the
/// frame.
const PIECE_BYTES: usize = 1 << 10;

/// Memory of a connection with requests whose bodies are not complete, in bytes, and of each of
/// them: buffers, and the connection to an upstream.
const UPLOADING_BYTES: usize = 24 << 10;
const UPLOAD_BYTES: usize = 8 << 10;

/// Memory of the HTTP/2 bodies of a connection that nothing has begun to read, in bytes: its
/// window.
const UNREAD_WINDOW: usize = 64 << 10;

/// Memory in bytes that may wait behind a piece that an HTTP/2 client does not accept: the window
/// of a stream to an upstream.
pub(crate) const WAITING_BYTES: usize = 64 << 10;

/// Number of pieces for which a connection without pieces keeps memory.
const KEPT_NUMBERS: usize = 64;

/// Maximum number of bytes that TLS keeps while the client does not read.
const TLS_BUFFER: usize = 64 << 10;

/// Time without progress after which a connection is stalled. A slow reader can need some seconds,
/// because a socket becomes writable only when a third of its send buffer is free.
const STALLED: Duration = Duration::from_secs(10);

/// The times at which there was too little memory, to tell the age of a piece from its number.
#[derive(Debug, Default)]
pub(crate) struct Overload {
    /// The last time, and the number of the next piece at that time. Replaced after [`STALLED`].
    last: Option<(Instant, u64)>,
    /// The number of the time before; `None` also if no more connections hold older pieces.
    previous: Option<u64>,
}

impl Overload {
    /// Records that there is too little memory while `next_piece` is the next number. Pieces with
    /// numbers below the returned one are older than [`STALLED`].
    pub(crate) fn stalled_before(&mut self, now: Instant, next_piece: u64) -> Option<u64> {
        match self.last {
            Some((time, _)) if now < time + STALLED => {}
            last => {
                self.previous = last.map(|(_, number)| number);
                self.last = Some((now, next_piece));
            }
        }
        self.previous
    }

    /// Records that no connection can be ended because of pieces that are older than [`STALLED`].
    pub(crate) fn none_is_stalled(&mut self) {
        self.previous = None;
    }
}

/// The pieces of bodies that a connection holds.
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    pieces: Mutex<Pieces>,
    /// The number of the next piece when the connection last made progress.
    progress: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// The numbers of the pieces in their order. The numbers are those of the program.
    numbers: VecDeque<u64>,
    bytes: usize,
    /// Number of requests whose bodies are not complete.
    uploads: usize,
    /// Number of HTTP/2 bodies that nothing has begun to read.
    unread: usize,
    /// The task that serves the connection, from its start to its end.
    task: Option<AbortHandle>,
    /// The task has ended or is about to end, and the bytes do not count any more.
    ended: bool,
}

impl Pieces {
    fn enter(&mut self, number: u64, bytes: usize) {
        // At the end, unless two threads add pieces at the same time.
        let index = self.numbers.partition_point(|other| *other < number);
        self.numbers.insert(index, number);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn leave(&mut self, number: u64, bytes: usize) {
        // Nearly always the first one.
        if let Ok(index) = self.numbers.binary_search(&number) {
            self.numbers.remove(index);
        }
        if self.numbers.is_empty() && self.numbers.capacity() > KEPT_NUMBERS {
            self.numbers = VecDeque::new();
        }
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the number of bytes that count.
    fn counted(&self) -> usize {
        let pieces = match self.bytes.saturating_sub(FREE) {
            0 => 0,
            more => more.saturating_add(ACTIVE_BYTES),
        };
        let uploading = if self.uploads > 0 { UPLOADING_BYTES } else { 0 };
        let unread = if self.unread > 0 { UNREAD_WINDOW } else { 0 };
        pieces.saturating_add(uploading + unread).saturating_add(self.uploads.saturating_mul(UPLOAD_BYTES))
    }
}

/// The bytes that a connection holds, and their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// The number of bytes that count.
    bytes: usize,
    /// The number of the oldest piece; `None` if there are only incomplete requests.
    oldest: Option<u64>,
    /// The number of the next piece when the connection last made progress.
    progress: u64,
}

impl Holding {
    /// Returns whether there are pieces, the oldest is older than this number, and there has been
    /// no progress since.
    pub(crate) fn is_stalled(&self, before: u64) -> bool {
        self.oldest.is_some_and(|oldest| oldest.max(self.progress) < before)
    }

    /// Returns the order in which connections are closed: those that hold about the most bytes
    /// first, of these the ones with the oldest bytes, and those without pieces last.
    pub(crate) fn order(&self) -> (bool, Reverse<u32>, u64) {
        let oldest = self.oldest.unwrap_or(self.progress);
        (self.oldest.is_none(), Reverse(self.bytes.max(1).ilog2()), oldest)
    }
}

impl InTransit {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        // No statement that changes the pieces can panic between two changes.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the pieces. Returns the numbers of bytes that count, before and after.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Pieces)) -> (usize, usize) {
        let mut pieces = self.pieces();
        if pieces.ended {
            return (0, 0);
        }
        let before = pieces.counted();
        change(&mut pieces);
        (before, pieces.counted())
    }

    /// Records that the client has read bytes, or that bytes of the client were taken.
    pub(crate) fn progressed(&self, next_piece: u64) {
        self.progress.store(next_piece, Ordering::Relaxed);
    }

    /// Records the task that serves the connection.
    pub(crate) fn runs_as(&self, task: AbortHandle) {
        let mut pieces = self.pieces();
        // The task may have ended already.
        if !pieces.ended {
            pieces.task = Some(task);
        }
    }

    /// Returns the bytes that the connection holds, if any count and the connection can be ended.
    pub(crate) fn holding(&self) -> Option<Holding> {
        let pieces = self.pieces();
        let bytes = pieces.counted();
        let progress = self.progress.load(Ordering::Relaxed);
        let holding = Holding { bytes, oldest: pieces.numbers.front().copied(), progress };
        (bytes > 0 && pieces.task.is_some()).then_some(holding)
    }

    /// Aborts the task of the connection, unless its oldest piece has changed. Returns the bytes
    /// that do not count any more.
    pub(crate) fn abort(&self, holding: Holding) -> Option<usize> {
        let mut pieces = self.pieces();
        if pieces.numbers.front() != holding.oldest.as_ref() {
            return None;
        }
        pieces.task.as_ref()?.abort();
        Some(pieces.end())
    }

    /// Records that the task of the connection has ended. Pieces that are left belong to an
    /// upgraded connection, which has a task and buffers of its own. Returns the bytes that do not
    /// count any more.
    pub(crate) fn ended(&self) -> usize {
        self.pieces().end()
    }
}

impl Pieces {
    /// Stops counting. Returns the number of bytes that counted.
    fn end(&mut self) -> usize {
        std::mem::replace(self, Self { ended: true, ..Self::default() }).counted()
    }
}

/// Bytes that a connection holds until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    permit: Arc<ConnectionPermit>,
    number: u64,
    bytes: usize,
}

impl Held {
    pub(crate) fn new(permit: &Arc<ConnectionPermit>, bytes: usize) -> Self {
        let number = permit.next_piece();
        permit.change_in_transit(|pieces| pieces.enter(number, bytes));
        Self { permit: Arc::clone(permit), number, bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.permit.change_in_transit(|pieces| pieces.leave(self.number, self.bytes));
    }
}

/// A piece of a body.
struct Piece {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Returns the same bytes. The connection holds them until all references to them are dropped.
pub(crate) fn hold(permit: &Arc<ConnectionPermit>, text: Bytes) -> Bytes {
    if text.is_empty() {
        return text;
    }
    let held = Held::new(permit, text.len().saturating_add(PIECE_BYTES));
    Bytes::from_owner(Piece { text, _held: held })
}

/// A request whose body is not complete, until it is dropped.
#[derive(Debug)]
pub(crate) struct Upload(Arc<ConnectionPermit>);

impl Upload {
    fn new(permit: &Arc<ConnectionPermit>) -> Self {
        permit.change_in_transit(|pieces| pieces.uploads += 1);
        Self(Arc::clone(permit))
    }

    /// Begins a request. Returns the function for the data of its body.
    pub(crate) fn map(permit: &Arc<ConnectionPermit>) -> MapData {
        let upload = Self::new(permit);
        Box::new(move |text| upload.hold(text))
    }

    /// Returns the same bytes, which were taken just now; see [`hold`].
    fn hold(&self, text: Bytes) -> Bytes {
        self.0.progressed();
        hold(&self.0, text)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.change_in_transit(|pieces| pieces.uploads = pieces.uploads.saturating_sub(1));
    }
}

/// An HTTP/2 body that nothing has begun to read, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnreadBody(Arc<ConnectionPermit>);

impl UnreadBody {
    pub(crate) fn new(permit: &Arc<ConnectionPermit>) -> Self {
        permit.change_in_transit(|pieces| pieces.unread += 1);
        Self(Arc::clone(permit))
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.0.change_in_transit(|pieces| pieces.unread = pieces.unread.saturating_sub(1));
    }
}

/// A socket that records the progress of its client, and the bytes that TLS keeps for it.
#[derive(Debug)]
pub(crate) struct RecordedWrites<T> {
    io: T,
    permit: Arc<ConnectionPermit>,
    /// Bytes that were written since the last complete flush.
    unflushed: usize,
    /// The memory of `unflushed`, since the client has not read.
    blocked: Option<Held>,
}

impl<T> RecordedWrites<T> {
    pub(crate) fn new(io: T, permit: Arc<ConnectionPermit>) -> Self {
        Self { io, permit, unflushed: 0, blocked: None }
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(count)) => {
                self.unflushed = self.unflushed.saturating_add(*count);
                self.progressed();
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.is_blocked(),
        }
    }

    fn progressed(&mut self) {
        self.blocked = None;
        self.permit.progressed();
    }

    fn is_blocked(&mut self) {
        if self.blocked.is_none() && self.unflushed > 0 {
            self.blocked = Some(Held::new(&self.permit, self.unflushed.min(TLS_BUFFER)));
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for RecordedWrites<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for RecordedWrites<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_pending() {
            self.is_blocked();
        } else if self.unflushed > 0 {
            self.unflushed = 0;
            self.progressed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::capacity::{Capacity, CapacityParams};

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const MIB: usize = 1 << 20;

    /// Returns a capacity with some 40 MiB of memory, of which the budget has 8.
    fn capacity() -> Capacity {
        let capacity = Capacity::new(&CapacityParams {
            connections: 100,
            connections_per_address: None,
            memory: Some(104 << 20),
            files: None,
            files_per_connection: 1,
        });
        assert_eq!(capacity.stats().budget_limit, 8 << 20);
        capacity
    }

    fn connection(capacity: &Capacity) -> (Arc<ConnectionPermit>, JoinHandle<()>) {
        let permit = capacity.connect(CLIENT).unwrap();
        let task = tokio::spawn(std::future::pending());
        permit.runs_as(task.abort_handle());
        permit.confirm();
        (permit, task)
    }

    async fn is_ended(task: &mut JoinHandle<()>) -> bool {
        tokio::time::timeout(Duration::from_millis(1), task).await.is_ok()
    }

    /// Holds a piece with this number of halves of a MiB.
    fn held(permit: &Arc<ConnectionPermit>, halves: usize) -> Bytes {
        hold(permit, Bytes::from(vec![0; halves * MIB / 2]))
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_count_until_their_last_reference_is_dropped() {
        let capacity = capacity();
        let (permit, _task) = connection(&capacity);
        let counted = (MIB + PIECE_BYTES - FREE + ACTIVE_BYTES) as u64;
        let held = held(&permit, 2);
        assert_eq!(capacity.stats().in_transit, counted);
        let rest = held.slice(MIB - 1..);
        drop(held);
        assert_eq!(capacity.stats().in_transit, counted);
        assert_eq!(&rest[..], [0]);
        drop(rest);
        assert_eq!(capacity.stats().in_transit, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_small_responses_of_one_connection_do_not_count() {
        let capacity = capacity();
        let (permit, _task) = connection(&capacity);
        let _held = [0; 7].map(|_| hold(&permit, Bytes::from_static(b"{}")));
        assert_eq!(capacity.stats().in_transit, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_connections_are_closed_when_half_of_the_limit_is_used() {
        let capacity = capacity();
        let mut stalled = connection(&capacity);
        let mut reads = connection(&capacity);
        let unread = held(&stalled.0, 1);
        let slow = held(&reads.0, 1);
        let all_read = held(&reads.0, 10);
        assert!(!is_ended(&mut stalled.1).await, "the client may still read");
        drop(all_read);
        tokio::time::advance(STALLED).await;
        reads.0.progressed();
        let large = held(&reads.0, 6);
        assert!(!is_ended(&mut stalled.1).await, "there is enough memory");
        let larger = held(&reads.0, 3);
        assert!(is_ended(&mut stalled.1).await);
        assert!(!is_ended(&mut reads.1).await, "its client reads, although a piece is as old");
        assert_eq!(capacity.stats().connections_evicted, 1);
        let held = capacity.stats().in_transit;
        drop(unread);
        assert_eq!(capacity.stats().in_transit, held, "the bytes of an ended connection are gone");
        drop((slow, large, larger));
        assert_eq!(capacity.stats().in_transit, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_limit_the_connection_that_holds_the_most_is_closed_or_the_oldest_of_these() {
        let capacity = capacity();
        let mut small = connection(&capacity);
        let mut old = connection(&capacity);
        let mut new = connection(&capacity);
        let _oldest = held(&small.0, 1);
        let _old = held(&old.0, 9);
        let _new = held(&new.0, 9);
        assert!(!is_ended(&mut old.1).await);
        old.0.progressed();
        let _last = held(&small.0, 1);
        assert!(is_ended(&mut old.1).await, "that it reads other responses changes nothing");
        assert!(!is_ended(&mut new.1).await);
        assert!(!is_ended(&mut small.1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgraded_connection_does_not_count() {
        let capacity = capacity();
        let mut honest = connection(&capacity);
        let upgraded = connection(&capacity);
        let _kept = held(&upgraded.0, 30);
        upgraded.0.ended();
        let _response = held(&honest.0, 1);
        assert!(!is_ended(&mut honest.1).await);
        assert!(capacity.stats().in_transit < MIB as u64);
        let _more = held(&upgraded.0, 30);
        assert!(capacity.stats().in_transit < MIB as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn unread_bodies_of_a_connection_count_once() {
        let capacity = capacity();
        let (permit, _task) = connection(&capacity);
        let unread = [0; 3].map(|_| UnreadBody::new(&permit));
        assert_eq!(capacity.stats().in_transit, UNREAD_WINDOW as u64);
        drop(unread);
        assert_eq!(capacity.stats().in_transit, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn provisional_connections_are_closed_first() {
        let capacity = capacity();
        let mut known = connection(&capacity);
        let unknown = capacity.connect(CLIENT).unwrap();
        let mut task = tokio::spawn(std::future::pending());
        unknown.runs_as(task.abort_handle());
        let _older = held(&known.0, 18);
        let _newer = held(&unknown, 3);
        assert!(is_ended(&mut task).await);
        assert!(!is_ended(&mut known.1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_upload_counts_but_is_not_stalled() {
        let capacity = capacity();
        let mut idle = connection(&capacity);
        let mut stalled = connection(&capacity);
        let upload = Upload::new(&idle.0);
        assert_eq!(capacity.stats().in_transit, (UPLOADING_BYTES + UPLOAD_BYTES) as u64);
        let other_uploads = [0; 3].map(|_| Upload::new(&idle.0));
        assert_eq!(capacity.stats().in_transit, (UPLOADING_BYTES + 4 * UPLOAD_BYTES) as u64);
        drop(other_uploads);
        let _unread = held(&stalled.0, 1);
        let other = connection(&capacity);
        drop(held(&other.0, 10));
        tokio::time::advance(STALLED).await;
        let _large = held(&other.0, 10);
        assert!(is_ended(&mut stalled.1).await);
        assert!(!is_ended(&mut idle.1).await);
        drop(upload);
        let _unread = held(&idle.0, 1);
        let upload = Upload::new(&other.0);
        drop(upload.hold(Bytes::from_static(b"x")));
        drop(upload);
        assert!(!is_ended(&mut idle.1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_and_heads_of_requests_take_the_memory_of_stalled_bytes() {
        for takes_connections in [true, false] {
            let capacity = capacity();
            let mut stalled = connection(&capacity);
            let other = connection(&capacity);
            let _unread = held(&stalled.0, 9);
            let use_memory = || {
                if takes_connections {
                    return drop(
                        std::iter::repeat_with(|| connection(&capacity)).take(70).collect::<Vec<_>>(),
                    );
                }
                other.0.charge(6 * MIB).expect("bytes in transit do not limit other charges");
                other.0.release(6 * MIB);
            };
            use_memory();
            assert!(!is_ended(&mut stalled.1).await);
            tokio::time::advance(STALLED).await;
            use_memory();
            assert!(is_ended(&mut stalled.1).await, "{takes_connections}");
            assert_eq!(capacity.stats().in_transit, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_with_almost_no_memory_still_sends_large_responses() {
        let memory = Some(8 << 20);
        let capacity = Capacity::new(&CapacityParams {
            connections: 100,
            connections_per_address: None,
            memory,
            files: None,
            files_per_connection: 1,
        });
        let (permit, mut task) = connection(&capacity);
        let _large = held(&permit, 1);
        assert!(!is_ended(&mut task).await);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_tls_keeps_are_as_old_as_the_last_progress() {
        let capacity = capacity();
        let (permit, _task) = connection(&capacity);
        let (near, mut far) = tokio::io::duplex(1000);
        let mut socket = RecordedWrites::new(tokio::io::BufWriter::with_capacity(64 << 10, near), permit);
        socket.write_all(&[0; 20_000]).await.unwrap();
        assert!(socket.flush().now_or_never().is_none());
        let before = socket.permit.holding().unwrap();
        assert_eq!(capacity.stats().in_transit, (20_000 - FREE + ACTIVE_BYTES) as u64);
        far.read_exact(&mut [0; 500]).await.unwrap();
        socket.write_all(b"x").await.unwrap();
        assert!(socket.flush().now_or_never().is_none());
        let after = socket.permit.holding().unwrap();
        assert!(after.oldest > before.oldest && after.progress > before.progress, "{before:?}, {after:?}");
        let flush = async { socket.flush().await.unwrap() };
        let mut rest = vec![0; 19_501];
        tokio::join!(flush, async { far.read_exact(&mut rest).await.unwrap() });
        assert_eq!(capacity.stats().in_transit, 0);
    }
}
