//! Prompts on the terminal. They go to standard error, because kubectl reads standard output.
//!
//! A pending prompt ends when its future is dropped: the echo is restored, and input that arrives
//! later stays in the terminal.

use std::io::{self, IsTerminal as _};

use pinniped_secret::SecretString;
use zeroize::Zeroizing;

use crate::platform;
use crate::printer::print_message;

/// The maximum length of a line in bytes.
pub(crate) const MAX_LINE: usize = 64 * 1024;

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
    let line = platform::read_hidden_line(|| print_message(prompt)).await?;
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
    platform::read_line().await
}
