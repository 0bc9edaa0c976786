//! Compares quantities such as `20m`, `32Mi` or `1e3` by value.

/// Returns the value in billionths, the smallest unit that Kubernetes supports. `None` if the text
/// is not a quantity or the value is too large.
pub(super) fn nanos(text: &str) -> Option<i128> {
    let (negative, rest) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let (tens, times) = scale(suffix)?;
    // The value is `digits * 10^exponent * times`, in billionths.
    let exponent = tens.checked_add(9)?.checked_sub(places)?;
    let scaled = digits.checked_mul(times)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let value = if exponent >= 0 {
        scaled.checked_mul(power)?
    } else {
        // Kubernetes rounds up smaller fractions.
        scaled / power + i128::from(scaled % power != 0)
    };
    Some(if negative { -value } else { value })
}

/// Returns power of ten and factor of a suffix.
fn scale(suffix: &str) -> Option<(i32, i128)> {
    let binary = |power: u32| Some((0, 1_i128 << (10 * power)));
    match suffix {
        "n" => Some((-9, 1)),
        "u" => Some((-6, 1)),
        "m" => Some((-3, 1)),
        "" => Some((0, 1)),
        "k" => Some((3, 1)),
        "M" => Some((6, 1)),
        "G" => Some((9, 1)),
        "T" => Some((12, 1)),
        "P" => Some((15, 1)),
        "E" => Some((18, 1)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => Some((suffix.strip_prefix(['e', 'E'])?.parse().ok()?, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_equal_in_any_notation() {
        let one = 1_000_000_000;
        let cases: [(&str, Option<i128>); 22] = [
            ("0", Some(0)),
            ("0m", Some(0)),
            ("1", Some(one)),
            ("1.0", Some(one)),
            ("+1000m", Some(one)),
            (".001k", Some(one)),
            ("1e0", Some(one)),
            ("10E-1", Some(one)),
            ("-1", Some(-one)),
            ("20m", Some(one / 50)),
            ("0.02", Some(one / 50)),
            ("32Mi", Some(33_554_432 * one)),
            ("33554432", Some(33_554_432 * one)),
            ("1.5Gi", Some(1_610_612_736 * one)),
            ("1.0000000001n", Some(2)),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("Mi", None),
            ("1 Mi", None),
            ("1e", None),
            ("1e99999999999", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(nanos(text), wanted, "{text:?}");
        }
        assert_eq!(nanos("99999999999999999999999999999999Ei"), None);
    }
}
