//! Detection of idle connections, and of vanished peers of HTTP/2 connections.
//!
//! A connection on which nothing was read for a while is pinged (RFC 9113, section 6.7), and closed
//! when the peer does not answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep, timeout};

/// The time at which data was last read from the tracked sockets. Clones share one value.
#[derive(Clone, Debug)]
pub struct LastRead(Arc<Reads>);

#[derive(Debug)]
struct Reads {
    began: Instant,
    /// Milliseconds since `began`.
    last: AtomicU64,
}

impl Default for LastRead {
    fn default() -> Self {
        Self(Arc::new(Reads { began: Instant::now(), last: AtomicU64::new(0) }))
    }
}

impl LastRead {
    /// Records the reads from a socket.
    pub fn track<T>(&self, io: T) -> TimedReads<T> {
        TimedReads { io, last_read: self.clone() }
    }

    fn record(&self) {
        self.0.last.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.0.last.load(Ordering::Relaxed)))
    }

    /// Resolves when nothing was read for `interval`.
    pub async fn idle_for(&self, interval: Duration) {
        loop {
            let elapsed = self.elapsed();
            if elapsed >= interval {
                return;
            }
            sleep(interval - elapsed).await;
        }
    }

    /// Resolves when nothing was read for `interval` and the peer does not answer a ping within
    /// `ping_timeout` after that.
    pub async fn peer_vanished(self, pings: Option<PingPong>, interval: Duration, ping_timeout: Duration) {
        let Some(mut pings) = pings else { return std::future::pending().await };
        loop {
            self.idle_for(interval).await;
            match timeout(ping_timeout, pings.ping(Ping::opaque())).await {
                Ok(Ok(_pong)) => {}
                // The connection itself has ended and reports the reason.
                Ok(Err(_ended)) => return std::future::pending().await,
                Err(_elapsed) => return,
            }
        }
    }
}

/// A socket that records the time of each read.
#[derive(Debug)]
pub struct TimedReads<T> {
    io: T,
    last_read: LastRead,
}

impl<T: AsyncRead + Unpin> AsyncRead for TimedReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = polled {
            self.last_read.record();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedReads<T> {
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
