//! Connections that left HTTP: upgraded connections and WebSockets after their 101 response.
//!
//! hyper hands an upgraded connection out and no longer tracks it, so the drain of the server does
//! not include it. Run the copying of an upgraded connection inside [`Tunnels::spawn`]; one value
//! of [`Tunnels`] counts the tunnels and closes them.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

mod copy;

use copy::Copying;

/// The tunnels of a server. Cheap to clone; clones share one set.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    tracker: TaskTracker,
    ended: CancellationToken,
    opened: Arc<AtomicU64>,
}

impl Tunnels {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a tunnel until the returned guard is dropped. After [`Tunnels::drain`] the guard's
    /// token is already cancelled.
    pub fn track(&self) -> Tunnel {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Tunnel { ended: self.ended.clone(), _counted: self.tracker.token() }
    }

    /// Runs a tunnel as a task of this set until it ends or the set is drained.
    pub fn spawn<F>(&self, tunnel: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let ended = self.ended.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                biased;
                () = ended.cancelled() => {}
                () = tunnel => {}
            }
        });
    }

    /// Returns the number of open tunnels.
    pub fn open(&self) -> usize {
        self.tracker.len()
    }

    /// Returns the number of tunnels that were ever opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Waits at most `grace` for the open tunnels, then closes the remaining ones and waits until
    /// they are closed.
    pub async fn drain(&self, grace: Duration) {
        self.tracker.close();
        if tokio::time::timeout(grace, self.tracker.wait()).await.is_err() {
            self.ended.cancel();
            self.tracker.wait().await;
        }
        self.ended.cancel();
    }
}

/// One open tunnel.
#[derive(Debug)]
pub struct Tunnel {
    ended: CancellationToken,
    _counted: TaskTrackerToken,
}

impl Tunnel {
    /// Resolves when the tunnel must close.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns a token that is cancelled when the tunnel must close.
    pub fn token(&self) -> &CancellationToken {
        &self.ended
    }
}

/// Copies in both directions until both sides have ended; the end of one side is forwarded as a
/// half-close. Returns the bytes copied from `a` to `b` and from `b` to `a`.
///
/// # Errors
/// Returns the first read or write error of either side; drop both sides then.
pub async fn relay<A, B>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    relay_counted(a, b, |_, _| {}).await
}

/// Copies like [`relay`]. Calls `copied` with the additional bytes from `a` to `b` and from `b` to
/// `a` whenever there are some.
///
/// # Errors
/// Returns the first read or write error of either side; drop both sides then.
pub async fn relay_counted<A, B>(
    a: &mut A,
    b: &mut B,
    mut copied: impl FnMut(u64, u64),
) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    let (mut a_to_b, mut b_to_a) = (Copying::new(), Copying::new());
    let (mut sent, mut received) = (None, None);
    poll_fn(|cx| {
        let before = (a_to_b.copied(), b_to_a.copied());
        let a_ended =
            poll_direction(&mut sent, |cx| a_to_b.poll(cx, Pin::new(&mut *a), Pin::new(&mut *b)), cx);
        let b_ended =
            poll_direction(&mut received, |cx| b_to_a.poll(cx, Pin::new(&mut *b), Pin::new(&mut *a)), cx);
        let more = (a_to_b.copied() - before.0, b_to_a.copied() - before.1);
        if more != (0, 0) {
            copied(more.0, more.1);
        }
        match (a_ended?, b_ended?) {
            (Some(sent), Some(received)) => Poll::Ready(Ok((sent, received))),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Polls one direction unless it has ended, and stores its result.
fn poll_direction(
    ended: &mut Option<u64>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<u64>>,
    cx: &mut Context<'_>,
) -> io::Result<Option<u64>> {
    if ended.is_none()
        && let Poll::Ready(copied) = poll(cx)
    {
        *ended = Some(copied?);
    }
    Ok(*ended)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drain_waits_for_the_grace_period_and_then_closes_the_remaining_tunnels() {
        let tunnels = Tunnels::new();
        let (done, finished) = tokio::sync::oneshot::channel::<()>();
        tunnels.spawn(async move {
            let _closed_when_dropped = done;
            std::future::pending::<()>().await;
        });
        assert_eq!((tunnels.open(), tunnels.opened()), (1, 1));
        let start = tokio::time::Instant::now();
        tunnels.drain(Duration::from_secs(5)).await;
        assert_eq!(start.elapsed().as_secs(), 5);
        assert_eq!(tunnels.open(), 0);
        finished.await.expect_err("the tunnel was dropped");
        let late = tunnels.track();
        late.ended().await;
    }

    #[tokio::test(start_paused = true)]
    async fn drain_returns_when_the_last_tunnel_ends() {
        let tunnels = Tunnels::new();
        let guard = tunnels.track();
        let drain = tunnels.drain(Duration::from_secs(60));
        tokio::pin!(drain);
        assert!(futures::poll!(drain.as_mut()).is_pending());
        drop(guard);
        let start = tokio::time::Instant::now();
        drain.await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_half_close_is_forwarded_and_the_other_direction_stays_open() {
        let (mut client, mut near) = tokio::io::duplex(64);
        let (mut far, mut server) = tokio::io::duplex(64);
        let copying = tokio::spawn(async move {
            let mut counted = (0, 0);
            let count = |more: u64, back: u64| counted = (counted.0 + more, counted.1 + back);
            (relay_counted(&mut near, &mut far, count).await, counted)
        });
        client.write_all(b"ask").await.expect("write");
        client.shutdown().await.expect("half close");
        let mut requested = String::new();
        server.read_to_string(&mut requested).await.expect("end of stream arrives");
        assert_eq!(requested, "ask");
        server.write_all(b"answer").await.expect("still open");
        drop(server);
        let mut response = String::new();
        client.read_to_string(&mut response).await.expect("read");
        assert_eq!(response, "answer");
        let (copied, counted) = copying.await.expect("task");
        assert_eq!((copied.expect("relay"), counted), ((3, 6), (3, 6)));
    }
}
