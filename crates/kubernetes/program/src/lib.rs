//! The environment of a server program in a pod: the API server's address, the pod's metadata,
//! signals, memory, metrics, traces.

#![forbid(unsafe_code)]

pub mod downward_api;
pub mod flag_error;
pub mod in_cluster;
pub mod memory;
pub mod metrics;
pub mod stop;
#[cfg(feature = "test-util")]
pub mod test_util;
pub mod traces;

pub use flag_error::flag_error;

/// Disables core dumps, so that secrets in memory are never written to a file. A server that cannot
/// disable them logs a warning and continues.
pub fn disable_core_dumps() {
    if let Err(error) = pinniped_http_server::platform::disable_core_dumps() {
        tracing::warn!(%error, "could not disable core dumps");
    }
}
