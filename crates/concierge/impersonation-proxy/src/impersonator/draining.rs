//! Broadcasts that the proxy is shutting down.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

/// How long requests are still served after the shutdown has begun, because their clients may not
/// have been notified. Upstream refuses such a request, which a client cannot distinguish from a
/// failure; here the request is served, and the connection closes after its response.
const UNHEARD: Duration = Duration::from_secs(2);

/// The start of the shutdown, set once. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Draining(Arc<OnceLock<Instant>>);

impl Draining {
    pub(super) fn begin(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Returns whether requests that arrive at `now` are refused.
    pub(super) fn refuses(&self, now: Instant) -> bool {
        self.0.get().is_some_and(|at| now.duration_since(*at) > UNHEARD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_only_after_their_clients_have_been_notified() {
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
