//! Durations in Go's notation: `1h2m3.5s`.
//!
//! Programs written in Go parse command line flags and the query parameter `timeout` with
//! `time.ParseDuration`, and users and tests see its error texts. Therefore the parsing, the
//! rounding and the texts are those of Go.

use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

/// A duration with Go's range: nanoseconds, may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanos: i64,
}

/// A text that is not a duration, reported like `time.ParseDuration`. The fields are in the quotes
/// of Go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is not a number with a unit, or the duration is out of range.
    #[error("time: invalid duration {0}")]
    Invalid(String),
    /// A number has no unit.
    #[error("time: missing unit in duration {0}")]
    MissingUnit(String),
    /// A number has a unit that Go does not know.
    #[error("time: unknown unit {unit} in duration {duration}")]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        duration: String,
    },
}

const NANOSECOND: u64 = 1;
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// One more than the longest duration; with a minus sign it is valid.
const LIMIT: u64 = 1 << 63;

impl GoDuration {
    /// Parses a duration such as `1h2m3.5s`.
    ///
    /// # Errors
    ///
    /// Returns the texts of Go's `time.ParseDuration`.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        Self::parse_bytes(text.as_bytes())
    }

    /// Parses a duration like [`GoDuration::parse`], from text that may not be UTF-8.
    ///
    /// # Errors
    ///
    /// Returns the texts of Go's `time.ParseDuration`.
    pub fn parse_bytes(text: &[u8]) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(quote(text));
        let (negative, mut rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest == b"0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (whole, after) = split_where(rest, |byte| !byte.is_ascii_digit());
            // Go checks the number before the unit.
            let number = whole.iter().try_fold(0, |n, digit| append_digit(n, *digit)).ok_or_else(invalid)?;
            let (fraction, after) = match after {
                [b'.', after @ ..] => split_where(after, |byte| !byte.is_ascii_digit()),
                after => (&[][..], after),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let (name, after) = split_where(after, |byte| byte == b'.' || byte.is_ascii_digit());
            if name.is_empty() {
                return Err(DurationError::MissingUnit(quote(text)));
            }
            let Some(unit) = unit(name) else {
                return Err(DurationError::UnknownUnit { unit: quote(name), duration: quote(text) });
            };
            total = Some(number)
                .filter(|number| *number <= LIMIT / unit)
                .and_then(|number| (number * unit).checked_add(fraction_of(fraction, unit)))
                .and_then(|nanos| total.checked_add(nanos))
                .filter(|total| *total <= LIMIT)
                .ok_or_else(invalid)?;
            rest = after;
        }
        let nanos = match (negative, i64::try_from(total)) {
            (true, Ok(nanos)) => -nanos,
            (true, Err(_)) => i64::MIN,
            (false, nanos) => nanos.map_err(|_| invalid())?,
        };
        Ok(Self { nanos })
    }

    /// Returns the duration, or zero if it is negative.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos).unwrap_or(0))
    }

    /// Returns the duration in nanoseconds.
    pub fn nanoseconds(self) -> i64 {
        self.nanos
    }

    /// Returns whether the duration is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

fn split_where(bytes: &[u8], ends: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().position(|byte| ends(*byte)).unwrap_or(bytes.len()))
}

fn unit(name: &[u8]) -> Option<u64> {
    // Both the micro sign and the Greek letter are used.
    Some(match std::str::from_utf8(name).ok()? {
        "ns" => NANOSECOND,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3600 * SECOND,
        _ => return None,
    })
}

/// Returns `number` with one more digit appended, unless it then exceeds the longest duration in
/// nanoseconds.
fn append_digit(number: u64, digit: u8) -> Option<u64> {
    let number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    (number <= LIMIT).then_some(number)
}

/// Returns `unit` times `0.<digits>`, with the same floating point arithmetic as Go.
fn fraction_of(digits: &[u8], unit: u64) -> u64 {
    let (mut number, mut scale) = (0_u64, 1_f64);
    for digit in digits {
        // Digits that do not fit are too small to matter.
        match append_digit(number, *digit) {
            Some(longer) if number <= (LIMIT - 1) / 10 => number = longer,
            _ => break,
        }
        scale *= 10.0;
    }
    (number as f64 * (unit as f64 / scale)) as u64
}

/// Quotes text like Go's `time` package, which differs from `%q`: each byte that is not printable
/// ASCII becomes `\xNN`.
fn quote(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=0x7f => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
    out
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self { nanos: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX) }
    }
}

/// Formats the duration as Go does, for example `1h2m3.5s`, `250ms`, `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.nanos.unsigned_abs();
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        if nanos == 0 {
            return f.write_str("0s");
        }
        let (unit, name) = match nanos {
            0..MICROSECOND => (NANOSECOND, "ns"),
            MICROSECOND..MILLISECOND => (MICROSECOND, "µs"),
            MILLISECOND..SECOND => (MILLISECOND, "ms"),
            _ => (SECOND, "s"),
        };
        let mut whole = nanos / unit;
        if unit == SECOND {
            if whole >= 3600 {
                write!(f, "{}h", whole / 3600)?;
            }
            if whole >= 60 {
                write!(f, "{}m", whole / 60 % 60)?;
            }
            whole %= 60;
        }
        write!(f, "{whole}")?;
        let part = nanos % unit;
        if part > 0 {
            let width = unit.ilog10() as usize;
            let digits = format!("{part:0width$}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_printed_as_in_go() {
        for (text, nanos, printed) in [
            ("10m", 600_000_000_000, "10m0s"),
            ("1h2m3s", 3_723_000_000_000, "1h2m3s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("250ms", 250_000_000, "250ms"),
            ("1us", 1_000, "1µs"),
            ("100\u{b5}s", 100_000, "100µs"),
            ("100\u{3bc}s", 100_000, "100µs"),
            ("7ns", 7, "7ns"),
            ("90m", 5_400_000_000_000, "1h30m0s"),
            ("0", 0, "0s"),
            ("-0", 0, "0s"),
            ("0s", 0, "0s"),
            ("-2s", -2_000_000_000, "-2s"),
            ("+3ms", 3_000_000, "3ms"),
            (".5s", 500_000_000, "500ms"),
            ("5.s", 5_000_000_000, "5s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            // Neither digits that do not fit nor their rounding may cause a difference.
            ("0.3333333333333333333h", 1_200_000_000_000, "20m0s"),
            ("0.9223372036854775807h", 3_320_413_933_267, "55m20.413933267s"),
            ("0.100000000000000000000h", 360_000_000_000, "6m0s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let parsed = GoDuration::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((parsed.nanos, parsed.to_string()), (nanos, printed.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_durations_have_the_error_texts_of_go() {
        for (text, error) in [
            ("xyz", r#"time: invalid duration "xyz""#),
            ("", r#"time: invalid duration """#),
            ("-", r#"time: invalid duration "-""#),
            (".s", r#"time: invalid duration ".s""#),
            ("1s-2s", r#"time: unknown unit "s-" in duration "1s-2s""#),
            ("5", r#"time: missing unit in duration "5""#),
            ("5y", r#"time: unknown unit "y" in duration "5y""#),
            ("99999999999h", r#"time: invalid duration "99999999999h""#),
            ("99999999999999999999x", r#"time: invalid duration "99999999999999999999x""#),
            ("9223372036854775808ns", r#"time: invalid duration "9223372036854775808ns""#),
            ("-9223372036854775809ns", r#"time: invalid duration "-9223372036854775809ns""#),
            // The quoting differs from that of `%q`.
            (
                "1\té\"\\\u{7f}",
                "time: unknown unit \"\\x09\\xc3\\xa9\\\"\\\\\u{7f}\" in duration \"1\\x09\\xc3\\xa9\\\"\\\\\u{7f}\"",
            ),
        ] {
            assert_eq!(GoDuration::parse(text).unwrap_err().to_string(), error, "{text}");
        }
        let error = GoDuration::parse_bytes(b"\xff").unwrap_err();
        assert_eq!(error.to_string(), r#"time: invalid duration "\xff""#);
    }
}
