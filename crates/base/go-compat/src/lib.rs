//! Text formats of Go's standard library and of a YAML library for Go, byte for byte.
//!
//! Clients and users of a drop-in replacement for a Go program see these formats: in response
//! bodies, status messages, log lines, configuration files and error texts. The documentation of
//! each module names the Go package that it follows.
//!
//! This crate formats and parses. It does no I/O.
//!
//! ```
//! use pinniped_go_compat::duration::GoDuration;
//! use pinniped_go_compat::json;
//!
//! assert_eq!(GoDuration::parse("1h2m").unwrap().to_std().as_secs(), 3720);
//! let error = GoDuration::parse("1 h").unwrap_err();
//! assert_eq!(error.to_string(), r#"time: unknown unit " h" in duration "1 h""#);
//! assert_eq!(json::to_string("<a>"), r#""\u003ca\u003e""#);
//! ```

#![forbid(unsafe_code)]

pub mod base64;
pub mod duration;
pub mod io;
pub mod json;
#[cfg(feature = "tls")]
pub mod network;
pub mod time;
pub mod url;
pub mod yaml;
