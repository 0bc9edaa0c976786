//! Tests of the controllers on a real API server.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod admission_report;
mod api_certs;
mod cert_agent;
mod certificate_signing_requests;
mod certificates;
mod events;
mod impersonator;
mod install;
mod lease;
mod log_lines;
