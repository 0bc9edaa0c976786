//! An observer of the bytes of an upgraded connection.
//!
//! Both sides are observed when their bytes are read, before they are forwarded, by the task that
//! forwards them. An observer can therefore slow a connection down, or end it, without any other
//! connection being affected.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::guard::Direction;

/// The next step of the proxy in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRead {
    /// Reads at most this many bytes, and at least one.
    AtMost(usize),
    /// Writes these last bytes, which the observer adds, and then closes the direction.
    End(Bytes),
}

/// Observes the bytes of an upgraded connection.
pub trait Tap: Send {
    /// Called once, when the server has accepted the upgrade with these header fields, before the
    /// methods about bytes.
    fn accepted(&mut self, headers: &HeaderMap);

    /// Called instead, when the server has responded without an upgrade. If neither is called, the
    /// result is not known: the server may have begun a session for a client that has left.
    fn refused(&mut self);

    /// Returns the next step of a direction. `Pending` delays the direction.
    fn poll_next_read(&mut self, direction: Direction, cx: &mut Context<'_>) -> Poll<NextRead>;

    /// Observes bytes that were read. If it returns `false`, the proxy does not forward them, and
    /// the next call of [`Self::poll_next_read`] returns [`NextRead::End`].
    fn observe(&mut self, direction: Direction, bytes: &[u8]) -> bool;
}

/// The observer that both sides of a connection share.
pub(crate) type SharedTap = Arc<Mutex<Box<dyn Tap>>>;

/// One side of a connection, whose reads are observed.
pub(crate) struct Tapped<S> {
    inner: S,
    tap: SharedTap,
    direction: Direction,
    /// The last bytes, if the observer has ended the direction.
    last: Option<Bytes>,
}

impl<S> Tapped<S> {
    pub(crate) fn new(inner: S, tap: SharedTap, direction: Direction) -> Self {
        Self { inner, tap, direction, last: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tapped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { inner, tap, direction, last } = &mut *self;
        loop {
            if let Some(last) = last {
                let count = last.len().min(buf.remaining());
                buf.put_slice(&last[..count]);
                last.advance(count);
                return Poll::Ready(Ok(()));
            }
            let mut tap = tap.lock().unwrap_or_else(PoisonError::into_inner);
            match ready!(tap.poll_next_read(*direction, cx)) {
                NextRead::End(bytes) => *last = Some(bytes),
                NextRead::AtMost(room) => {
                    let room = room.clamp(1, buf.remaining().max(1)).min(buf.remaining());
                    let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
                    ready!(Pin::new(&mut *inner).poll_read(cx, &mut part))?;
                    let count = part.filled().len();
                    if count == 0 || tap.observe(*direction, part.filled()) {
                        buf.advance(count);
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tapped<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use pinniped_http_core::tunnels;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Bytes in the order in which they were read.
    type Seen = Vec<(Direction, Vec<u8>)>;

    /// Notes the bytes; ends both directions when it reads an exclamation mark.
    #[derive(Default)]
    struct Notes {
        seen: Arc<Mutex<Seen>>,
        most: usize,
        ended: bool,
    }

    impl Tap for Notes {
        fn accepted(&mut self, _: &HeaderMap) {}

        fn refused(&mut self) {}

        fn poll_next_read(&mut self, direction: Direction, _: &mut Context<'_>) -> Poll<NextRead> {
            Poll::Ready(match (self.ended, direction) {
                (false, _) => NextRead::AtMost(self.most),
                (true, Direction::FromClient) => NextRead::End(Bytes::new()),
                (true, Direction::ToClient) => NextRead::End(Bytes::from_static(b" the end")),
            })
        }

        fn observe(&mut self, direction: Direction, bytes: &[u8]) -> bool {
            self.ended |= bytes.contains(&b'!');
            self.seen.lock().unwrap().push((direction, bytes.to_vec()));
            !self.ended
        }
    }

    #[tokio::test]
    async fn both_directions_are_observed_and_unchanged_until_the_observer_ends_them() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut server) = tokio::io::duplex(64);
        let notes = Notes { most: 2, ..Notes::default() };
        let seen = Arc::clone(&notes.seen);
        let tap: SharedTap = Arc::new(Mutex::new(Box::new(notes)));
        let relay = tokio::spawn(async move {
            let mut near = Tapped::new(near, Arc::clone(&tap), Direction::FromClient);
            let mut far = Tapped::new(far, tap, Direction::ToClient);
            tunnels::relay(&mut near, &mut far).await
        });
        client.write_all(b"abc").await.unwrap();
        let mut text = [0; 3];
        server.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"abc");
        server.write_all(b"def").await.unwrap();
        client.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"def");
        let parts: Seen = std::mem::take(&mut *seen.lock().unwrap());
        let of = |wanted| {
            let parts = parts.iter().filter(move |(direction, _)| *direction == wanted);
            parts.flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>()
        };
        assert_eq!((of(Direction::FromClient), of(Direction::ToClient)), (b"abc".to_vec(), b"def".to_vec()));
        assert!(parts.iter().all(|(_, bytes)| bytes.len() <= 2), "{parts:?}");

        client.write_all(b"!").await.unwrap();
        let (mut rest, mut requested) = (String::new(), String::new());
        client.read_to_string(&mut rest).await.unwrap();
        server.read_to_string(&mut requested).await.unwrap();
        assert_eq!((&*rest, &*requested), (" the end", ""));
        assert_eq!(relay.await.unwrap().unwrap(), (3, 3 + 8));
    }
}
