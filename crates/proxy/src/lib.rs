//! The impersonation proxy: a data plane from a client's TLS connection to the API server.
//!
//! [`impersonator`] is the stack, in order, and the page to read first; [`upstream`] is the way to the API server, which
//! reviews and watches of the rest of the process share. What any proxy would do is in [`pinniped_forward`].
//!
//! Invariants: a client's `Impersonate-*` headers are never forwarded as they came; a review that cannot be asked
//! ends the request; bodies are passed on frame by frame and never collected; a token is never logged.

#![forbid(unsafe_code)]

pub mod impersonator;
pub mod upstream;
