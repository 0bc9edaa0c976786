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
