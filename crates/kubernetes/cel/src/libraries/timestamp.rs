//! Points in time, from the year 1 to the year 9999.

use std::cmp::Ordering;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, date};

const MIN_SECONDS: i64 = -62_135_596_800;
const MAX_SECONDS: i64 = 253_402_300_799;
const NANOSECONDS: i64 = 1_000_000_000;
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

/// A point in time with the offset from UTC that its text had.
#[derive(Clone, Copy)]
pub(crate) struct Timestamp {
    seconds: i64,
    nanoseconds: u32,
    /// The offset in seconds.
    offset: i32,
}

/// Returns the time that is this many seconds after the beginning of 1970.
pub(crate) fn from_seconds(seconds: i64) -> Option<Timestamp> {
    Timestamp::new(seconds, 0, 0)
}

/// Parses a time as Go does for RFC 3339.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let digits = |range: std::ops::Range<usize>| -> Option<i32> {
        let part = text.get(range)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let bytes = text.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.into_iter().any(|(index, byte)| bytes.get(index) != Some(&byte)) {
        return None;
    }
    let small = |range| digits(range).and_then(|value| i8::try_from(value).ok());
    let day = Date::new(i16::try_from(digits(0..4)?).ok()?, small(5..7)?, small(8..10)?).ok()?;
    let (hour, minute, second) = (small(11..13)?, small(14..16)?, small(17..19)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let rest = text.get(19..)?;
    let fraction = rest.strip_prefix(['.', ',']);
    let length = fraction.map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    let (fraction, zone) = match fraction {
        Some(_) if length == 0 => return None,
        Some(rest) => rest.split_at(length),
        None => ("", rest),
    };
    let mut nanoseconds = 0;
    for index in 0..9 {
        let digit = fraction.as_bytes().get(index).map_or(0, |byte| u32::from(byte - b'0'));
        nanoseconds = nanoseconds * 10 + digit;
    }
    let offset = zone_offset(zone)?;
    let civil = day.at(hour, minute, second, 0);
    let seconds = civil.duration_since(EPOCH).as_secs() - i64::from(offset);
    Timestamp::new(seconds, nanoseconds, offset)
}

/// Parses `Z` or an offset such as `+01:00`, to seconds.
fn zone_offset(zone: &str) -> Option<i32> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, zone) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = zone.split_once(':')?;
    let number = |text: &str, most: i32| -> Option<i32> {
        let valid = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|value| valid && *value <= most)
    };
    Some(sign * (number(hours, 24)? * 3600 + number(minutes, 59)? * 60))
}

impl Timestamp {
    fn new(seconds: i64, nanoseconds: u32, offset: i32) -> Option<Self> {
        (MIN_SECONDS..=MAX_SECONDS).contains(&seconds).then_some(Self { seconds, nanoseconds, offset })
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanoseconds).cmp(&(other.seconds, other.nanoseconds))
    }

    /// Returns the seconds since the beginning of 1970.
    pub(crate) fn seconds(&self) -> i64 {
        self.seconds
    }

    /// Reports whether this is the first moment of the year 1, Go's zero time.
    pub(crate) fn is_zero(&self) -> bool {
        self.seconds == MIN_SECONDS && self.nanoseconds == 0
    }

    /// Returns the time that is this many nanoseconds later.
    pub(crate) fn add(&self, nanoseconds: i64) -> Option<Self> {
        let total = i64::from(self.nanoseconds) + nanoseconds.rem_euclid(NANOSECONDS);
        let seconds = self.seconds + nanoseconds.div_euclid(NANOSECONDS) + total.div_euclid(NANOSECONDS);
        let nanoseconds = u32::try_from(total.rem_euclid(NANOSECONDS)).ok()?;
        Self::new(seconds, nanoseconds, self.offset)
    }

    /// Returns the nanoseconds since an earlier time.
    pub(crate) fn since(&self, other: &Self) -> Option<i64> {
        let seconds = self.seconds.checked_sub(other.seconds)?;
        let nanoseconds = i64::from(self.nanoseconds) - i64::from(other.nanoseconds);
        seconds.checked_mul(NANOSECONDS)?.checked_add(nanoseconds)
    }

    /// Returns the date and the time of day at an offset from UTC.
    pub(crate) fn civil(&self, offset: i64) -> DateTime {
        let nanoseconds = i32::try_from(self.nanoseconds).unwrap_or(0);
        EPOCH.saturating_add(SignedDuration::new(self.seconds + offset, nanoseconds))
    }

    #[cfg(test)]
    pub(crate) fn in_utc(&self) -> Self {
        Self { offset: 0, ..*self }
    }

    /// Returns the text of RFC 3339 with the offset that the time was written with.
    pub(crate) fn text(&self) -> String {
        let civil = self.civil(i64::from(self.offset));
        let mut text = format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            civil.year(),
            civil.month(),
            civil.day(),
            civil.hour(),
            civil.minute(),
            civil.second()
        );
        if self.nanoseconds > 0 {
            let fraction = format!(".{:09}", self.nanoseconds);
            text.push_str(fraction.trim_end_matches('0'));
        }
        if self.offset == 0 {
            return text + "Z";
        }
        let minutes = self.offset.abs() / 60;
        let sign = if self.offset < 0 { '-' } else { '+' };
        text + &format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}
