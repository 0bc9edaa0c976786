//! The log lines of the server programs on stderr: JSON objects, or text.
//!
//! [`log`] installs the format; [`value`] has values that a log line contains as JSON, and the
//! target of events that are always logged; [`truncate`] limits the length of texts, and
//! [`repetitions`] the number of lines about an error that repeats.

#![forbid(unsafe_code)]

pub mod log;
pub mod repetitions;
pub mod truncate;
pub mod value;
