//! The surroundings of a server program in a pod: the API server's address, the pod's metadata, signals, memory.

#![forbid(unsafe_code)]

pub mod complaint;
pub mod downward_api;
pub mod in_cluster;
pub mod memory;
pub mod stop;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use complaint::complaint;

/// Keeps the memory of a server out of files. A server that cannot do so runs on and logs a warning.
pub fn disable_core_dumps() {
    if let Err(error) = pinniped_http_server::process::disable_core_dumps() {
        tracing::warn!(%error, "could not disable core dumps");
    }
}
