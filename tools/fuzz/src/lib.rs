//! What the fuzz targets check: each module has a `check` that takes the fuzzer's bytes and panics where an invariant
//! does not hold. Not to crash is the least of them.
//!
//! Inputs are text where they can be (a request line, header lines), so that seeds and dictionaries can be read.

pub mod answer;
pub mod authorization;
pub mod certificate;
pub mod hello;
pub mod hop;
pub mod impersonate;
pub mod input;
pub mod request_info;
pub mod spdy;
pub mod status;
pub mod status_protobuf;
