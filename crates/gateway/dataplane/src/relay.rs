//! Bytes from one TCP connection to another and back, until both have said all.
//!
//! Nothing is looked at and nothing is kept: while both sides are as fast, a relayed connection holds two sockets and
//! not one byte of buffer. What is read is written at once, through memory that belongs to the thread. A flow that
//! fills that memory time and again is a large one, and goes through a pipe of the kernel from then on (`splice(2)`):
//! its bytes are never copied into this process. See [`flow`].
//!
//! The end of one direction is passed on as a half-close and the other one goes on. A connection that breaks, by a reset
//! or because nobody answers any more, is passed on as a reset.

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

pub use flow::Way;
use flow::{Flow, Step};
pub use streams::relay_streams;

/// Bytes that went each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From the first connection to the second.
    pub there: u64,
    /// From the second to the first.
    pub back: u64,
}

/// Why a relay ended before both sides were done.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Nothing went either way for this long.
    #[error("the connection was idle for {} s", .0.as_secs())]
    Idle(Duration),
    /// What it rests on is gone.
    #[error("the grant of the host was revoked, or its client CA changed")]
    Revoked,
    /// The first connection broke.
    #[error("the connection of the client broke")]
    First(#[source] io::Error),
    /// The second connection broke.
    #[error("the connection to the server broke")]
    Second(#[source] io::Error),
}

/// Relays until both directions have ended, or nothing went either way for `idle`. What was moved, and how it ended;
/// both connections should be dropped then.
pub async fn relay(
    first: &TcpStream,
    second: &TcpStream,
    idle: Duration,
    way: Way,
) -> (Moved, Result<(), RelayError>) {
    let mut there = Flow::new(way);
    let mut back = Flow::new(way);
    let mut alive = Instant::now();
    let mut timer = pin!(sleep_until(alive + idle));
    let outcome = poll_fn(|cx| {
        let before = there.moved() + back.moved();
        let one = there.poll(cx, first, second);
        let other = back.poll(cx, second, first);
        let broken = match (side(one, true), side(other, false)) {
            (Ok(true), Ok(true)) => return Poll::Ready(Ok(())),
            (Err(error), _) | (_, Err(error)) => Some(error),
            (Ok(_), Ok(_)) => None,
        };
        if let Some(error) = broken {
            // Whoever is left hears of it in the same way.
            match &error {
                RelayError::First(_) => abort(second),
                RelayError::Second(_) => abort(first),
                RelayError::Idle(_) | RelayError::Revoked => {}
            }
            return Poll::Ready(Err(error));
        }
        if there.moved() + back.moved() > before {
            alive = Instant::now();
        }
        expired(timer.as_mut(), alive + idle, cx).map(|()| Err(RelayError::Idle(idle)))
    })
    .await;
    (Moved { there: there.moved(), back: back.moved() }, outcome)
}

/// Whether this direction has ended, or whose fault it is that it broke.
fn side(polled: Poll<Result<(), Step>>, there: bool) -> Result<bool, RelayError> {
    match polled {
        Poll::Pending => Ok(false),
        Poll::Ready(Ok(())) => Ok(true),
        Poll::Ready(Err(Step::Read(error))) if there => Err(RelayError::First(error)),
        Poll::Ready(Err(Step::Write(error))) if !there => Err(RelayError::First(error)),
        Poll::Ready(Err(Step::Read(error) | Step::Write(error))) => Err(RelayError::Second(error)),
    }
}

/// The timer is moved only when it fires: nearly always there was some traffic meanwhile.
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

/// Makes the coming close of a connection a reset. However the other one broke, by a reset or by silence: an end in
/// good order would say that everything has come.
fn abort(stream: &TcpStream) {
    // It is gone already, or else it will be.
    let _unimportant = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Says that nothing more will come.
fn half_close(stream: &TcpStream) -> io::Result<()> {
    match SockRef::from(stream).shutdown(Shutdown::Write) {
        // The other side was faster.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests;
