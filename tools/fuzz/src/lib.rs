//! The checks of the fuzz targets: each module has a function `check` that takes the fuzzer's bytes
//! and panics where an invariant does not hold. The absence of crashes is only one of the
//! invariants.
//!
//! Inputs are text where possible (a request line, header lines), so that seeds and dictionaries
//! are readable.

pub mod authorization;
pub mod cel;
pub mod certificate;
pub mod client_hello;
pub mod envelope;
pub mod hop_by_hop;
pub mod http1_response;
pub mod impersonate;
pub mod input;
pub mod jwks;
pub mod jwt;
pub mod login_callback;
pub mod request_body;
pub mod request_info;
pub mod session;
pub mod spdy;
pub mod status;
pub mod status_protobuf;

#[cfg(test)]
mod seeds;
