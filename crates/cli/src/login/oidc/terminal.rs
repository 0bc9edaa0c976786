//! Prompts on the terminal. They go to standard error, because kubectl reads standard output.
//!
//! A pending prompt ends when its future is dropped: the echo is restored, and input that arrives
//! later stays in the terminal.

use std::io::{self, IsTerminal as _};

use pinniped_secret::SecretString;
use zeroize::Zeroizing;

use crate::printer::print_message;

/// The maximum length of a line in bytes.
const MAX_LINE: usize = 64 * 1024;

/// There was no input.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// Standard input is not a terminal.
    #[error("stdin is not connected to a terminal")]
    NoTerminal,
    /// Input ended before the line did.
    #[error("EOF")]
    End,
    /// The line is longer than any expected input.
    #[error("the input is too long")]
    TooLong,
    /// The input is not text.
    #[error("the input is not valid UTF-8")]
    NotText,
    /// The terminal cannot be used.
    #[error("could not read from the terminal")]
    Read(#[from] io::Error),
}

/// Returns whether standard input is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Returns whether standard error is a terminal.
pub(super) fn shows_messages() -> bool {
    io::stderr().is_terminal()
}

/// Prompts for a line and returns it without surrounding white space.
pub(super) async fn read_line(prompt: &str) -> Result<String, PromptError> {
    let line = prompt_for(prompt).await?;
    Ok(text(&line)?.trim().to_owned())
}

/// Prompts for a line that is not shown.
pub(super) async fn read_secret(prompt: &str) -> Result<SecretString, PromptError> {
    if !is_terminal() {
        return Err(PromptError::NoTerminal);
    }
    let line = {
        let _hidden = platform::Hidden::start()?;
        prompt_for(prompt).await?
    };
    // The terminal did not show the end of the line.
    print_message("\n");
    Ok(text(&line)?.trim_end_matches(['\r', '\n']).into())
}

fn text(line: &[u8]) -> Result<&str, PromptError> {
    std::str::from_utf8(line).map_err(|_| PromptError::NotText)
}

async fn prompt_for(prompt: &str) -> Result<Zeroizing<Vec<u8>>, PromptError> {
    if !is_terminal() {
        return Err(PromptError::NoTerminal);
    }
    print_message(prompt);
    platform::line().await
}

#[cfg(unix)]
mod platform {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::{Errno, read};
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use tokio::sync::oneshot;
    use zeroize::Zeroizing;

    use super::{MAX_LINE, PromptError};

    /// The interval at which a pending read checks whether it is still needed: 100 ms.
    const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

    /// Hides the input until it is dropped.
    pub(super) struct Hidden(Termios);

    impl Hidden {
        pub(super) fn start() -> io::Result<Self> {
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

    /// Returns the next line.
    pub(super) async fn line() -> Result<Zeroizing<Vec<u8>>, PromptError> {
        let stop = Stop(Arc::default());
        let stopped = Arc::clone(&stop.0);
        let (send, receive) = oneshot::channel();
        // The thread ends soon after this future is dropped.
        std::thread::spawn(move || send.send(read_line(&stopped)));
        receive.await.unwrap_or(Err(PromptError::End))
    }

    fn read_line(stopped: &AtomicBool) -> Result<Zeroizing<Vec<u8>>, PromptError> {
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
            match read(&stdin, &mut part[..]) {
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
}

#[cfg(not(unix))]
mod platform {
    use std::io::{self, BufRead as _, Read as _};

    use tokio::sync::oneshot;
    use zeroize::Zeroizing;

    use super::{MAX_LINE, PromptError};

    /// The console shows the input: hiding it needs calls that this program does not make.
    pub(super) struct Hidden;

    impl Hidden {
        pub(super) fn start() -> io::Result<Self> {
            super::print_message("(the input is visible) ");
            Ok(Self)
        }
    }

    /// Returns the next line.
    pub(super) async fn line() -> Result<Zeroizing<Vec<u8>>, PromptError> {
        let (send, receive) = oneshot::channel();
        // A read of a console cannot be cancelled. The thread ends with the process.
        std::thread::spawn(move || {
            let mut line = Zeroizing::new(Vec::new());
            let read = io::stdin().lock().take(MAX_LINE as u64).read_until(b'\n', &mut line);
            send.send(match read {
                Ok(0) => Err(PromptError::End),
                Ok(_) => Ok(line),
                Err(error) => Err(error.into()),
            })
        });
        receive.await.unwrap_or(Err(PromptError::End))
    }
}
