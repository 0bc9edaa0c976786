//! Service account tokens with impersonation, on a real API server.
//!
//! [`place`] has a Concierge of three replicas with the strategy on, for tests that leave it so; each has users of its
//! own. Users are whatever the test says: its webhook reads them from the token.

mod bad_input;
mod collection;
mod constrained;
mod demo;
pub(crate) mod environment;
mod exchange;
mod exec_headers;
mod howto;
mod kubeconfig;
mod objects;
mod proxy;
mod webhook;
mod wrapper;
