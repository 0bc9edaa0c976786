//! Text formats of Go's standard library and of the YAML library of Kubernetes, byte for byte.
//!
//! Clients and users of a drop-in replacement for a Go program see these formats: in response bodies, status
//! messages, log lines, kubeconfigs and error texts. Each module names the Go package that it follows.
//!
//! This crate formats and parses. It does no I/O and knows no Kubernetes object.

#![forbid(unsafe_code)]

pub mod base64;
pub mod duration;
pub mod json;
pub mod network;
pub mod url;
pub mod yaml;
