//! Limits the memory that an HTTP/2 client uses before the service reads its data.
//!
//! The `h2` crate decodes every frame that it can read, and reads as long as there is input. The
//! memory that it holds is not visible from outside, but the frames are (RFC 9113, section 4.1),
//! and reading can be paused. Therefore this socket
//!
//! - lets a connection read a limited amount and then yields, so that request headers cannot pile
//!   up before the service gets them,
//! - charges the [capacity](crate::capacity) for unfinished frames and for header blocks that
//!   continue in another frame,
//! - while a connection is provisional, charges it for unread bodies and for trailers, and does not
//!   read while the client does not read its responses.
//!
//! A charge that is refused closes the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::activity::Activity;

/// Bytes that a connection may read before its task yields. Small while the connection is
/// provisional, so that only a few requests are decoded before they are charged.
const PROVISIONAL_PIECE: usize = 4 << 10;
const PIECE: usize = 64 << 10;

/// Memory of the responses that wait for a client that does not read, including 64 KiB in TLS, in
/// bytes.
const UNREAD_RESPONSES: usize = 1 << 20;
/// Memory of a window full of DATA frames, in bytes. The `h2` crate limits the number of small
/// ones.
const UNREAD_BODIES: usize = 128 << 10;
/// Bytes of bodies that a provisional connection may send without a charge: enough for a login.
const FREE_BODY: u64 = 8 << 10;
/// Ratio of the memory of a decoded header list to its size: a field of 33 bytes, as counted by RFC
/// 9113, takes 128 bytes in a map whose capacity doubles.
const DECODED: usize = 6;
/// Maximum memory of a header map, in bytes.
const MOST_DECODED: usize = 4 << 20;

/// Bytes that a connection may still read in this poll of its task.
#[derive(Debug, Default)]
pub(crate) struct ReadAllowance(AtomicUsize);

impl ReadAllowance {
    /// Resets the amount at the start of a poll of the connection's task.
    pub(crate) fn reset(&self, activity: &Activity) {
        let piece = if activity.permit.is_confirmed() { PIECE } else { PROVISIONAL_PIECE };
        self.0.store(piece, Ordering::Relaxed);
    }
}

/// A socket that limits and charges what an HTTP/2 connection reads; see the [module](self).
#[derive(Debug)]
pub(crate) struct LimitedReads<T> {
    io: T,
    activity: Arc<Activity>,
    allowance: Arc<ReadAllowance>,
    frames: Frames,
    /// Maximum memory of one header list, in bytes.
    header_list: usize,
    /// Bytes that are charged.
    charged: usize,
    /// The last write is pending, because the client does not read.
    blocked: bool,
    /// A read was postponed because the connection is blocked.
    postponed: bool,
}

impl<T> LimitedReads<T> {
    pub(crate) fn new(
        io: T,
        activity: Arc<Activity>,
        allowance: Arc<ReadAllowance>,
        header_bytes: usize,
    ) -> Self {
        let header_list = header_bytes.saturating_mul(DECODED).min(MOST_DECODED);
        let frames = Frames::default();
        Self { io, activity, allowance, frames, header_list, charged: 0, blocked: false, postponed: false }
    }

    /// Adjusts the charge to the memory that the connection holds now.
    fn settle(&mut self) -> io::Result<()> {
        let mut holds = self.frames.unfinished();
        if self.frames.block_open {
            holds += self.header_list;
        }
        if !self.activity.permit.is_confirmed() {
            holds += self.frames.trailers * self.header_list;
            if self.frames.data > FREE_BODY {
                holds += UNREAD_BODIES;
            }
            if self.blocked {
                holds += UNREAD_RESPONSES;
            }
        }
        if holds > self.charged {
            self.activity.permit.charge(holds - self.charged).map_err(io::Error::other)?;
        } else {
            self.activity.permit.release(self.charged - holds);
        }
        self.charged = holds;
        Ok(())
    }

    /// Records whether a write is pending.
    fn wrote<R>(&mut self, written: &Poll<io::Result<R>>, cx: &Context<'_>) -> io::Result<()> {
        let blocked = written.is_pending();
        if blocked == self.blocked {
            return Ok(());
        }
        self.blocked = blocked;
        if !blocked && std::mem::take(&mut self.postponed) {
            cx.waker().wake_by_ref();
        }
        self.settle()
    }
}

impl<T> Drop for LimitedReads<T> {
    fn drop(&mut self) {
        self.activity.permit.release(self.charged);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LimitedReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.blocked && !this.activity.permit.is_confirmed() {
            // The pending write wakes the task.
            this.postponed = true;
            return Poll::Pending;
        }
        let left = this.allowance.0.load(Ordering::Relaxed);
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        this.allowance.0.store(left.saturating_sub(read.len()), Ordering::Relaxed);
        this.activity.head_arrived(this.frames.read(read));
        Poll::Ready(this.settle())
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LimitedReads<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(&written, cx)?;
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(&written, cx)?;
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.wrote(&flushed, cx)?;
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Length of the connection preface of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The parts of a connection's frames that determine its memory.
#[derive(Debug)]
struct Frames {
    preface: usize,
    head: [u8; 9],
    /// Bytes of the current frame head that are read.
    known: usize,
    /// Length of the current frame's payload, once the head is complete.
    size: usize,
    left: usize,
    /// A header block continues in another frame.
    block_open: bool,
    /// The highest identifier of a stream that the client opened.
    highest: u32,
    /// Number of header blocks of streams that already had one.
    trailers: usize,
    /// Payload bytes of DATA frames.
    data: u64,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            preface: PREFACE,
            head: [0; 9],
            known: 0,
            size: 0,
            left: 0,
            block_open: false,
            highest: 0,
            trailers: 0,
            data: 0,
        }
    }
}

impl Frames {
    /// Parses the next bytes. Returns how many of them belong to header blocks.
    fn read(&mut self, mut bytes: &[u8]) -> usize {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        let mut heads = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let part = self.left.min(bytes.len());
                if matches!(self.head[3], HEADERS | CONTINUATION) {
                    heads += part;
                }
                self.left -= part;
                bytes = &bytes[part..];
                continue;
            }
            let part = (self.head.len() - self.known).min(bytes.len());
            self.head[self.known..self.known + part].copy_from_slice(&bytes[..part]);
            self.known += part;
            bytes = &bytes[part..];
            if self.known == self.head.len() {
                self.begin();
            }
        }
        heads
    }

    /// Handles a complete frame head.
    fn begin(&mut self) {
        self.known = 0;
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        self.size = u32::from_be_bytes([0, a, b, c]) as usize;
        self.left = self.size;
        match kind {
            DATA => self.data = self.data.saturating_add(self.size as u64),
            HEADERS | CONTINUATION => {
                self.block_open = flags & END_HEADERS == 0;
                let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                if kind == HEADERS && stream <= self.highest {
                    self.trailers = self.trailers.saturating_add(1);
                }
                self.highest = self.highest.max(stream);
            }
            _ => {}
        }
    }

    /// Returns the bytes of the current frame that are read, while it is incomplete.
    fn unfinished(&self) -> usize {
        if self.left == 0 { 0 } else { self.size - self.left }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::{Wake, Waker};

    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::capacity::{Capacity, FREE_BYTES};
    use crate::limits::ResetLimits;

    fn frame(kind: u8, flags: u8, stream: u32, payload: usize) -> Vec<u8> {
        let size = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![size[1], size[2], size[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.resize(frame.len() + payload, b'x');
        frame
    }

    fn opening() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, 18));
        bytes
    }

    #[test]
    fn frames_are_parsed_independently_of_how_the_bytes_are_split() {
        let mut bytes = opening();
        bytes.extend(frame(HEADERS, END_HEADERS, 1, 100));
        bytes.extend(frame(DATA, 0, 1, 5000));
        bytes.extend(frame(HEADERS, 0, 3, 16_384));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 3, 7));
        bytes.extend(frame(HEADERS, END_HEADERS, 1, 9));
        bytes.extend(frame(DATA, 0, 3, 0));
        for piece in [1, 2, 9, 10, 1000, bytes.len()] {
            let mut frames = Frames::default();
            let heads: usize = bytes.chunks(piece).map(|piece| frames.read(piece)).sum();
            assert_eq!(heads, 100 + 16_384 + 7 + 9, "pieces of {piece}");
            assert_eq!((frames.data, frames.trailers, frames.highest), (5000, 1, 3));
            assert_eq!((frames.unfinished(), frames.block_open), (0, false));
        }
    }

    #[test]
    fn an_unfinished_frame_and_an_open_block_are_counted() {
        let mut frames = Frames::default();
        frames.read(&opening());
        let head = frame(HEADERS, 0, 1, 1000);
        frames.read(&head[..509]);
        assert_eq!((frames.unfinished(), frames.block_open), (500, true));
        frames.read(&head[509..]);
        assert_eq!((frames.unfinished(), frames.block_open), (0, true));
        frames.read(&frame(CONTINUATION, END_HEADERS, 1, 0));
        assert!(!frames.block_open);
    }

    const HEADER_BYTES: usize = 64 << 10;

    /// A connection, provisional at first, and its client.
    struct World {
        limited: LimitedReads<DuplexStream>,
        client: DuplexStream,
        activity: Arc<Activity>,
        allowance: Arc<ReadAllowance>,
        capacity: Capacity,
    }

    impl World {
        /// Creates a connection on which each direction buffers `carries` unread bytes.
        fn new(carries: usize) -> Self {
            let capacity = Capacity::default();
            let permit = capacity.connect([127, 0, 0, 1].into()).unwrap();
            let (activity, allowance) =
                (Activity::new(permit, ResetLimits::default()), Arc::new(ReadAllowance::default()));
            let (server, client) = tokio::io::duplex(carries);
            let limited =
                LimitedReads::new(server, Arc::clone(&activity), Arc::clone(&allowance), HEADER_BYTES);
            Self { limited, client, activity, allowance, capacity }
        }

        /// Sends bytes from the client and polls the connection until it has read them.
        async fn send(&mut self, bytes: &[u8]) {
            self.client.write_all(bytes).await.unwrap();
            let mut left = bytes.len();
            while left > 0 {
                self.allowance.reset(&self.activity);
                left -= self.limited.read(&mut vec![0; left.min(1024)]).await.unwrap();
            }
        }

        /// Returns the bytes that are charged to the connection in addition to the free ones.
        fn charged(&self) -> usize {
            usize::try_from(self.capacity.stats().budget_used).unwrap()
        }
    }

    #[tokio::test]
    async fn trailers_of_a_provisional_connection_are_charged_as_header_lists() {
        let mut world = World::new(1 << 20);
        world.send(&opening()).await;
        world.send(&frame(HEADERS, END_HEADERS, 1, 10)).await;
        assert_eq!(world.charged(), 0);
        world.send(&frame(HEADERS, END_HEADERS, 1, 10)).await;
        assert_eq!(world.charged(), HEADER_BYTES * DECODED - FREE_BYTES);
        world.activity.permit.confirm();
        world.send(&frame(4, 0, 0, 0)).await;
        assert_eq!(world.charged(), 0);
    }

    #[tokio::test]
    async fn a_frame_is_charged_until_it_is_complete_or_the_connection_ends() {
        let mut world = World::new(1 << 20);
        world.activity.permit.confirm();
        world.send(&opening()).await;
        let whole = frame(4, 0, 0, 50_000);
        world.send(&whole[..40_009]).await;
        assert_eq!(world.charged(), 40_000 - FREE_BYTES);
        world.send(&whole[40_009..]).await;
        assert_eq!(world.charged(), 0);
        world.send(&whole[..40_009]).await;
        assert_eq!(world.charged(), 40_000 - FREE_BYTES);
        let World { limited, activity, capacity, .. } = world;
        drop(limited);
        assert_eq!(capacity.stats().budget_used, 0);
        drop(activity);
    }

    #[tokio::test]
    async fn a_connection_reads_a_piece_and_then_yields() {
        let mut world = World::new(1 << 20);
        let mut piece = [0; 1024];
        for (confirmed, pieces) in [(false, 4), (true, 64)] {
            if confirmed {
                world.activity.permit.confirm();
            }
            // Frames of an unknown type, which are ignored.
            world.client.write_all(&frame(99, 0, 0, 200_000)).await.unwrap();
            world.allowance.reset(&world.activity);
            let mut reads = 0;
            while world.limited.read(&mut piece).now_or_never().is_some() {
                reads += 1;
            }
            assert_eq!(reads, pieces, "confirmed: {confirmed}");
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn reading_from_a_provisional_client_pauses_until_it_reads_its_responses() {
        let mut world = World::new(64);
        world.client.write_all(&[0; 9]).await.unwrap();
        world.allowance.reset(&world.activity);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let response = [0; 64];
        assert!(Pin::new(&mut world.limited).poll_write(&mut cx, &response).is_ready());
        assert_eq!(world.charged(), 0);
        assert!(Pin::new(&mut world.limited).poll_write(&mut cx, &response).is_pending());
        assert_eq!(world.charged(), UNREAD_RESPONSES - FREE_BYTES);
        let mut read = [0; 9];
        let mut read = ReadBuf::new(&mut read);
        assert!(Pin::new(&mut world.limited).poll_read(&mut cx, &mut read).is_pending());

        world.client.read_exact(&mut [0; 64]).await.unwrap();
        woken.0.store(false, Ordering::SeqCst);
        assert!(Pin::new(&mut world.limited).poll_write(&mut cx, &response).is_ready());
        assert_eq!(world.charged(), 0);
        assert!(woken.0.load(Ordering::SeqCst), "the read that was put off is tried again");
        assert!(Pin::new(&mut world.limited).poll_read(&mut cx, &mut read).is_ready());
        // A confirmed client may send the next request before it has read the response.
        world.activity.permit.confirm();
        world.client.write_all(&[0; 9]).await.unwrap();
        assert!(Pin::new(&mut world.limited).poll_write(&mut cx, &response).is_pending());
        read.clear();
        assert!(Pin::new(&mut world.limited).poll_read(&mut cx, &mut read).is_ready());
        assert_eq!(world.charged(), 0);
    }
}
