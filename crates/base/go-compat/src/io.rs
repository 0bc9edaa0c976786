//! Go's texts for failed reads and writes, derived from Rust's errors.

use std::io::{self, ErrorKind};

/// Returns Go's text for a failed read, write or connect.
pub fn text(error: &io::Error) -> String {
    // These texts are the same on all platforms.
    let text = match error.kind() {
        ErrorKind::NotFound => "no such file or directory",
        ErrorKind::PermissionDenied => "permission denied",
        ErrorKind::IsADirectory => "is a directory",
        ErrorKind::NotADirectory => "not a directory",
        ErrorKind::UnexpectedEof => "EOF",
        _ => return system_text(error),
    };
    text.to_owned()
}

/// Returns the text of the C library, which Go uses too. Rust adds the error number and a capital
/// letter.
fn system_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_lowercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// An I/O error that prints Go's text, for use as the source of another error.
#[derive(Debug, thiserror::Error)]
#[error("{}", text(.0))]
pub struct GoIoError(io::Error);

impl From<io::Error> for GoIoError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_have_no_number_and_no_capital_letter() {
        for (errno, expected) in [
            (2, "no such file or directory"),
            (13, "permission denied"),
            (20, "not a directory"),
            (21, "is a directory"),
            (28, "no space left on device"),
            (111, "connection refused"),
            (113, "no route to host"),
            (104, "connection reset by peer"),
        ] {
            assert_eq!(text(&io::Error::from_raw_os_error(errno)), expected);
        }
        assert_eq!(text(&ErrorKind::UnexpectedEof.into()), "EOF");
    }
}
