//! The log format of the server programs: one JSON object a line on stderr.
//!
//! [`log`] installs the format; [`value`] holds values that a log line shows as JSON.

#![forbid(unsafe_code)]

pub mod log;
pub mod value;
