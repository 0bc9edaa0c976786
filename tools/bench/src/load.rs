//! The load: what the clients of a run do.
//!
//! It runs as a process of its own, so that its CPU time and its open files are not those of what is measured.

mod bytes;
mod connects;
mod gets;
mod holds;
mod lists;
mod result;
mod target;
mod tunnel;
mod watches;

pub(crate) use bytes::bytes;
pub(crate) use connects::connects;
pub(crate) use gets::{GetsOptions, gets};
pub(crate) use holds::holds;
pub(crate) use lists::lists;
pub(crate) use result::Outcome;
pub(crate) use target::{Protocol, Sender, Target};
pub(crate) use tunnel::{Direction, tunnel};
pub(crate) use watches::{Opened, WatchesOptions, watches};
