//! The impersonation proxy: the data plane between a client's TLS connection and the API server.
//!
//! [`proxy`] is the handler chain in order; start reading there.
//!
//! Invariants: a client's `Impersonate-*` header fields are never forwarded unmodified; a review
//! that fails refuses the request; bodies are forwarded frame by frame and never collected; a token
//! is never logged.

#![forbid(unsafe_code)]

pub mod proxy;
