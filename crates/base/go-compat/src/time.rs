//! The text of a point in time as Go's `fmt` prints a `time.Time` in UTC.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Returns the text of Go's `Time.String` in UTC: `2026-11-24 15:05:24.5 +0000 UTC`. Go would add
/// the reading of the monotonic clock, which means nothing to a reader.
///
/// ```
/// use pinniped_go_compat::time::format;
///
/// assert_eq!(format("2026-11-24T15:05:24.500Z".parse().unwrap()), "2026-11-24 15:05:24.5 +0000 UTC");
/// ```
pub fn format(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_have_no_trailing_zeros() {
        for (time, expected) in [
            ("2026-11-24T15:05:24Z", "2026-11-24 15:05:24 +0000 UTC"),
            ("2026-11-24T15:05:24.000000001Z", "2026-11-24 15:05:24.000000001 +0000 UTC"),
            ("0001-01-01T00:00:00Z", "0001-01-01 00:00:00 +0000 UTC"),
        ] {
            assert_eq!(format(time.parse().unwrap()), expected);
        }
    }
}
