//! Header fields of requests and responses that pass through a proxy.
//!
//! [`hop`] removes hop-by-hop header fields (RFC 9110, section 7.6.1); [`ready`] holds header fields that are precomputed because
//! they are added to many requests.

#![forbid(unsafe_code)]

pub mod hop;
pub mod ready;
