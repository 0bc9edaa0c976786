//! The log lines of the server programs on stderr: JSON objects, or text.
//!
//! [`log`] installs the format; [`value`] has values that a log line contains as JSON; [`truncate`]
//! limits the length of texts.

#![forbid(unsafe_code)]

pub mod log;
pub mod truncate;
pub mod value;
