//! A reverse proxy for one request: it forwards the request and streams the response back.
//!
//! ```text
//! forward    the request to the upstream, and the response back as it arrives
//! response   the response body: its deadline, and the request guard that lives until its last byte
//! upgrade    requests that leave HTTP, and the bytes that follow
//! ```
//!
//! The crate makes no decision. Authentication, authorization and the error responses are the
//! caller's. A value of a type of the caller, the *request guard*, lives as long as the exchange,
//! and for a short time longer if the client cancels the request before the server has finished.
//! Start reading in [`forward()`].
//!
//! Invariants: bodies are forwarded frame by frame and never collected; hop-by-hop header fields of
//! a response are removed; no header and no body is logged; credentials are header fields of single
//! requests, never state of a pooled connection.

#![forbid(unsafe_code)]

mod forward;
mod response;
mod upgrade;

pub use forward::{ForwardError, ProtocolPolicy, ResponseDeadline, bearer, forward, relay};
pub use response::{Idle, Pace};
pub use upgrade::{Wanted, upgrade};
