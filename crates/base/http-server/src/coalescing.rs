//! A socket that combines small writes.
//!
//! The `h2` crate flushes after nearly every DATA frame, and each flush is a TLS record and a
//! system call. The responses of several streams are often ready at the same time, so this socket
//! buffers the bytes that are written while the connection's task runs, and
//! [`CoalescingSocket::poll_send_buffered`] sends them when the task waits again.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of buffered bytes: one TLS record.
const MAX_BUFFERED: usize = 16 << 10;
/// Writes of at least this size are not buffered, because the copy costs more than the write.
const LARGE: usize = 4 << 10;
/// Initial capacity of the buffer: a few responses.
const INITIAL_CAPACITY: usize = 2 << 10;

/// A socket that buffers small writes. Clones share one socket: one clone is written to, another
/// one sends the buffer.
pub(crate) struct CoalescingSocket<T>(Arc<Mutex<State<T>>>);

// Not `Debug`: buffered bytes may contain a credential.
struct State<T> {
    socket: T,
    buffered: Vec<u8>,
    /// Number of buffered bytes that are already sent.
    sent: usize,
    /// An error that the next flush returns.
    failed: Option<io::Error>,
}

impl<T> Clone for CoalescingSocket<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> CoalescingSocket<T> {
    pub(crate) fn new(socket: T) -> Self {
        Self(Arc::new(Mutex::new(State { socket, buffered: Vec::new(), sent: 0, failed: None })))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The panic that poisoned the lock also ends the connection.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: AsyncWrite + Unpin> CoalescingSocket<T> {
    /// Sends the buffered bytes. Ready with `false` when that failed: the next flush returns the
    /// error.
    pub(crate) fn poll_send_buffered(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state();
        match ready!(state.send_buffered(cx)) {
            Ok(()) => Poll::Ready(true),
            Err(error) => {
                state.failed = Some(error);
                Poll::Ready(false)
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> State<T> {
    fn send_buffered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffered.is_empty() && self.failed.is_none() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.drain(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Writes the buffered bytes.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        while self.sent < self.buffered.len() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, &self.buffered[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        // An idle connection has no buffer.
        (self.buffered, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Ready when `bytes` bytes may be written; `true` when they are to be buffered.
    fn room(&mut self, bytes: usize, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if bytes >= LARGE || self.buffered.len() + bytes > MAX_BUFFERED {
            ready!(self.drain(cx))?;
        }
        let is_buffered = bytes < LARGE;
        if is_buffered && self.buffered.is_empty() {
            self.buffered.reserve(INITIAL_CAPACITY);
        }
        Poll::Ready(Ok(is_buffered))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CoalescingSocket<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().socket).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CoalescingSocket<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        if !ready!(state.room(buf.len(), cx))? {
            return Pin::new(&mut state.socket).poll_write(cx, buf);
        }
        state.buffered.extend_from_slice(buf);
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
            state.buffered.extend_from_slice(buf);
        }
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.state().socket.is_write_vectored()
    }

    /// Returns only an earlier error of sending: [`CoalescingSocket::poll_send_buffered`] sends the
    /// bytes.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        match state.failed.take() {
            Some(error) => Poll::Ready(Err(error)),
            // A large write bypasses the buffer and may still be unflushed.
            None if state.buffered.is_empty() => Pin::new(&mut state.socket).poll_flush(cx),
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

    async fn is_sent(socket: &CoalescingSocket<DuplexStream>) -> bool {
        poll_fn(|cx| socket.poll_send_buffered(cx)).await
    }

    #[tokio::test]
    async fn small_writes_are_buffered_until_they_are_sent_and_keep_their_order() {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let socket = CoalescingSocket::new(near);
        let mut writer = socket.clone();
        for word in [&b"one "[..], b"two "] {
            writer.write_all(word).await.unwrap();
            writer.flush().await.unwrap();
        }
        let mut seen = [0; 100];
        assert!(futures::poll!(std::pin::pin!(far.read(&mut seen))).is_pending());
        assert!(is_sent(&socket).await);
        let read = far.read(&mut seen).await.unwrap();
        assert_eq!(&seen[..read], b"one two ");
        // A large write is sent at once, after the buffered bytes.
        writer.write_all(b"head ").await.unwrap();
        writer.write_all(&[b'x'; LARGE]).await.unwrap();
        let mut all = vec![0; 5 + LARGE];
        far.read_exact(&mut all).await.unwrap();
        assert!(all.starts_with(b"head x") && all[5..].iter().all(|byte| *byte == b'x'));
        assert!(is_sent(&socket).await);
    }

    #[tokio::test]
    async fn at_most_one_record_is_buffered_and_shutdown_sends_it() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut writer = CoalescingSocket::new(near);
        let part = [b'x'; 1000];
        let mut taken = 0;
        while futures::poll!(std::pin::pin!(writer.write_all(&part))).is_ready() {
            taken += part.len();
        }
        assert_eq!(taken, 16_000, "buffered for a reader that does not read");
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
    async fn the_next_flush_returns_a_failure() {
        let (near, far) = tokio::io::duplex(64);
        let socket = CoalescingSocket::new(near);
        let mut writer = socket.clone();
        writer.write_all(b"lost").await.unwrap();
        drop(far);
        assert!(!is_sent(&socket).await);
        assert_eq!(writer.flush().await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
