//! The ingress gateway's data plane.
//!
//! [`start`] opens two ports; [`Gateway::update`] says what they serve, as often as it changes. What that is was
//! decided in `pinniped-gateway-routing`, whose table is carried out here:
//!
//! ```text
//! port 443 ── tls ── peek the server name ─┬─ passthrough ──► backend ──► relay, splice(2)
//!             hello, peek                  ├─ TLS ends here, bytes inside ──► backend ──► relay
//!                                          └─ TLS ends here, requests inside ─┐   termination
//! port 80 ─── plain ──────────────────────────────────────────────────────────┴─► http ──► backend
//! ```
//!
//! Accepting, limits, TLS and HTTP of the client's side are `pinniped-http-server`'s; requests to backends and their answers
//! are `pinniped-reverse-proxy`'s: the same code as the impersonation proxy's. This crate refuses to know Kubernetes: it
//! watches nothing and writes no status.
//!
//! Invariants: no certificate is shown to who names no host of ours; a passed-through connection arrives byte for byte;
//! a table is replaced as a whole, and no connection is cut by that unless what it rests on is gone: the grant of its
//! host, or what its client had to show; what a client claims about itself in `x-forwarded-client-cert`, or under a name
//! that backends read as that, never reaches one. Linux only, for `splice(2)`.

#![forbid(unsafe_code)]

mod backend;
pub mod client_hello;
mod counts;
mod gateway;
mod http;
mod live;
mod peek;
mod plain;
pub mod relay;
mod termination;
mod tls;

pub use counts::Counts;
pub use gateway::{Gateway, GatewayParams, Readings, StartError, start};
