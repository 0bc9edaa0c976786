//! Text formats of Go's standard library and of a YAML library for Go, byte for byte.
//!
//! Clients and users of a drop-in replacement for a Go program see these formats: in response
//! bodies, status messages, log lines, configuration files and error texts. The documentation of
//! each module names the Go package that it follows.
//!
//! This crate formats and parses. It does no I/O.

#![forbid(unsafe_code)]

pub mod base64;
pub mod duration;
pub mod io;
pub mod json;
#[cfg(feature = "tls")]
pub mod network;
pub mod url;
pub mod yaml;
