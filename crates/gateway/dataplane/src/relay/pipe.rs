//! Kernel pipes, which a flow borrows while they contain bytes.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::net::TcpStream;

/// The capacity of a pipe in bytes. Larger than the default of 64 KiB, so that a flow needs fewer
/// calls, but small enough to limit the kernel memory that slow readers occupy.
const SIZE: usize = 256 << 10;
/// The number of empty pipes that a thread retains.
const MAX_POOLED: usize = 16;

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

thread_local! {
    static EMPTY: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// Both ends of a pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    /// The number of bytes in the pipe.
    filled: usize,
}

impl Pipe {
    /// Returns an empty pipe.
    pub(super) fn take() -> io::Result<Self> {
        if let Some(pipe) = EMPTY.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Resizing is optional: a smaller pipe also works, and some users may not create larger
        // ones.
        let _smaller = fcntl_setpipe_size(&into, SIZE);
        Ok(Self { out, into, filled: 0 })
    }

    /// Returns an empty pipe to the pool; closes a pipe that contains bytes.
    pub(super) fn put_back(self) {
        if self.filled == 0 {
            EMPTY.with_borrow_mut(|empty| {
                if empty.len() < MAX_POOLED {
                    empty.push(self);
                }
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Moves the available bytes of the socket into the pipe. The pipe must be empty: then
    /// `WouldBlock` refers to the socket. Returns 0 at the end of the stream.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let moved = splice(from, None, &self.into, None, SIZE, FLAGS)?;
        self.filled += moved;
        Ok(moved)
    }

    /// Moves bytes from the pipe into the socket.
    pub(super) fn drain(&mut self, to: &TcpStream) -> io::Result<usize> {
        let moved = splice(&self.out, None, to, None, self.filled, FLAGS)?;
        self.filled = self.filled.saturating_sub(moved);
        Ok(moved)
    }
}
