//! Whether the peer of an HTTP/2 connection is still there.
//!
//! A connection on which nothing was read for a while is pinged (RFC 9113, section 6.7), and given up when no answer comes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};

/// When something was last read from a connection. Clones are the same.
#[derive(Clone, Debug)]
pub struct Heard(Arc<Reads>);

#[derive(Debug)]
struct Reads {
    began: Instant,
    /// Milliseconds since `began`.
    last: AtomicU64,
}

impl Heard {
    /// Begins now. What is read from the socket that is given back counts.
    pub fn on<T>(io: T) -> (Listening<T>, Self) {
        let heard = Self(Arc::new(Reads { began: Instant::now(), last: AtomicU64::new(0) }));
        (Listening { io, heard: heard.clone() }, heard)
    }

    fn note(&self) {
        self.0.last.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn quiet(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.0.last.load(Ordering::Relaxed)))
    }

    /// Resolves when nothing was heard for `interval`, and then for `answer` not even the answer to a ping.
    pub async fn nothing(self, pings: Option<PingPong>, interval: Duration, answer: Duration) {
        let Some(mut pings) = pings else { return std::future::pending().await };
        loop {
            let quiet = self.quiet();
            if quiet < interval {
                sleep(interval.saturating_sub(quiet)).await;
                continue;
            }
            match timeout(answer, pings.ping(Ping::opaque())).await {
                Ok(Ok(_pong)) => {}
                // The connection itself has ended, and says why.
                Ok(Err(_ended)) => return std::future::pending().await,
                Err(_elapsed) => return,
            }
        }
    }
}

/// A socket that notes when bytes come.
#[derive(Debug)]
pub struct Listening<T> {
    io: T,
    heard: Heard,
}

impl<T: AsyncRead + Unpin> AsyncRead for Listening<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = polled {
            self.heard.note();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Listening<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
