//! Values that a log line contains as JSON instead of text, and the targets of events that
//! the log level treats differently.
//!
//! A field of a log event is a number, a flag or a text. Lists and references are passed as text
//! that begins with a mark, which the log output removes. The mark differs in each process, so that
//! a client cannot forge such a value with its own text.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;

use serde::Serialize;

/// The target of events of log level `trace`, which have level debug in `tracing`. The trace level
/// of `tracing` is not compiled into release builds, because the libraries on the path of a request
/// have dozens of trace points, which cost time and memory even when they are disabled.
pub const TRACE: &str = "trace";

/// The target of events that are logged at every log level: a program has started, the leader, a
/// strategy or an authenticator has changed, or the recording of a session has started or ended.
/// Upstream logs only the start of a program in this way, with `plog.Always`. An administrator
/// needs these events when no log level was configured in advance.
pub const ALWAYS: &str = "always";

fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    // The hash keys are random.
    MARK.get_or_init(|| format!("\0json:{:016x}:", RandomState::new().hash_one(0)))
}

/// Returns a value for a field of a log event: `info!(service = json(&reference), "creating
/// service")`. Empty for a value that has no JSON form.
pub fn json<T: Serialize>(value: &T) -> String {
    match serde_json::to_string(value) {
        Ok(text) => format!("{}{text}", mark()),
        Err(_) => String::new(),
    }
}

/// Returns the JSON in a text that [`json`] made; `None` for every other text.
pub fn raw(text: &str) -> Option<&str> {
    text.strip_prefix(mark())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_from_json_are_recognized_as_json() {
        assert_eq!(raw(&json(&["a"])), Some(r#"["a"]"#));
        assert_eq!(raw("\0json:[\"a\"]"), None);
        assert_eq!(raw(""), None);
    }
}
