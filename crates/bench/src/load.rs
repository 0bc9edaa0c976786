//! The load: what the clients of a run do.
//!
//! It runs as a process of its own, so that its CPU time and its open files are not those of what is measured.

mod gets;
mod target;
mod watches;

pub(crate) use gets::{Outcome, gets};
pub(crate) use target::{Protocol, Target};
pub(crate) use watches::watches;
