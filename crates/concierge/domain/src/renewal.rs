//! Decides when a certificate is replaced. All lifetimes and renewal thresholds of certificates
//! that the Concierge issues are here.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Default lifetime of the aggregated API's CA and serving certificate: 365 days.
pub const API_SERVING_LIFETIME_SECONDS: i64 = 365 * 24 * 60 * 60;

/// Default age at which they are replaced: 270 days.
pub const API_SERVING_RENEW_BEFORE_SECONDS: i64 = 270 * 24 * 60 * 60;

/// Lifetime of the CA that signs the impersonation proxy's client certificates.
pub const SIGNER_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time before the expiration of that CA at which it is replaced.
pub const SIGNER_OVERLAP: Duration = Duration::from_secs(60 * 60);

/// Lifetime of the impersonation proxy's generated CA and serving certificate. It is long because
/// the CA is in users' kubeconfigs and is not renewed.
pub const GENERATED_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Fraction of its lifetime after which the impersonation proxy's generated serving certificate is
/// replaced. Relevant only for lifetimes shorter than [`GENERATED_LIFETIME`].
const GENERATED_RENEWAL_FRACTION: f64 = 2.0 / 3.0;

/// Returns the age at which a generated serving certificate with this validity is replaced.
pub fn generated_renew_before(not_before: Timestamp, not_after: Timestamp) -> Duration {
    let lifetime = Duration::try_from(not_after.duration_since(not_before)).unwrap_or_default();
    lifetime.mul_f64(GENERATED_RENEWAL_FRACTION)
}

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
