//! A relay for connections whose bytes are processed in this process: TLS streams cannot use a
//! pipe.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{RelayError, RelayedBytes, expired};

/// The size of each of the two buffers in bytes: one TLS record.
const BUFFER: usize = 16 << 10;

/// Relays until both directions have ended, there is no traffic in either direction for `idle`, or
/// `revoked` is cancelled. Returns the number of bytes and the result; the caller should drop both
/// connections then.
pub async fn relay_streams<A, B>(
    first: &mut A,
    second: &mut B,
    idle: Duration,
    revoked: &CancellationToken,
) -> (RelayedBytes, Result<(), RelayError>)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (first_to_second, second_to_first) = (AtomicU64::new(0), AtomicU64::new(0));
    let moved = || RelayedBytes {
        first_to_second: first_to_second.load(Ordering::Relaxed),
        second_to_first: second_to_first.load(Ordering::Relaxed),
    };
    let mut first = Counted { inner: first, read: &first_to_second };
    let mut second = Counted { inner: second, read: &second_to_first };
    let result = {
        let mut copying = pin!(copy_bidirectional_with_sizes(&mut first, &mut second, BUFFER, BUFFER));
        let mut alive = Instant::now();
        let mut timer = pin!(sleep_until(alive + idle));
        let mut revoked = pin!(revoked.cancelled());
        let mut seen = RelayedBytes::default();
        poll_fn(|cx| {
            if revoked.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(RelayError::Revoked));
            }
            if let Poll::Ready(ended) = copying.as_mut().poll(cx) {
                // The error does not indicate which side failed.
                return Poll::Ready(ended.map(|_| ()).map_err(RelayError::First));
            }
            if seen != moved() {
                seen = moved();
                alive = Instant::now();
            }
            expired(timer.as_mut(), alive + idle, cx).map(|()| Err(RelayError::Idle(idle)))
        })
        .await
    };
    (moved(), result)
}

/// Counts the bytes that are read.
struct Counted<'a, T> {
    inner: &'a mut T,
    read: &'a AtomicU64,
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<'_, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut *self.inner).poll_read(cx, buf);
        self.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<'_, T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}
