//! The load: the clients of a run.
//!
//! It runs in a separate process, so that its CPU time and open files are not attributed to the
//! measured programs.

mod bytes;
mod connects;
mod gets;
mod idle_connections;
mod lists;
mod result;
mod target;
mod tunnel;
mod watches;

pub(crate) use bytes::bytes;
pub(crate) use connects::connects;
pub(crate) use gets::{GetsOptions, gets};
pub(crate) use idle_connections::holds;
pub(crate) use lists::lists;
pub(crate) use result::LoadResult;
pub(crate) use target::{Protocol, Sender, Target};
pub(crate) use tunnel::{Direction, tunnel};
pub(crate) use watches::{Opened, WatchesOptions, watches};
