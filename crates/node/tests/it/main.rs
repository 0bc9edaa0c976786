//! The node itself, for real.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod walkthrough;
