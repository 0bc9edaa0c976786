//! An HTTPS server with limits, workers and graceful shutdown.
//!
//! [`serve()`] takes a bound [`Listener`], a TLS configuration and a [`Service`], and returns a
//! [`ServerHandle`]. The crate implements all protection that a server on a hostile network needs:
//! handshake, header and idle timeouts, limits on headers, streams and connections, handling of
//! accept errors, and graceful shutdown.
//!
//! ```text
//! Listener -> accept loop -> one task per connection -> TLS -> HTTP/2 or HTTP/1.1 -> your service
//!             server.rs      connection.rs                     (by ALPN only)
//! ```
//!
//! The crate is not a framework: it has no routing, and it applies no layer that you do not call.
//! The parts that every service needs (security headers, audit identifiers, a guard against panics)
//! are plain functions in [`layers`]. [`tunnels`] counts and closes the connections that left HTTP
//! through an upgrade. Start reading in [`server`].
//!
//! Invariants: no task outlives its owner (a dropped [`ServerHandle`] closes all connections); the
//! accept loop does no work between two accepts; nothing here logs a header or a body.

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
