//! One direction of a relay.
//!
//! ```text
//!            read, write through the thread's memory
//! Copying ──────────── FULL_READS in a row ────────────► Splicing
//!    ▲  └─ the writer is slow: a Vec holds the rest          │  └─ a pipe holds bytes
//!    └──────────────── SMALL_MOVES in a row ◄────────────────┘
//! ```

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::half_close;
use super::pipe::Pipe;

/// The transfer method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferMethod {
    /// Depends on the amount of data.
    #[default]
    Adaptive,
    /// Always through memory of this process.
    Copy,
    /// Always through pipes.
    Splice,
}

/// The size of a thread's memory for small flows, in bytes. The memory is empty between two polls.
const SCRATCH: usize = 32 << 10;
/// The number of consecutive reads that fill the memory, after which a flow counts as large.
const FULL_READS: u32 = 2;
/// The number of bytes below which a copy is cheaper than a splice.
const SMALL: usize = 8 << 10;
/// The number of consecutive small transfers after which a flow counts as small again.
const SMALL_MOVES: u32 = 4;
/// The number of bytes that one direction may transfer before it yields to other tasks of the
/// thread.
const TURN: u64 = 1 << 20;

thread_local! {
    static MEMORY: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// The side that failed.
#[derive(Debug)]
pub(super) enum Step {
    Read(io::Error),
    Write(io::Error),
}

#[derive(Debug)]
enum Buffered {
    Nothing,
    /// Bytes that the writer did not accept, from this position on.
    Bytes(Vec<u8>, usize),
    Pipe(Pipe),
}

#[derive(Debug)]
pub(super) struct Flow {
    method: TransferMethod,
    splicing: bool,
    /// Consecutive transfers that favour the other method.
    against: u32,
    buffered: Buffered,
    read_ended: bool,
    done: bool,
    moved: u64,
}

impl Flow {
    pub(super) fn new(method: TransferMethod) -> Self {
        Self {
            method,
            splicing: method == TransferMethod::Splice,
            against: 0,
            buffered: Buffered::Nothing,
            read_ended: false,
            done: false,
            moved: 0,
        }
    }

    /// Returns the number of bytes written so far.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Transfers the available bytes. Ready when the end of the stream was received and forwarded.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
    ) -> Poll<Result<(), Step>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        let turn = self.moved + TURN;
        loop {
            ready!(self.flush(cx, to)).map_err(Step::Write)?;
            if self.read_ended {
                self.done = true;
                return Poll::Ready(half_close(to).map_err(Step::Write));
            }
            if self.moved >= turn {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.splicing {
                ready!(self.splice(cx, from)).map_err(Step::Read)?;
            } else {
                ready!(self.copy(cx, from, to))?;
            }
        }
    }

    /// Writes the held bytes.
    fn flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            let written = match &mut self.buffered {
                Buffered::Nothing => return Poll::Ready(Ok(())),
                Buffered::Bytes(bytes, at) => {
                    ready!(to.poll_write_ready(cx))?;
                    let written = unless_blocked(to.try_write(&bytes[*at..]))?.unwrap_or(0);
                    *at += written;
                    if *at == bytes.len() {
                        self.buffered = Buffered::Nothing;
                    }
                    written
                }
                Buffered::Pipe(pipe) => {
                    ready!(to.poll_write_ready(cx))?;
                    let written =
                        unless_blocked(to.try_io(Interest::WRITABLE, || pipe.drain(to)))?.unwrap_or(0);
                    if pipe.is_empty()
                        && let Buffered::Pipe(pipe) = std::mem::replace(&mut self.buffered, Buffered::Nothing)
                    {
                        pipe.put_back();
                    }
                    written
                }
            };
            self.moved += written as u64;
        }
    }

    /// Reads into a pipe. No bytes are held before the call.
    fn splice(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            // A pipe is taken only when there are bytes for it.
            ready!(from.poll_read_ready(cx))?;
            let Ok(mut pipe) = Pipe::take() else {
                // No file descriptors are left: copy instead.
                (self.method, self.splicing) = (TransferMethod::Copy, false);
                return Poll::Ready(Ok(()));
            };
            match unless_blocked(from.try_io(Interest::READABLE, || pipe.fill(from))) {
                Ok(None) => pipe.put_back(),
                Ok(Some(0)) => {
                    pipe.put_back();
                    self.read_ended = true;
                    return Poll::Ready(Ok(()));
                }
                Ok(Some(moved)) => {
                    self.note(moved < SMALL, SMALL_MOVES);
                    self.buffered = Buffered::Pipe(pipe);
                    return Poll::Ready(Ok(()));
                }
                // Some sandboxes do not support splice.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    pipe.put_back();
                    (self.method, self.splicing) = (TransferMethod::Copy, false);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads into the thread's memory and writes from it immediately. No bytes are held before the
    /// call.
    fn copy(&mut self, cx: &mut Context<'_>, from: &TcpStream, to: &TcpStream) -> Poll<Result<(), Step>> {
        loop {
            ready!(from.poll_read_ready(cx)).map_err(Step::Read)?;
            let moved = MEMORY.with_borrow_mut(|memory| {
                let Some(read) = unless_blocked(from.try_read(memory)).map_err(Step::Read)? else {
                    return Ok(None);
                };
                if read == 0 {
                    return Ok(Some((0, 0)));
                }
                // Without a readiness check: the socket is nearly always writable.
                let written =
                    unless_blocked(to.try_write(&memory[..read])).map_err(Step::Write)?.unwrap_or(0);
                if written < read {
                    self.buffered = Buffered::Bytes(memory[written..read].to_vec(), 0);
                }
                Ok(Some((read, written)))
            })?;
            let Some((read, written)) = moved else { continue };
            self.moved += written as u64;
            if read == 0 {
                self.read_ended = true;
            } else {
                self.note(read == SCRATCH, FULL_READS);
            }
            return Poll::Ready(Ok(()));
        }
    }

    /// Switches the method after enough consecutive transfers that favour the other one.
    fn note(&mut self, against: bool, enough: u32) {
        self.against = if against { self.against + 1 } else { 0 };
        if self.against >= enough && self.method == TransferMethod::Adaptive {
            self.splicing = !self.splicing;
            self.against = 0;
        }
    }
}

/// Returns `None` if the operation would have blocked.
fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(moved) => Ok(Some(moved)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
