//! A reverse proxy for one request: it forwards the request and streams the response back.
//!
//! ```text
//! forward    the request to the server, the response back as it arrives
//! answer     the response body: its deadline, and the value that is kept until its last byte
//! upgrade    requests that leave HTTP, and the bytes that follow
//! ```
//!
//! The crate makes no decision. Authentication, authorization and the error responses are the caller's. A value of a
//! type of the caller, the *hold*, lives as long as the exchange, and a moment longer if the client cancelled the request before the
//! server had finished.
//!
//! Invariants: bodies are passed on frame by frame and never collected; hop-by-hop header fields of a response are removed; no
//! header and no body is logged; credentials are header fields of single requests, never state of a pooled connection.

#![forbid(unsafe_code)]

mod answer;
mod forward;
mod upgrade;

pub use answer::{Idle, Pace};
pub use forward::{Carrier, ForwardError, Span, bearer, forward, relay};
pub use upgrade::{Wanted, upgrade};
