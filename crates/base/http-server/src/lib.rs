//! An HTTPS server that cannot be held wrong.
//!
//! [`serve()`] takes a bound [`Listener`], a TLS configuration and a [`Service`], and gives back a
//! [`ServerHandle`]. Everything that a server on a hostile network needs is done here once: handshake, header
//! and idle timeouts, limits on headers, streams and connections, accept errors, orderly stop. Both servers of
//! this project stand on it, the aggregated API and the impersonation proxy.
//!
//! ```text
//! Listener -> accept loop -> one task a connection -> TLS -> HTTP/2 or HTTP/1.1 -> your service
//!             server.rs      connection.rs                   (by ALPN only)
//! ```
//!
//! It refuses to be a framework: there is no routing, and no layer is applied behind your back. The parts that
//! every service wants (security headers, audit identifiers, a guard against panics) are plain functions in
//! [`layers`]; `Status` bodies in the encoding that the client asked for are made in [`respond`]; connections
//! that left HTTP through an upgrade are counted and ended by [`tunnels`].
//!
//! Invariants: no task outlives its owner (a dropped [`ServerHandle`] ends all connections); no work is done
//! between two accepts; nothing here logs a header or a body.

#![forbid(unsafe_code)]

mod activity;
pub mod body;
pub mod capacity;
pub mod connection;
mod cork;
mod date;
mod delivery;
mod http2;
mod incoming;
mod intake;
pub mod layers;
pub mod limits;
pub mod listener;
pub mod metrics;
pub mod process;
pub mod server;
mod service;
pub mod silence;
mod single;
pub mod tunnels;
pub mod workers;

pub use body::{Body, BoxError};
pub use capacity::{Capacity, CapacityParams, ConnectionPermit};
pub use connection::{Connection, ConnectionError, Peer};
pub use delivery::{EndBy, interim};
pub use incoming::{Incoming, StreamBody};
pub use limits::{Limits, ResetLimits};
pub use listener::Listener;
pub use server::{Handler, ServerHandle, Shared, Stats, serve, serve_on, serve_with};
pub use service::{Answer, Service};
pub use single::Single;
pub use workers::Workers;
