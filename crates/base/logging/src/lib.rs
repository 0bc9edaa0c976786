//! The log format of the server programs: one JSON object per line on stderr.
//!
//! [`log`] installs the format; [`value`] has values that a log line contains as JSON; [`truncate`]
//! limits the length of texts.

#![forbid(unsafe_code)]

pub mod log;
pub mod truncate;
pub mod value;
