//! The expiry of the certificates that the gateway serves, as metrics.

use jiff::{SignedDuration, Timestamp};
use pinniped_gateway_metrics::{CERTIFICATE_EXPIRY, CERTIFICATES, REMAINING, REMAINING_LIMITS};
use pinniped_metrics::Metrics;

/// Registers the metrics of certificates that expire at these times. They are read for each scrape,
/// so that requests and new routing tables do no work for them.
pub(super) fn register(
    metrics: &Metrics,
    expiries: impl Fn() -> Vec<Timestamp> + Send + Sync + 'static,
    now: impl Fn() -> Timestamp + Send + Sync + 'static,
) {
    metrics.collect(move |samples| {
        let expiries = expiries();
        if let Some(first) = expiries.iter().min() {
            let first = u64::try_from(first.as_second()).unwrap_or_default();
            samples.push(&CERTIFICATE_EXPIRY, [], first);
        }
        for ((remaining, _), count) in REMAINING.iter().zip(by_remaining_time(&expiries, now())) {
            samples.push(&CERTIFICATES, [remaining], count);
        }
    });
}

/// Returns the number of certificates for each value of [`REMAINING`].
fn by_remaining_time(expiries: &[Timestamp], now: Timestamp) -> [u64; REMAINING.len()] {
    let mut counts = [0; REMAINING.len()];
    for expiry in expiries {
        let remaining = expiry.duration_since(now);
        let is_within = |limit| SignedDuration::try_from(limit).is_ok_and(|limit| remaining <= limit);
        let at = REMAINING_LIMITS.into_iter().position(is_within);
        counts[at.unwrap_or(REMAINING.len() - 1)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn certificates_are_counted_by_the_time_until_they_expire() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let metrics = Metrics::new();
        let expiries = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&expiries);
        register(&metrics, move || read.lock().unwrap().clone(), move || now);
        let lines = || {
            let text = metrics.text().unwrap();
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let counts = |expired: u64, day: u64, three_days: u64, longer: u64| {
            let values = [("expired", expired), ("day", day), ("three_days", three_days), ("longer", longer)]
                .into_iter();
            values
                .map(|(value, count)| {
                    format!("pinniped_gateway_certificates{{remaining=\"{value}\"}} {count}")
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(), counts(0, 0, 0, 0), "no certificate, no expiry");

        let after = |hours: i64| now + SignedDuration::from_hours(hours);
        let second = SignedDuration::from_secs(1);
        *expiries.lock().unwrap() = vec![
            after(8000),
            after(72) + second,
            after(72),
            after(24) + second,
            after(24),
            now + second,
            now,
            after(-8000),
        ];
        let first = after(-8000).as_second();
        let expiry = format!("pinniped_gateway_certificate_expiry_timestamp_seconds {first}");
        assert_eq!(lines(), [vec![expiry], counts(2, 2, 2, 2)].concat());
    }
}
