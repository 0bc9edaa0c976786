//! Pipes of the kernel, borrowed while there are bytes in them.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::net::TcpStream;

/// Bytes that a pipe may hold. More than the default of 64 KiB, so that a flow needs fewer calls; not so many that
/// what waits in the kernel for slow readers gets out of hand.
const SIZE: usize = 256 << 10;
/// Empty pipes that a thread keeps.
const KEPT: usize = 16;

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

thread_local! {
    static EMPTY: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// Both ends of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    /// Bytes in it.
    filled: usize,
}

impl Pipe {
    /// One that is empty.
    pub(super) fn take() -> io::Result<Self> {
        if let Some(pipe) = EMPTY.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller one works as well, and some users may have no larger ones.
        let _smaller = fcntl_setpipe_size(&into, SIZE);
        Ok(Self { out, into, filled: 0 })
    }

    /// Gives an empty one back; one with bytes in it is closed.
    pub(super) fn put_back(self) {
        if self.filled == 0 {
            EMPTY.with_borrow_mut(|empty| {
                if empty.len() < KEPT {
                    empty.push(self);
                }
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Moves what the socket has into the pipe, which must be empty: then `WouldBlock` is the socket's. 0 at the end.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let moved = splice(from, None, &self.into, None, SIZE, FLAGS)?;
        self.filled += moved;
        Ok(moved)
    }

    /// Moves what the pipe has into the socket.
    pub(super) fn drain(&mut self, to: &TcpStream) -> io::Result<usize> {
        let moved = splice(&self.out, None, to, None, self.filled, FLAGS)?;
        self.filled = self.filled.saturating_sub(moved);
        Ok(moved)
    }
}
