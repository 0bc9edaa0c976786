//! Decides when a certificate is replaced.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Returns whether a certificate must be replaced at `now`: its age has reached `renew_before`, or
/// it has expired. As in upstream, `renew_before` counts from the start of the certificate's
/// validity, not from the end.
pub fn due(not_before: Timestamp, not_after: Timestamp, renew_before: Duration, now: Timestamp) -> bool {
    now >= due_at(not_before, renew_before) || now > not_after
}

/// Returns the time after `now` at which [`due`] becomes true; zero if it is already true.
pub fn due_in(
    not_before: Timestamp,
    not_after: Timestamp,
    renew_before: Duration,
    now: Timestamp,
) -> Duration {
    let expired = not_after.saturating_add(SignedDuration::from_nanos(1)).unwrap_or(Timestamp::MAX);
    let at = due_at(not_before, renew_before).min(expired);
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn due_at(not_before: Timestamp, renew_before: Duration) -> Timestamp {
    not_before.saturating_add(renew_before).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_due_by_age_or_when_it_has_expired() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let cases = [
            ("young", 99, false, 1),
            ("old enough", 100, true, 0),
            ("older", 150, true, 0),
            ("not valid yet", -50, false, 150),
        ];
        for (case, now, wanted, wait) in cases {
            assert_eq!(due(at(0), at(1000), Duration::from_secs(100), at(now)), wanted, "{case}");
            let wait = Duration::from_secs(wait);
            assert_eq!(due_in(at(0), at(1000), Duration::from_secs(100), at(now)), wait, "{case}");
        }
    }

    #[test]
    fn an_expired_certificate_is_due_whatever_its_age() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert!(!due(at(0), at(10), Duration::from_secs(100), at(10)));
        assert!(due(at(0), at(10), Duration::from_secs(100), at(11)));
        assert!(due_in(at(0), at(10), Duration::from_secs(100), at(0)) < Duration::from_secs(11));
    }
}
