//! The shutdown of a server: the time from which new requests are refused.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::refusal::Refusal;

/// How long requests are still served after the shutdown has begun, because their clients may not
/// have been notified. A Kubernetes API server refuses such a request, which a client cannot
/// distinguish from a failure; here the request is served, and the connection closes after its
/// response.
const UNNOTIFIED: Duration = Duration::from_secs(2);

/// The start of the shutdown, set once. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Draining(Arc<OnceLock<Instant>>);

impl Draining {
    /// Starts the shutdown.
    pub fn begin(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Checks whether a request that arrived at `received` is served.
    ///
    /// # Errors
    /// [`Refusal::ShuttingDown`] once clients have been notified of the shutdown.
    pub(crate) fn check(&self, received: Instant) -> Result<(), Refusal> {
        match self.0.get() {
            Some(begun) if received.duration_since(*begun) > UNNOTIFIED => Err(Refusal::ShuttingDown),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_only_after_their_clients_have_been_notified() {
        let draining = Draining::default();
        let before = Instant::now();
        assert!(draining.check(before + Duration::from_secs(3600)).is_ok());
        draining.begin();
        assert!(draining.check(before).is_ok());
        assert!(draining.check(before + UNNOTIFIED).is_ok());
        let after = Instant::now();
        draining.begin();
        assert!(draining.check(after + UNNOTIFIED + Duration::from_millis(1)).is_err());
    }
}
