//! The resources of a request until its last byte: a permit and the log line of its end.

use http::Method;

use pinniped_apiserver::in_flight::InFlightPermit;
use pinniped_reverse_proxy::{Direction, Guard};

use super::metrics::ByteCounts;

/// Lives as long as a request is served, with any result.
#[derive(Debug)]
pub(super) struct RequestGuard {
    _permit: Option<InFlightPermit>,
    _log: Option<ServingLog>,
    bytes: ByteCounts,
}

impl RequestGuard {
    pub(super) fn new(
        permit: Option<InFlightPermit>,
        bytes: ByteCounts,
        url: &str,
        method: &Method,
        upgrade: bool,
    ) -> Self {
        let log = tracing::enabled!(tracing::Level::DEBUG).then(|| ServingLog::begin(url, method, upgrade));
        Self { _permit: permit, _log: log, bytes }
    }
}

impl Guard for RequestGuard {
    fn transferred(&self, direction: Direction, bytes: u64) {
        self.bytes.add(direction, bytes);
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
