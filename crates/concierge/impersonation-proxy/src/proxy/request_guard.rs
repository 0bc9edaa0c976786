//! The resources of a request until its last byte: a permit, the log line of its end, and the audit
//! of an upgraded connection.

use std::sync::Arc;

use http::Method;

use pinniped_apiserver::audit::RequestAudit;
use pinniped_apiserver::in_flight::InFlightPermit;
use pinniped_reverse_proxy::{Direction, Guard};

use super::metrics::ByteCounts;

/// The values that a request holds until its end.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) permit: Option<InFlightPermit>,
    pub(super) audit: Option<Arc<RequestAudit>>,
    pub(super) bytes: ByteCounts,
}

/// Lives as long as a request is served, with any result.
#[derive(Debug)]
pub(super) struct RequestGuard {
    _permit: Option<InFlightPermit>,
    _audit: Option<Arc<RequestAudit>>,
    /// Boxed because it is large, and used only at level `debug`.
    _log: Option<Box<ServingLog>>,
    bytes: ByteCounts,
}

impl RequestGuard {
    pub(super) fn new(held: Held, url: &str, method: &Method, upgrade: bool) -> Self {
        let log = tracing::enabled!(tracing::Level::DEBUG)
            .then(|| Box::new(ServingLog::begin(url, method, upgrade)));
        let Held { permit, audit, bytes } = held;
        Self { _permit: permit, _audit: audit, _log: log, bytes }
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
