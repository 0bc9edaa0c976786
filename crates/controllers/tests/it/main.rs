//! The controllers against a real API server.

mod api_certs;
mod cert_agent;
mod impersonator;
mod install;
mod lease;
