//! The log format of the server programs: one JSON object per line on stderr.
//!
//! [`log`] installs the format; [`value`] has values that a log line contains as JSON.

#![forbid(unsafe_code)]

pub mod log;
pub mod value;
