//! The parts of a Kubernetes API server that every server with its semantics needs.
//!
//! [`respond`] negotiates the encoding of a `Status` and writes it; [`health`] serves `/healthz`,
//! `/livez` and `/readyz`.

#![forbid(unsafe_code)]

pub mod health;
pub mod respond;
