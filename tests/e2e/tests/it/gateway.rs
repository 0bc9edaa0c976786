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
