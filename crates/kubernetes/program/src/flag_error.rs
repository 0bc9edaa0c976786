//! Error messages for invalid command-line flags.

use clap::error::{ContextKind, ErrorKind};

/// Formats the error on one line, like Go programs.
pub fn flag_error(error: &clap::Error) -> String {
    let word = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown flag: {word}"),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}
