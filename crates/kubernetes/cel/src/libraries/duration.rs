//! Spans of time: their text forms.

use pinniped_go_compat::duration::GoDuration;

/// Parses a duration such as `1h30m` to nanoseconds.
pub(crate) fn parse(text: &str) -> Option<i64> {
    GoDuration::parse(text).ok().map(GoDuration::nanoseconds)
}

/// Returns the seconds of a duration, such as `90.5s`.
pub(crate) fn text(nanoseconds: i64) -> String {
    format!("{}s", seconds(nanoseconds))
}

fn seconds(nanoseconds: i64) -> f64 {
    (nanoseconds / 1_000_000_000) as f64 + (nanoseconds % 1_000_000_000) as f64 / 1e9
}
