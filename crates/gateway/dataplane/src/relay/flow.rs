//! One direction of a relay.
//!
//! ```text
//!            read, write through the thread's memory
//! Copying ──────────── FULL_READS in a row ────────────► Splicing      a pipe is held while it has bytes
//!    ▲  └─ the writer lags: what is left waits in a Vec      │
//!    └──────────────── SMALL_MOVES in a row ◄────────────────┘
//! ```

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::half_close;
use super::pipe::Pipe;

/// How bytes travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// As their amount asks for.
    #[default]
    Adaptive,
    /// Always through memory of this process.
    Copy,
    /// Always through pipes.
    Splice,
}

/// Memory of a thread through which small flows go: it is empty between two polls.
const SCRATCH: usize = 32 << 10;
/// Reads in a row that fill the memory, after which a flow counts as large.
const FULL_READS: u32 = 2;
/// A move smaller than this is cheaper as a copy.
const SMALL: usize = 8 << 10;
/// Small moves in a row after which a flow counts as small again.
const SMALL_MOVES: u32 = 4;
/// Bytes of one direction before the others of the thread have their turn.
const TURN: u64 = 1 << 20;

thread_local! {
    static MEMORY: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// Which side failed.
#[derive(Debug)]
pub(super) enum Step {
    Read(io::Error),
    Write(io::Error),
}

#[derive(Debug)]
enum Held {
    Nothing,
    /// Bytes that the writer did not take, from this position on.
    Bytes(Vec<u8>, usize),
    Pipe(Pipe),
}

#[derive(Debug)]
pub(super) struct Flow {
    way: Way,
    splicing: bool,
    /// Moves in a row that speak for the other way.
    against: u32,
    held: Held,
    read_ended: bool,
    done: bool,
    moved: u64,
}

impl Flow {
    pub(super) fn new(way: Way) -> Self {
        Self {
            way,
            splicing: way == Way::Splice,
            against: 0,
            held: Held::Nothing,
            read_ended: false,
            done: false,
            moved: 0,
        }
    }

    /// Bytes written so far.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Moves what there is. Ready when the end has come and was passed on.
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

    /// Writes what is held.
    fn flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            let written = match &mut self.held {
                Held::Nothing => return Poll::Ready(Ok(())),
                Held::Bytes(bytes, at) => {
                    ready!(to.poll_write_ready(cx))?;
                    let written = unless_blocked(to.try_write(&bytes[*at..]))?.unwrap_or(0);
                    *at += written;
                    if *at == bytes.len() {
                        self.held = Held::Nothing;
                    }
                    written
                }
                Held::Pipe(pipe) => {
                    ready!(to.poll_write_ready(cx))?;
                    let written =
                        unless_blocked(to.try_io(Interest::WRITABLE, || pipe.drain(to)))?.unwrap_or(0);
                    if pipe.is_empty()
                        && let Held::Pipe(pipe) = std::mem::replace(&mut self.held, Held::Nothing)
                    {
                        pipe.put_back();
                    }
                    written
                }
            };
            self.moved += written as u64;
        }
    }

    /// Reads into a pipe. Nothing is held before.
    fn splice(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            // No pipe is taken before there is something to put in.
            ready!(from.poll_read_ready(cx))?;
            let Ok(mut pipe) = Pipe::take() else {
                // Out of files: memory does as well.
                (self.way, self.splicing) = (Way::Copy, false);
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
                    self.held = Held::Pipe(pipe);
                    return Poll::Ready(Ok(()));
                }
                // Some sandboxes have no splice.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    pipe.put_back();
                    (self.way, self.splicing) = (Way::Copy, false);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads into the thread's memory and writes out of it at once. Nothing is held before.
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
                // Without asking first whether it may: nearly always it may.
                let written =
                    unless_blocked(to.try_write(&memory[..read])).map_err(Step::Write)?.unwrap_or(0);
                if written < read {
                    self.held = Held::Bytes(memory[written..read].to_vec(), 0);
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

    /// Changes the way after so many moves in a row that speak for the other one.
    fn note(&mut self, against: bool, enough: u32) {
        self.against = if against { self.against + 1 } else { 0 };
        if self.against >= enough && self.way == Way::Adaptive {
            self.splicing = !self.splicing;
            self.against = 0;
        }
    }
}

/// `None` where it would have blocked.
fn unless_blocked(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(moved) => Ok(Some(moved)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
