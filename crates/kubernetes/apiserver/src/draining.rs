//! The shutdown of a server: the time from which new requests are refused.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pinniped_kube_request::request_info::RequestInfo;
use tokio::time::Instant;

use crate::refusal::Refusal;

/// How long requests are still served after the shutdown has begun, because their clients may not
/// have been notified. A Kubernetes API server refuses such a request, which a client cannot
/// distinguish from a failure; here the request is served, and the connection closes after its
/// response.
const UNNOTIFIED: Duration = Duration::from_secs(2);

/// The prefixes of the paths that are served during the shutdown.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];

/// The start of the shutdown, set once. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Draining(Arc<OnceLock<Instant>>);

impl Draining {
    /// Starts the shutdown.
    pub fn begin(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Checks whether a request that arrived at `received` is served. Health checks and metrics
    /// are, until the connection closes.
    ///
    /// # Errors
    /// [`Refusal::ShuttingDown`] once clients have been notified of the shutdown.
    pub(crate) fn check(&self, received: Instant, info: &RequestInfo) -> Result<(), Refusal> {
        match self.0.get() {
            Some(begun) if received.duration_since(*begun) > UNNOTIFIED && !is_exempt(info) => {
                Err(Refusal::ShuttingDown)
            }
            _ => Ok(()),
        }
    }
}

/// Returns whether an API server serves the request during its shutdown, too.
fn is_exempt(info: &RequestInfo) -> bool {
    EXEMPT.iter().any(|prefix| info.path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;

    fn info(path: &'static str) -> RequestInfo {
        RequestInfo::parse(&Method::GET, &Uri::from_static(path)).unwrap()
    }

    #[test]
    fn requests_are_refused_only_after_their_clients_have_been_notified() {
        let (draining, pods) = (Draining::default(), info("/api/v1/pods"));
        let before = Instant::now();
        assert!(draining.check(before + Duration::from_secs(3600), &pods).is_ok());
        draining.begin();
        assert!(draining.check(before, &pods).is_ok());
        assert!(draining.check(before + UNNOTIFIED, &pods).is_ok());
        let after = Instant::now();
        draining.begin();
        let late = after + UNNOTIFIED + Duration::from_millis(1);
        assert!(draining.check(late, &pods).is_err());
        assert!(draining.check(late, &info("/healthzone/api")).is_ok(), "a prefix, as in the API server");
        for path in ["/readyz?verbose", "/livez/ping", "/healthz", "/metrics"] {
            assert!(draining.check(late, &info(path)).is_ok(), "{path}");
        }
    }
}
