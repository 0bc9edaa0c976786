//! Header fields of requests and responses that pass through a proxy.
//!
//! [`hop_by_hop`] removes hop-by-hop header fields (RFC 9110, section 7.6.1); [`precomputed`]
//! contains header fields that are serialized once and added to many requests.

#![forbid(unsafe_code)]

pub mod hop_by_hop;
pub mod precomputed;
