//! Tests of the gateway with real sockets and real TLS.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod changes;
mod curl;
mod hosts;
mod listen;
mod metrics;
mod passthrough;
mod requests;
mod revoked;
mod routes;
mod termination;
mod traces;
mod upgrades;
mod world;
