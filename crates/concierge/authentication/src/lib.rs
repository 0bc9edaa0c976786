//! Authenticators of the Concierge: each takes a token and returns the user to whom the token
//! belongs.
//!
//! [`registry`] holds the authenticators that administrators configured. [`webhook`] implements the
//! kind that sends a TokenReview to an HTTPS endpoint, and [`jwt`] the kind that verifies JSON Web
//! Tokens with the keys of their issuer. The controllers in `pinniped-concierge-controllers` fill
//! the registry and write the statuses.

#![forbid(unsafe_code)]

pub mod jwt;
pub mod registry;
pub mod webhook;

/// Returns the user agent for requests to issuers and webhooks.
fn user_agent() -> http::HeaderValue {
    // A version with other characters cannot be sent.
    http::HeaderValue::try_from(format!("pinniped-rs/{}", pinniped_version::VERSION))
        .unwrap_or(http::HeaderValue::from_static("pinniped-rs"))
}
