//! The server programs: the Concierge and the local-user-authenticator.
//!
//! This crate is wiring. What a program does lies in the crates below it; here stand its configuration
//! ([`config`]), its log format ([`log`]), its aggregated API and the composition of it all ([`concierge`]).

pub mod config;
pub mod downward_api;
pub mod log;
