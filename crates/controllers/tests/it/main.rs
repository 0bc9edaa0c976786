//! The controllers against a real API server.

mod api_certs;
mod impersonator;
mod install;
mod lease;
