//! Tests of the support crate: the control plane works, and nothing remains after the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod control_plane;
mod guardian;
mod identity_provider;
mod log_events;
mod world;
