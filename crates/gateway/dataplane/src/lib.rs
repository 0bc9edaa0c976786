//! The data plane of the ingress gateway.
//!
//! [`start`] opens two ports, and [`Gateway::update`] replaces the routing table that they serve.
//! The crate `pinniped-gateway-routing` builds the table; this crate executes it:
//!
//! ```text
//! port 443 ── tls ── peek the server name ─┬─ passthrough ──► backend ──► relay, splice(2)
//!             client_hello, peek           ├─ TLS terminated, bytes ──► backend ──► relay
//!                                          └─ TLS terminated, HTTP ─┐   termination
//! port 80 ─── plain ────────────────────────────────────────────────┴─► http ──► backend
//! ```
//!
//! `pinniped-http-server` accepts client connections and implements limits, TLS and HTTP for them.
//! `pinniped-reverse-proxy` forwards requests to backends and returns their responses. The
//! impersonation proxy uses the same code. This crate has no dependency on Kubernetes: it watches
//! no objects and writes no status.
//!
//! Invariants: a client that names no configured host receives no certificate; a passed-through
//! connection arrives byte for byte; a table is replaced as a whole, which closes an open
//! connection only if the grant of its host or its client validation is gone; a claim of the client
//! in `x-forwarded-client-cert`, or under a name that backends treat as equal, never reaches a
//! backend. Linux only, because of `splice(2)`.

#![forbid(unsafe_code)]

mod active_table;
mod backend;
pub mod client_hello;
mod counts;
mod gateway;
mod http;
mod peek;
mod plain;
pub mod relay;
mod termination;
mod tls;

pub use counts::Counts;
pub use gateway::{Gateway, GatewayParams, GatewayStats, StartError, start};
pub use http::{RequestMetrics, Traces};
