//! What a program says about flags that it does not understand.

use clap::error::{ContextKind, ErrorKind};

/// One line, as Go programs say it.
pub fn complaint(error: &clap::Error) -> String {
    let word = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown flag: {word}"),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}
