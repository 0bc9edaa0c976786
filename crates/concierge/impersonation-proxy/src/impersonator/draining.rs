//! That the proxy stops, for those who have to know.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

/// A client that sends a request has not heard of the stop until this has passed. Upstream refuses such a request,
/// which a client cannot tell from a failure; here it is served, and the connection ends with its answer.
const UNHEARD: Duration = Duration::from_secs(2);

/// Set once. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Draining(Arc<OnceLock<Instant>>);

impl Draining {
    pub(super) fn begin(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Whether requests that arrive at `now` are refused.
    pub(super) fn refuses(&self, now: Instant) -> bool {
        self.0.get().is_some_and(|at| now.duration_since(*at) > UNHEARD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_only_when_their_clients_must_have_heard_of_the_stop() {
        let draining = Draining::default();
        let before = Instant::now();
        assert!(!draining.refuses(before + Duration::from_secs(3600)));
        draining.begin();
        assert!(!draining.refuses(before));
        assert!(!draining.refuses(before + UNHEARD));
        let after = Instant::now();
        draining.begin();
        assert!(draining.refuses(after + UNHEARD + Duration::from_millis(1)));
    }
}
