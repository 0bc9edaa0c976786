//! What a request keeps until its last byte: a place among those in flight, and its line in the log.

use http::Method;

use super::in_flight::Place;

/// Held while a request is served, whichever way it ends.
#[derive(Debug)]
pub(super) struct RequestGuard {
    _place: Place,
    _log: Option<ServingLog>,
}

impl RequestGuard {
    pub(super) fn new(place: Place, url: &str, method: &Method, upgrade: bool) -> Self {
        let log = tracing::enabled!(tracing::Level::DEBUG).then(|| ServingLog::begin(url, method, upgrade));
        Self { _place: place, _log: log }
    }
}

#[derive(Debug)]
struct ServingLog {
    url: String,
    method: Method,
    upgrade: bool,
}

impl ServingLog {
    fn begin(url: &str, method: &Method, upgrade: bool) -> Self {
        tracing::debug!(url, %method, isUpgradeRequest = upgrade, "impersonation proxy servicing request");
        Self { url: url.to_owned(), method: method.clone(), upgrade }
    }
}

impl Drop for ServingLog {
    fn drop(&mut self) {
        let Self { url, method, upgrade } = self;
        tracing::debug!(url, %method, isUpgradeRequest = *upgrade, "impersonation proxy finished servicing request");
    }
}
