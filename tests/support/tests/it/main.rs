//! The support crate proves itself: the control plane works, and nothing is left behind.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod control_plane;
mod guardian;
mod world;
