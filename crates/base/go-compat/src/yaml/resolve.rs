//! The types other than string to which `go.yaml.in/yaml/v2` resolves an unquoted scalar.

/// Returns whether `text`, unquoted, would be null, a bool, a number or a time.
pub(super) fn is_no_string(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return true };
    match first {
        'y' | 'Y' | 'n' | 'N' | 't' | 'T' | 'f' | 'F' | 'o' | 'O' | '~' => is_word(text),
        '.' => is_word(text) || text.parse::<f64>().is_ok(),
        '0'..='9' | '+' | '-' => is_word(text) || is_time(text) || is_number(text) || is_sexagesimal(text),
        _ => false,
    }
}

fn is_word(text: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "yes", "true", "on", "n", "no", "false", "off", "null"];
    const FLOATS: [&str; 12] = [
        ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF",
    ];
    // Lower case, upper case, or capitalized.
    let is_one_case = |text: &str| {
        let rest = text.get(1..).unwrap_or_default();
        rest.bytes().all(|byte| byte.is_ascii_lowercase())
            || text.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    text == "~"
        || FLOATS.contains(&text)
        || is_one_case(text) && WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

fn is_number(text: &str) -> bool {
    let plain = text.replace('_', "");
    is_integer(&plain) || is_float(&plain)
}

/// Returns whether Go's `strconv.ParseInt` or `ParseUint` with base 0 accepts the text; decimal
/// numbers that are too large are floats.
fn is_integer(text: &str) -> bool {
    let (sign, digits) = match text.as_bytes().first() {
        Some(sign @ (b'-' | b'+')) => (Some(*sign), &text[1..]),
        _ => (None, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        _ => match lower.strip_prefix('0') {
            Some(octal) if !octal.is_empty() => (8, octal),
            _ => (10, lower.as_str()),
        },
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return false;
    }
    // Only a number without a sign may be larger than an i64.
    match (u64::from_str_radix(digits, radix), sign) {
        (Ok(number), Some(b'-')) => number <= 1 << 63,
        (Ok(number), Some(_)) => number < 1 << 63,
        (Ok(_), None) => true,
        (Err(_), _) => false,
    }
}

/// Matches `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn is_float(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = |text| str::strip_prefix(text, ['-', '+']).unwrap_or(text);
    let text = unsigned(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let is_mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => is_digits(fraction),
        Some((whole, fraction)) => is_digits(whole) && (fraction.is_empty() || is_digits(fraction)),
        None => is_digits(mantissa),
    };
    is_mantissa && exponent.is_none_or(|exponent| is_digits(unsigned(exponent)))
}

/// Returns whether the text is a number with base 60 in YAML 1.1, such as `1:30` or `12:30:45.5`.
/// These are quoted although the library no longer parses them.
fn is_sexagesimal(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default();
    let mut rest: Vec<&str> = parts.collect();
    let Some(last) = rest.last_mut() else { return false };
    if let Some((whole, fraction)) = last.split_once('.') {
        if !fraction.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
            return false;
        }
        *last = whole;
    }
    let is_sixtieth = |part: &&str| match part.as_bytes() {
        [digit] => digit.is_ascii_digit(),
        [tens, digit] => (b'0'..=b'5').contains(tens) && digit.is_ascii_digit(),
        _ => false,
    };
    first.starts_with(|c: char| c.is_ascii_digit())
        && first.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
        && rest.iter().all(is_sixtieth)
}

/// Returns whether the text is a date, or a date and a time, in the formats that the Go library
/// accepts.
fn is_time(text: &str) -> bool {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts[..] else { return false };
    let (Some(month), Some(day)) = (short(month), short(day)) else { return false };
    let year = match year.len() {
        4 if year.bytes().all(|byte| byte.is_ascii_digit()) => year.parse::<u32>().unwrap_or_default(),
        _ => return false,
    };
    let days = match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day) && time.is_none_or(|time| is_clock(time, text.contains(' ')))
}

/// Parses a number of one or two digits.
fn short(text: &str) -> Option<u32> {
    match text.as_bytes() {
        [a] | [_, a] if a.is_ascii_digit() && text.as_bytes()[0].is_ascii_digit() => text.parse().ok(),
        _ => None,
    }
}

/// Returns whether the text is a time such as `15:4:5.9`; after a `T` with a zone, after a space
/// without.
fn is_clock(text: &str, spaced: bool) -> bool {
    let clock = match text.find(['Z', '+', '-']) {
        Some(at) if !spaced && is_zone(&text[at..]) => &text[..at],
        None if spaced => text,
        _ => return false,
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = parts[..] else { return false };
    let below = |text: &str, end: u32| short(text).is_some_and(|number| number < end);
    below(hour, 24)
        && below(minute, 60)
        && below(second, 60)
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_zone(text: &str) -> bool {
    match text.as_bytes() {
        b"Z" => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].into_iter().all(u8::is_ascii_digit),
        _ => false,
    }
}
