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
//! A guard against panics and plain error responses are functions in [`layers`]. [`tunnels`] counts
//! and closes the connections that left HTTP through an upgrade. Start reading in [`server`].
//!
//! Invariants: no task outlives its owner (a dropped [`ServerHandle`] closes all connections); the
//! accept loop does no work between two accepts; nothing here logs a header or a body.
//!
//! A server without TLS:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use http::{Request, Response};
//! use pinniped_http_server::{
//!     Connection, ConnectionError, Handler, Incoming, Limits, Listener, Peer, Shared, body,
//!     connection, serve_with,
//! };
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! use tokio::net::TcpStream;
//!
//! #[derive(Clone)]
//! struct Plain;
//!
//! impl Handler for Plain {
//!     async fn run(
//!         self,
//!         shared: Arc<Shared>,
//!         stream: TcpStream,
//!         peer: Peer,
//!     ) -> Result<(), ConnectionError> {
//!         let service = |_: &Arc<Connection>, _: Request<Incoming>| async {
//!             Response::new(body::full("it works"))
//!         };
//!         connection::http(&shared.limits, &shared.draining, service, stream, peer).await
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = Listener::bind("127.0.0.1:0".parse()?)?;
//! let server = serve_with(None, listener, Plain, Limits::default());
//!
//! let mut client = TcpStream::connect(server.local_addr()).await?;
//! client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
//! let mut response = String::new();
//! client.read_to_string(&mut response).await?;
//! assert!(response.ends_with("it works"));
//!
//! server.drain(Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod activity;
pub mod body_budget;
pub mod capacity;
mod coalescing;
pub mod connection;
mod date;
mod http2;
mod in_transit;
pub mod layers;
pub mod limits;
pub mod listener;
mod listeners;
pub mod platform;
mod read_limit;
mod request_id;
pub mod server;
mod service;

pub use capacity::{Capacity, CapacityParams, ConnectionPermit};
pub use connection::{Connection, ConnectionError, Peer};
pub use limits::{Limits, ResetLimits};
pub use listener::Listener;
pub use listeners::Listeners;
// The types in the signatures of a service and of the functions that serve it.
pub use pinniped_http_core::workers::{self, Workers};
pub use pinniped_http_core::{Body, BoxError, Incoming, body, interim, tunnels};
pub use request_id::random_id;
pub use server::{Handler, ServerHandle, Shared, Stats, serve, serve_on, serve_with};
pub use service::{ResponseFuture, Service};
