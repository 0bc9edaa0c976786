//! Values that a log line shows as JSON rather than as text, and its lowest level.
//!
//! A field of a log event is a number, a flag or a text. Lists and references are handed over as text that begins with
//! a mark, which the log output takes off. The mark differs from process to process, so that no text of a client can
//! pretend to be one of these values.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;

use serde::Serialize;

/// The target of events that belong to log level `trace`, and are of level debug for `tracing`. Its own level of that name
/// is left out of release programs: the libraries on a request's way have dozens of trace points, which cost time and room
/// even when nobody listens.
pub const TRACE: &str = "pinniped::trace";

fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    // The keys of the hash are random.
    MARK.get_or_init(|| format!("\0json:{:016x}:", RandomState::new().hash_one(0)))
}

/// A value for a field of a log event: `info!(service = json(&reference), "creating service")`. Empty for a value that
/// has no JSON form.
pub fn json<T: Serialize>(value: &T) -> String {
    match serde_json::to_string(value) {
        Ok(text) => format!("{}{text}", mark()),
        Err(_) => String::new(),
    }
}

/// The JSON in a text that [`json`] made; `None` for every other text.
pub fn raw(text: &str) -> Option<&str> {
    text.strip_prefix(mark())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_here_is_shown_as_json() {
        assert_eq!(raw(&json(&["a"])), Some(r#"["a"]"#));
        assert_eq!(raw("\0json:[\"a\"]"), None);
        assert_eq!(raw(""), None);
    }
}
