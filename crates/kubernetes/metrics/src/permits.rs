//! Metrics of permits, which limit the work of one kind that is in progress, and its queue.

use pinniped_fair_semaphore::FairSemaphore;
use pinniped_metrics::{Definition, Label, LabelValue, Metrics};

/// Logins.
pub const LOGINS: &str = "logins";
/// CertificateSigningRequests of logins.
pub const CERTIFICATE_SIGNING_REQUESTS: &str = "certificate_signing_requests";
/// SubjectAccessReviews.
pub const ACCESS_REVIEWS: &str = "access_reviews";
/// TokenReviews of new tokens.
pub const TOKEN_REVIEWS: &str = "token_reviews";
/// TokenReviews of tokens that were accepted before.
pub const KNOWN_TOKEN_REVIEWS: &str = "known_token_reviews";

/// Values of the label `permits`.
pub const PERMITS: &[LabelValue] = &[
    (LOGINS, "Logins; one that finds no permit is refused"),
    (CERTIFICATE_SIGNING_REQUESTS, "Open CertificateSigningRequests of logins; logins wait for them"),
    (ACCESS_REVIEWS, "SubjectAccessReviews; requests wait for them"),
    (TOKEN_REVIEWS, "TokenReviews of tokens that were not accepted before; requests wait for them"),
    (KNOWN_TOKEN_REVIEWS, "TokenReviews of tokens that were accepted within the last hour"),
];

const BY_PERMITS: Label = Label::of("permits", PERMITS);

/// Permits in use.
pub static IN_USE: Definition =
    Definition::gauge("pinniped_permits_in_use", "Permits that are in use").by(&[BY_PERMITS]);

/// The numbers of permits.
pub static LIMIT: Definition =
    Definition::gauge("pinniped_permits_limit", "Maximum number of permits in use").by(&[BY_PERMITS]);

/// Requests that wait.
pub static WAITING: Definition =
    Definition::gauge("pinniped_permits_waiting", "Requests that wait for a permit").by(&[BY_PERMITS]);

/// The lengths of the queues.
pub static WAITING_LIMIT: Definition =
    Definition::gauge("pinniped_permits_waiting_limit", "Maximum number of requests that wait for a permit")
        .by(&[BY_PERMITS]);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&IN_USE, &LIMIT, &WAITING, &WAITING_LIMIT];

/// Exports the use of these permits; `name` is one of [`PERMITS`].
pub fn register(metrics: &Metrics, name: &'static str, permits: &FairSemaphore) {
    let permits = permits.clone();
    metrics.collect(move |samples| {
        let usage = permits.usage();
        for (family, value) in [
            (&IN_USE, usage.in_use),
            (&LIMIT, usage.limit),
            (&WAITING, usage.waiting),
            (&WAITING_LIMIT, usage.waiting_limit),
        ] {
            samples.push(family, [name], value as u64);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_in_use_and_requests_that_wait_are_exported_with_their_limits() {
        let (metrics, permits) = (Metrics::new(), FairSemaphore::new(4, 2));
        register(&metrics, LOGINS, &permits);
        register(&metrics, ACCESS_REVIEWS, &FairSemaphore::new(1, 0));
        let used: Vec<_> = (0..3).filter_map(|_| permits.try_acquire(&["a"])).collect();
        let _waits = permits.enqueue(&["a"]).unwrap();
        let text = metrics.text().unwrap();
        for line in [
            "pinniped_permits_in_use{permits=\"logins\"} 3",
            "pinniped_permits_limit{permits=\"logins\"} 4",
            "pinniped_permits_waiting{permits=\"logins\"} 1",
            "pinniped_permits_waiting_limit{permits=\"logins\"} 2",
            "pinniped_permits_in_use{permits=\"access_reviews\"} 0",
            "pinniped_permits_limit{permits=\"access_reviews\"} 1",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
        }
        drop(used);
        assert!(metrics.text().unwrap().contains("pinniped_permits_waiting{permits=\"logins\"} 0\n"));
    }
}
