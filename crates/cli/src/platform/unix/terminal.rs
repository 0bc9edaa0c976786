//! Input from the terminal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::login::oidc::terminal::{MAX_LINE, PromptError};

/// The interval at which a pending read checks whether it is still needed: 100 ms.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Hides the input until it is dropped.
struct Hidden(Termios);

impl Hidden {
    fn start() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Now, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // If it fails, the terminal is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the next line of standard input.
pub(crate) async fn read_line() -> Result<Zeroizing<Vec<u8>>, PromptError> {
    let stop = Stop(Arc::default());
    let stopped = Arc::clone(&stop.0);
    let (send, receive) = oneshot::channel();
    // The thread ends soon after this future is dropped.
    std::thread::spawn(move || send.send(read(&stopped)));
    receive.await.unwrap_or(Err(PromptError::End))
}

/// Returns the next line of standard input, which the terminal does not show.
pub(crate) async fn read_hidden_line(prompt: impl FnOnce()) -> Result<Zeroizing<Vec<u8>>, PromptError> {
    let _hidden = Hidden::start()?;
    prompt();
    read_line().await
}

fn read(stopped: &AtomicBool) -> Result<Zeroizing<Vec<u8>>, PromptError> {
    let stdin = io::stdin();
    let mut line = Zeroizing::new(Vec::new());
    let mut part = Zeroizing::new([0; 4096]);
    while !stopped.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut ready, Some(&CHECK_INTERVAL)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        match rustix::io::read(&stdin, &mut part[..]) {
            Ok(0) => break,
            Ok(length) => line.extend_from_slice(&part[..length]),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if line.len() > MAX_LINE {
            return Err(PromptError::TooLong);
        }
        if line.ends_with(b"\n") {
            return Ok(line);
        }
    }
    if line.is_empty() { Err(PromptError::End) } else { Ok(line) }
}
