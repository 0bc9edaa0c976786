//! Relays bytes between two TCP connections until both directions have ended.
//!
//! The relay does not inspect or store bytes: while both sides are equally fast, a relayed
//! connection needs two sockets and no buffer. Bytes are written immediately after they are read,
//! through memory that belongs to the thread. A flow that fills that memory repeatedly is a large
//! one and uses a kernel pipe from then on (`splice(2)`): its bytes are never copied into this
//! process. See `flow.rs`.
//!
//! The end of one direction is forwarded as a half-close, and the other direction continues. A
//! connection that fails, by a reset or by a timeout, is forwarded as a reset.

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

mod flow;
mod pipe;
mod streams;

pub use flow::TransferMethod;
use flow::{Flow, Step};
pub use streams::relay_streams;

/// The number of bytes relayed in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayedBytes {
    /// From the first connection to the second.
    pub first_to_second: u64,
    /// From the second connection to the first.
    pub second_to_first: u64,
}

/// The reason why a relay ended before both directions were complete.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// No bytes in either direction for this long.
    #[error("the connection was idle for {} s", .0.as_secs())]
    Idle(Duration),
    /// The grant or the client validation of the host is gone.
    #[error("the grant of the host was revoked, or its client CA changed")]
    Revoked,
    /// The first connection failed.
    #[error("the connection of the client broke")]
    First(#[source] io::Error),
    /// The second connection failed.
    #[error("the connection to the server broke")]
    Second(#[source] io::Error),
}

/// Relays until both directions have ended, or until there is no traffic in either direction for
/// `idle`. Returns the number of bytes and the result; the caller should drop both connections
/// then.
pub async fn relay(
    first: &TcpStream,
    second: &TcpStream,
    idle: Duration,
    method: TransferMethod,
) -> (RelayedBytes, Result<(), RelayError>) {
    let mut first_to_second = Flow::new(method);
    let mut second_to_first = Flow::new(method);
    let mut alive = Instant::now();
    let mut timer = pin!(sleep_until(alive + idle));
    let result = poll_fn(|cx| {
        let before = first_to_second.moved() + second_to_first.moved();
        let one = first_to_second.poll(cx, first, second);
        let other = second_to_first.poll(cx, second, first);
        let broken = match (side(one, true), side(other, false)) {
            (Ok(true), Ok(true)) => return Poll::Ready(Ok(())),
            (Err(error), _) | (_, Err(error)) => Some(error),
            (Ok(_), Ok(_)) => None,
        };
        if let Some(error) = broken {
            // The remaining side is closed with a reset, too.
            match &error {
                RelayError::First(_) => abort(second),
                RelayError::Second(_) => abort(first),
                RelayError::Idle(_) | RelayError::Revoked => {}
            }
            return Poll::Ready(Err(error));
        }
        if first_to_second.moved() + second_to_first.moved() > before {
            alive = Instant::now();
        }
        expired(timer.as_mut(), alive + idle, cx).map(|()| Err(RelayError::Idle(idle)))
    })
    .await;
    (
        RelayedBytes { first_to_second: first_to_second.moved(), second_to_first: second_to_first.moved() },
        result,
    )
}

/// Returns whether this direction has ended, or the error of the side that failed.
fn side(polled: Poll<Result<(), Step>>, first_to_second: bool) -> Result<bool, RelayError> {
    match polled {
        Poll::Pending => Ok(false),
        Poll::Ready(Ok(())) => Ok(true),
        Poll::Ready(Err(Step::Read(error))) if first_to_second => Err(RelayError::First(error)),
        Poll::Ready(Err(Step::Write(error))) if !first_to_second => Err(RelayError::First(error)),
        Poll::Ready(Err(Step::Read(error) | Step::Write(error))) => Err(RelayError::Second(error)),
    }
}

/// Resets the timer only when it fires, because nearly always there was traffic in the meantime.
fn expired(
    mut timer: std::pin::Pin<&mut tokio::time::Sleep>,
    end: Instant,
    cx: &mut Context<'_>,
) -> Poll<()> {
    loop {
        std::task::ready!(timer.as_mut().poll(cx));
        if timer.deadline() >= end {
            return Poll::Ready(());
        }
        timer.as_mut().reset(end);
    }
}

/// Makes the next close of a connection send a reset. Used for every failure of the other
/// connection, including timeouts: a regular close would indicate that all bytes were delivered.
fn abort(stream: &TcpStream) {
    // An error means that the connection is already gone.
    let _unimportant = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Closes the write side of a connection.
fn half_close(stream: &TcpStream) -> io::Result<()> {
    match SockRef::from(stream).shutdown(Shutdown::Write) {
        // The other side has already closed the connection.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests;
