//! Copies bytes from one side to the other in large writes.
//!
//! A TLS record holds 16 KiB, and a TLS reader returns one record after the other. If each were
//! written separately, each would be a system call and a packet in the kernel, which takes more
//! time than everything else. Therefore the reader reads until no more data is available or the
//! buffer is full, and writes the data together. The buffer of an idle tunnel stays small.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Initial size of a buffer in bytes, and its maximum. An idle tunnel has the initial size.
const SIZES: (usize, usize) = (8 << 10, 128 << 10);

/// The copy in one direction.
#[derive(Debug)]
pub(super) struct Copying {
    buffer: Box<[u8]>,
    /// Start of the buffered bytes that are not written yet.
    start: usize,
    end: usize,
    /// Number of bytes read since the reader was last pending.
    together: usize,
    copied: u64,
    unflushed: bool,
    ended: Ended,
    /// The read error, if reading did not end with end of stream. The bytes before it are delivered
    /// first: servers often close a connection without close_notify after their last bytes.
    failed: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    No,
    /// The reader has ended.
    Reading,
    /// The writer is shut down too.
    Writing,
}

impl Copying {
    pub(super) fn new() -> Self {
        Self {
            buffer: empty(SIZES.0),
            start: 0,
            end: 0,
            together: 0,
            copied: 0,
            unflushed: false,
            ended: Ended::No,
            failed: None,
        }
    }

    /// Returns the number of bytes that were copied.
    pub(super) fn copied(&self) -> u64 {
        self.copied
    }

    /// Copies all available bytes. Ready with the number of copied bytes when the reader has ended
    /// and the writer is shut down.
    pub(super) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        mut from: Pin<&mut R>,
        mut to: Pin<&mut W>,
    ) -> Poll<io::Result<u64>>
    where
        R: AsyncRead + ?Sized,
        W: AsyncWrite + ?Sized,
    {
        loop {
            let waiting = self.poll_fill(cx, from.as_mut()).is_pending();
            while self.start < self.end {
                let written = ready!(to.as_mut().poll_write(cx, &self.buffer[self.start..self.end]))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.start += written;
                self.copied += written as u64;
                self.unflushed = true;
            }
            self.emptied(waiting);
            if !waiting && self.ended == Ended::No {
                continue;
            }
            // No more data is available: flush the written bytes.
            if self.unflushed {
                ready!(to.as_mut().poll_flush(cx))?;
                self.unflushed = false;
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Err(error));
            }
            if self.ended == Ended::Reading {
                ready!(to.as_mut().poll_shutdown(cx))?;
                self.ended = Ended::Writing;
            }
            return match self.ended {
                Ended::Writing => Poll::Ready(Ok(self.copied)),
                Ended::No | Ended::Reading => Poll::Pending,
            };
        }
    }

    /// Reads until the buffer is full or no more data is available. Pending if the reader will wake
    /// the task.
    fn poll_fill<R: AsyncRead + ?Sized>(&mut self, cx: &mut Context<'_>, mut from: Pin<&mut R>) -> Poll<()> {
        while self.ended == Ended::No && self.end < self.buffer.len() {
            let mut room = ReadBuf::new(&mut self.buffer[self.end..]);
            let result = ready!(from.as_mut().poll_read(cx, &mut room));
            match (result, room.filled().len()) {
                (Ok(()), 0) => self.ended = Ended::Reading,
                (Ok(()), read) => {
                    self.end += read;
                    self.together += read;
                }
                (Err(error), _) => {
                    self.ended = Ended::Reading;
                    self.failed = Some(error);
                }
            }
        }
        Poll::Ready(())
    }

    /// Resizes the empty buffer to the amount of data that arrived. `waiting` is true when the
    /// reader has no more data.
    fn emptied(&mut self, waiting: bool) {
        let length = self.buffer.len();
        if !waiting && self.end == length && length < SIZES.1 {
            self.buffer = empty(length * 2);
        } else if waiting && self.together < length / 4 && length > SIZES.0 {
            self.buffer = empty(SIZES.0);
        }
        (self.start, self.end) = (0, 0);
        if waiting {
            self.together = 0;
        }
    }
}

fn empty(length: usize) -> Box<[u8]> {
    vec![0; length].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Returns its pieces one by one, then stays pending, or ends at a `None`. An empty piece is an
    /// error.
    struct Pieces(VecDeque<Option<Vec<u8>>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                None => Poll::Pending,
                Some(None) => Poll::Ready(Ok(())),
                Some(Some(piece)) if piece.is_empty() => {
                    Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
                }
                Some(Some(mut piece)) => {
                    let rest = piece.split_off(piece.len().min(buf.remaining()));
                    buf.put_slice(&piece);
                    if !rest.is_empty() {
                        self.0.push_front(Some(rest));
                    }
                    Poll::Ready(Ok(()))
                }
            }
        }
    }

    /// Records the lengths of writes, flushes as `f` and the shutdown as `e`.
    #[derive(Default)]
    struct Notes {
        bytes: Vec<u8>,
        seen: Vec<String>,
        /// Maximum size of one write; `times` is the number of writes before the writer stays
        /// pending.
        most: Option<usize>,
        times: Option<usize>,
    }

    impl AsyncWrite for Notes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if let Some(times) = &mut self.times {
                if *times == 0 {
                    return Poll::Pending;
                }
                *times -= 1;
            }
            let taken = buf.len().min(self.most.unwrap_or(usize::MAX));
            self.bytes.extend_from_slice(&buf[..taken]);
            self.seen.push(taken.to_string());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.seen.push("f".to_owned());
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.seen.push("e".to_owned());
            Poll::Ready(Ok(()))
        }
    }

    fn pieces(lengths: &[usize]) -> Pieces {
        Pieces(lengths.iter().map(|&length| Some(vec![7; length])).collect())
    }

    fn poll(copying: &mut Copying, from: &mut Pieces, to: &mut Notes) -> Poll<io::Result<u64>> {
        copying.poll(&mut Context::from_waker(std::task::Waker::noop()), Pin::new(from), Pin::new(to))
    }

    #[test]
    fn available_pieces_are_written_together_and_flushed_once() {
        let (mut copying, mut to) = (Copying::new(), Notes::default());
        assert!(poll(&mut copying, &mut pieces(&[10, 20, 30]), &mut to).is_pending());
        assert_eq!(to.seen, ["60", "f"]);
        assert!(poll(&mut copying, &mut pieces(&[]), &mut to).is_pending());
        assert_eq!(to.seen, ["60", "f"], "there is nothing to flush");
    }

    #[test]
    fn the_buffer_grows_for_large_amounts_and_shrinks_for_small_ones() {
        let (mut copying, mut to) = (Copying::new(), Notes::default());
        assert!(poll(&mut copying, &mut pieces(&[16 << 10; 40]), &mut to).is_pending());
        let growing = ["8192", "16384", "32768", "65536"];
        let full = ["131072"; 4];
        assert_eq!(to.seen, [&growing[..], &full, &["8192", "f"]].concat());
        assert_eq!(copying.buffer.len(), SIZES.1);
        for _ in 0..2 {
            assert!(poll(&mut copying, &mut pieces(&[100]), &mut to).is_pending());
            assert_eq!(copying.buffer.len(), SIZES.0);
        }
    }

    #[test]
    fn the_shutdown_follows_all_data() {
        let (mut copying, mut to) = (Copying::new(), Notes::default());
        let mut from = pieces(&[10, 20]);
        from.0.push_back(None);
        assert!(matches!(poll(&mut copying, &mut from, &mut to), Poll::Ready(Ok(30))));
        assert_eq!(to.seen, ["30", "f", "e"]);
        let mut silent = Notes::default();
        let mut over = Pieces([None].into());
        assert!(matches!(poll(&mut Copying::new(), &mut over, &mut silent), Poll::Ready(Ok(0))));
        assert_eq!(silent.seen, ["e"]);
    }

    #[test]
    fn data_before_a_read_error_is_delivered_before_the_error() {
        let mut copying = Copying::new();
        let mut to = Notes { times: Some(0), ..Notes::default() };
        let mut from = pieces(&[10, 0]);
        assert!(poll(&mut copying, &mut from, &mut to).is_pending(), "the writer takes nothing yet");
        to.times = None;
        let copied = poll(&mut copying, &mut from, &mut to);
        let Poll::Ready(Err(error)) = copied else { panic!("{copied:?}") };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(to.seen, ["10", "f"], "and the writer is not shut down");
    }

    #[test]
    fn a_slow_writer_receives_each_byte_once() {
        let mut copying = Copying::new();
        let mut to = Notes { most: Some(3), times: Some(2), ..Notes::default() };
        let mut from = Pieces([Some(b"abcdefgh".to_vec()), Some(b"ij".to_vec()), None].into());
        assert!(poll(&mut copying, &mut from, &mut to).is_pending());
        to.times = Some(1);
        assert!(poll(&mut copying, &mut from, &mut to).is_pending());
        to.times = None;
        assert!(matches!(poll(&mut copying, &mut from, &mut to), Poll::Ready(Ok(10))));
        assert_eq!(to.bytes, b"abcdefghij");
        assert_eq!(to.seen, ["3", "3", "3", "1", "f", "e"]);
    }

    #[test]
    fn a_writer_that_accepts_no_bytes_is_an_error() {
        let mut to = Notes { most: Some(0), ..Notes::default() };
        let copied = poll(&mut Copying::new(), &mut pieces(&[1]), &mut to);
        let Poll::Ready(Err(error)) = copied else { panic!("{copied:?}") };
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
