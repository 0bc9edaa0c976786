//! The impersonation proxy: a data plane from a client's TLS connection to the API server.
//!
//! [`impersonator`] is the stack, in order, and the page to read first.
//!
//! Invariants: a client's `Impersonate-*` header fields are never forwarded as they came; a review that fails ends the
//! request; bodies are passed on frame by frame and never collected; a token is never logged.

#![forbid(unsafe_code)]

pub mod impersonator;
