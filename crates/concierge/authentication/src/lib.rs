//! Authenticators of the Concierge: each takes a token and returns the user that the token belongs to.
//!
//! The [`registry`] holds the authenticators that administrators configured; [`webhook`] is the kind that sends a TokenReview to
//! an HTTPS endpoint.

#![forbid(unsafe_code)]

pub mod registry;
pub mod webhook;
