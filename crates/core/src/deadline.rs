//! How long a request may take that is not meant to last: what the server allows, less if the client says so.

use std::time::Duration;

use pinniped_api::gojson::quote;

use crate::request_info::first_query_value;

/// `longest`, or what the query parameter `timeout` names if that is shorter. Zero, and less, name nothing.
///
/// # Errors
/// The text of the 400 that API servers answer to what is no duration.
pub fn limit(query: Option<&str>, longest: Duration) -> Result<Duration, String> {
    let asked = query.and_then(|query| first_query_value(query, "timeout")).filter(|text| !text.is_empty());
    let Some(asked) = asked else { return Ok(longest) };
    match parse_go_duration(&asked) {
        Ok(nanos @ 1..) => Ok(longest.min(Duration::from_nanos(nanos.unsigned_abs()))),
        Ok(_) => Ok(longest),
        Err(error) => Err(format!("invalid timeout specified in the request URL - {error}")),
    }
}

/// Go's `time.ParseDuration`, in nanoseconds, with its error texts.
fn parse_go_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    // Go allows one more below zero than above; no timeout can tell.
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let whole_len = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, after) = rest.split_at(whole_len);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_len = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let nanos: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return Err(format!("time: missing unit in duration {}", quote(text))),
            _ => return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text))),
        };
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let part = parse_fraction(fraction, nanos);
        total = whole
            .checked_mul(nanos)
            .and_then(|n| n.checked_add(part))
            .and_then(|n| total.checked_add(n))
            .filter(|n| *n <= i64::MAX.unsigned_abs())
            .ok_or_else(invalid)?;
        rest = after;
    }
    let total = i64::try_from(total).map_err(|_| invalid())?;
    Ok(if negative { -total } else { total })
}

/// That fraction of a unit; digits which say less than a nanosecond do not matter.
fn parse_fraction(digits: &str, unit: u64) -> u64 {
    let mut scale = u128::from(unit);
    let mut total = 0u128;
    let mut divisor = 1u128;
    for digit in digits.bytes().take(18) {
        divisor *= 10;
        total = total * 10 + u128::from(digit - b'0');
    }
    scale *= total;
    u64::try_from(scale / divisor).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, wanted) in [
            ("1s", Ok(1_000_000_000)),
            ("1m30s", Ok(90_000_000_000)),
            ("1.5h", Ok(5_400_000_000_000)),
            (".5s", Ok(500_000_000)),
            ("5.s", Ok(5_000_000_000)),
            ("-2s", Ok(-2_000_000_000)),
            ("+3ms", Ok(3_000_000)),
            ("100µs", Ok(100_000)),
            ("7ns", Ok(7)),
            ("0", Ok(0)),
            ("0s", Ok(0)),
            ("abc", Err(r#"time: invalid duration "abc""#)),
            ("", Err(r#"time: invalid duration """#)),
            ("-", Err(r#"time: invalid duration "-""#)),
            (".s", Err(r#"time: invalid duration ".s""#)),
            ("5", Err(r#"time: missing unit in duration "5""#)),
            ("5x", Err(r#"time: unknown unit "x" in duration "5x""#)),
            ("99999999999999h", Err(r#"time: invalid duration "99999999999999h""#)),
            ("99999999999999999999s", Err(r#"time: invalid duration "99999999999999999999s""#)),
        ] {
            assert_eq!(parse_go_duration(text), wanted.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn the_client_can_only_shorten_the_deadline() {
        let millis = |query: Option<&str>| limit(query, Duration::from_secs(60)).unwrap().as_millis();
        assert_eq!(millis(None), 60_000);
        assert_eq!(millis(Some("timeout=")), 60_000);
        assert_eq!(millis(Some("a=b&timeout=10s")), 10_000);
        assert_eq!(millis(Some("timeout=0s")), 60_000);
        assert_eq!(millis(Some("timeout=-1s")), 60_000);
        assert_eq!(millis(Some("timeout=2m")), 60_000);
        assert_eq!(millis(Some("timeout=150ms")), 150);
    }
}
