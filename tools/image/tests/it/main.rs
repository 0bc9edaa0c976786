//! Builds images of real programs of this machine and reads them back with an independent reader.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod archive;
mod contents;
mod index;
mod refusals;
mod support;
