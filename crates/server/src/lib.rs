//! The server programs: the Concierge, the gateway and the local-user-authenticator.
//!
//! This crate is wiring. What a program does lies in the crates below it; here stand its configuration
//! ([`config`]), its log format ([`log`]), its aggregated API and the composition of it all ([`concierge`],
//! [`gateway`]).

pub mod apiserver;
pub mod audit;
mod complaint;
pub mod concierge;
pub mod config;
pub mod downward_api;
pub mod gateway;
mod impersonation;
pub mod in_cluster;
pub mod issuer;
pub mod local_user_authenticator;
pub mod log;
mod memory;
mod owner;
pub mod stop;
pub mod token_client;
pub mod token_issuer;
#[cfg(test)]
mod unexpected_ends;

pub use complaint::complaint;

/// Keeps the memory of a server out of files. A server that cannot do so runs on, and says it.
fn disable_core_dumps() {
    if let Err(error) = pinniped_http_server::process::disable_core_dumps() {
        tracing::warn!(%error, "could not disable core dumps");
    }
}
