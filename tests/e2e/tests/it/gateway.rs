//! The installed gateway: our manifest unchanged, its program in two pods with exactly the
//! permissions of its ServiceAccount, real backends and real clients.
//!
//! The tests of delegated certificates are in `gateway_delegation`.

mod backend;
mod bad_input;
mod changes;
mod environment;
mod passthrough;
mod replicas;
mod shutdown;
mod termination;

/// Installs the gateway if it is not installed, and returns a namespace for one test. Returns
/// `None` and records a skip where this machine cannot run it.
pub(crate) async fn installed(test: &'static str) -> Option<String> {
    environment::shared(test).await.map(|environment| environment.namespace.clone())
}
