//! Service account tokens with impersonation, on a real API server.
//!
//! [`environment`] has a Concierge of three replicas with the strategy enabled, for tests that
//! leave it enabled; each test has its own users. The webhook of these tests reads the user from
//! the token, so a test chooses any user.

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
pub(crate) mod webhook;
mod wrapper;
