//! Images of real programs of this machine, looked at with a reader of our own.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod archive;
mod contents;
mod refusals;
mod support;
