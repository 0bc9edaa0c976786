//! The buckets of native histograms.
//!
//! Each power of two is divided into eight buckets, so a bound is 9 % larger than the one before.
//! The format has no bounds, only the schema and the numbers of the buckets: bucket `i` has the
//! values above 2^((i-1)/8) up to 2^(i/8).

/// The schema: 2^3 buckets for each power of two.
pub(crate) const SCHEMA: i32 = 3;
const PER_POWER: i32 = 1 << SCHEMA;
/// The exponent of the smallest bound, 61 µs. Smaller values are in the bucket of zero.
const FIRST_EXPONENT: i32 = -14;
/// The exponent of the largest bound, 512 s. The last bucket contains larger values, too.
const LAST_EXPONENT: i32 = 9;
/// The number of buckets, including that of zero.
pub(crate) const BUCKETS: usize = 1 + ((LAST_EXPONENT - FIRST_EXPONENT) * PER_POWER) as usize;
/// The largest value in the bucket of zero.
pub(crate) const ZERO_THRESHOLD: f64 = 1.0 / (1 << -FIRST_EXPONENT) as f64;

/// The bounds between 1 and 2 without 2: 2^(i/8).
#[expect(clippy::approx_constant, reason = "a list of powers, of which one is the square root of 2")]
const BOUNDS: [f64; PER_POWER as usize] = [
    1.0,
    1.0905077326652577,
    1.189207115002721,
    1.2968395546510096,
    1.4142135623730951,
    1.5422108254079407,
    1.681792830507429,
    1.8340080864093424,
];

const MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS - 1;
const MANTISSA: u64 = (1 << MANTISSA_BITS) - 1;
const EXPONENT_BIAS: i32 = 1023;

/// Returns the position of the bucket for a duration in nanoseconds. Position 0 is the bucket of
/// zero.
#[inline]
pub(crate) fn position(nanoseconds: u64) -> usize {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds <= ZERO_THRESHOLD {
        return 0;
    }
    let bits = seconds.to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i32 - EXPONENT_BIAS;
    let mantissa = f64::from_bits(bits & MANTISSA | (EXPONENT_BIAS as u64) << MANTISSA_BITS);
    let within = BOUNDS.partition_point(|bound| *bound < mantissa);
    let before = (exponent - FIRST_EXPONENT) * PER_POWER;
    (before as usize + within).min(BUCKETS - 1)
}

/// Consecutive buckets that are not empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The number of empty buckets before it; for the first span, the number of its first bucket.
    pub(crate) offset: i32,
    /// The counts.
    pub(crate) counts: Vec<u64>,
}

/// Returns the buckets that are not empty, except for the bucket of zero.
pub(crate) fn spans(buckets: &[u64]) -> Vec<Span> {
    let mut spans = Vec::<Span>::new();
    // The number in the format of the bucket that would follow the last span.
    let mut next = 0;
    for (position, count) in buckets.iter().enumerate().skip(1).filter(|(_, count)| **count > 0) {
        let number = FIRST_EXPONENT * PER_POWER + i32::try_from(position).unwrap_or(i32::MAX);
        match spans.last_mut() {
            Some(span) if number == next => span.counts.push(*count),
            _ => spans.push(Span { offset: number - next, counts: vec![*count] }),
        }
        next = number + 1;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the upper bound of the bucket at a position.
    fn upper(position: usize) -> f64 {
        2f64.powf(f64::from(FIRST_EXPONENT) + position as f64 / f64::from(PER_POWER))
    }

    #[test]
    fn a_duration_is_in_the_bucket_with_its_bounds() {
        let mut nanoseconds = 1.0f64;
        while nanoseconds < 600e9 {
            let whole = nanoseconds as u64;
            let (at, seconds) = (position(whole), whole as f64 / 1e9);
            assert!(at == BUCKETS - 1 || seconds <= upper(at) * (1.0 + 1e-12), "{seconds} in {at}");
            assert!(at == 0 || seconds > upper(at - 1) * (1.0 - 1e-12), "{seconds} in {at}");
            nanoseconds *= 1.003;
        }
    }

    #[test]
    fn bounds_belong_to_the_bucket_below_and_extremes_to_the_first_and_the_last() {
        let second = (-FIRST_EXPONENT * PER_POWER) as usize;
        for (nanoseconds, expected) in [
            (0, 0),
            (61_035, 0),
            (61_036, 1),
            (1_000_000_000, second),
            (1_000_000_001, second + 1),
            (512_000_000_000, BUCKETS - 1),
            (u64::MAX, BUCKETS - 1),
        ] {
            assert_eq!(position(nanoseconds), expected, "{nanoseconds}");
        }
    }

    #[test]
    fn spans_skip_empty_buckets() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(spans(&buckets), []);
        // The bucket of zero is not part of a span.
        (buckets[0], buckets[1], buckets[2], buckets[112]) = (9, 1, 2, 3);
        let expected = [Span { offset: -111, counts: vec![1, 2] }, Span { offset: 109, counts: vec![3] }];
        assert_eq!(spans(&buckets), expected);
    }
}
