//! Tests of the crate with a scripted provider, over real TLS.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot continue must fail immediately")]

mod connections;
mod discovery;
mod keys;
mod provider;
mod redirects;
