//! Small writes that leave together.
//!
//! The `h2` crate flushes after nearly every DATA frame, and each flush is a record of TLS and a system call. The answers
//! of several streams are ready in the same moment, though. So a connection's socket collects what is written while the
//! connection runs, and [`Corked::poll_release`] sends it when the connection waits again.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that wait at most: a record of TLS.
const MOST: usize = 16 << 10;
/// A write of so many bytes is better off alone than copied once more.
const LARGE: usize = 4 << 10;
/// Room from the beginning: a handful of answers.
const FIRST: usize = 2 << 10;

/// A socket. Clones are the same one: one is written to, another one releases.
pub(crate) struct Corked<T>(Arc<Mutex<State<T>>>);

// Not `Debug`: what waits may be a credential.
struct State<T> {
    socket: T,
    waiting: Vec<u8>,
    /// How many of these were sent already.
    sent: usize,
    /// What went wrong while nobody was there to hear of it.
    failed: Option<io::Error>,
}

impl<T> Clone for Corked<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Corked<T> {
    pub(crate) fn new(socket: T) -> Self {
        Self(Arc::new(Mutex::new(State { socket, waiting: Vec::new(), sent: 0, failed: None })))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Whoever panicked with it takes the connection down as well.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: AsyncWrite + Unpin> Corked<T> {
    /// Sends what waits. Ready with `false` when that failed: the next flush says why.
    pub(crate) fn poll_release(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state();
        match ready!(state.release(cx)) {
            Ok(()) => Poll::Ready(true),
            Err(error) => {
                state.failed = Some(error);
                Poll::Ready(false)
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> State<T> {
    fn release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting.is_empty() && self.failed.is_none() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.drain(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Writes what waits.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        while self.sent < self.waiting.len() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, &self.waiting[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        // A connection that says nothing has no buffer.
        (self.waiting, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Ready when so many bytes may be written: `true` when they should wait with the others.
    fn room(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if bytes >= LARGE || self.waiting.len() + bytes > MOST {
            ready!(self.drain(cx))?;
        }
        let waits = bytes < LARGE;
        if waits && self.waiting.is_empty() {
            self.waiting.reserve(FIRST);
        }
        Poll::Ready(Ok(waits))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Corked<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().socket).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Corked<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        if !ready!(state.room(buf.len(), cx))? {
            return Pin::new(&mut state.socket).poll_write(cx, buf);
        }
        state.waiting.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        if !ready!(state.room(bytes, cx))? {
            return Pin::new(&mut state.socket).poll_write_vectored(cx, bufs);
        }
        for buf in bufs {
            state.waiting.extend_from_slice(buf);
        }
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.state().socket.is_write_vectored()
    }

    /// Only says whether sending went wrong: that is [`Corked::poll_release`]'s.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        match state.failed.take() {
            Some(error) => Poll::Ready(Err(error)),
            // What was not worth waiting for may not be out yet.
            None if state.waiting.is_empty() => Pin::new(&mut state.socket).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        ready!(state.drain(cx))?;
        Pin::new(&mut state.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    async fn released(corked: &Corked<DuplexStream>) -> bool {
        poll_fn(|cx| corked.poll_release(cx)).await
    }

    #[tokio::test]
    async fn small_writes_wait_for_their_release_and_keep_their_order() {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let corked = Corked::new(near);
        let mut writer = corked.clone();
        for word in [&b"one "[..], b"two "] {
            writer.write_all(word).await.unwrap();
            writer.flush().await.unwrap();
        }
        let mut seen = [0; 100];
        assert!(futures::poll!(std::pin::pin!(far.read(&mut seen))).is_pending());
        assert!(released(&corked).await);
        let read = far.read(&mut seen).await.unwrap();
        assert_eq!(&seen[..read], b"one two ");
        // What is large goes at once, behind what waits.
        writer.write_all(b"head ").await.unwrap();
        writer.write_all(&[b'x'; LARGE]).await.unwrap();
        let mut all = vec![0; 5 + LARGE];
        far.read_exact(&mut all).await.unwrap();
        assert!(all.starts_with(b"head x") && all[5..].iter().all(|byte| *byte == b'x'));
        assert!(released(&corked).await);
    }

    #[tokio::test]
    async fn not_more_than_a_record_waits_and_the_end_sends_it() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut writer = Corked::new(near);
        let part = [b'x'; 1000];
        let mut taken = 0;
        while futures::poll!(std::pin::pin!(writer.write_all(&part))).is_ready() {
            taken += part.len();
        }
        assert_eq!(taken, 16_000, "kept for a reader that does not read");
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            all.len()
        });
        writer.shutdown().await.unwrap();
        drop(writer);
        assert_eq!(reader.await.unwrap(), taken);
    }

    #[tokio::test]
    async fn a_failure_is_told_by_the_next_flush() {
        let (near, far) = tokio::io::duplex(64);
        let corked = Corked::new(near);
        let mut writer = corked.clone();
        writer.write_all(b"lost").await.unwrap();
        drop(far);
        assert!(!released(&corked).await);
        assert_eq!(writer.flush().await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
