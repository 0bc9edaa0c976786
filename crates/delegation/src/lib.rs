//! `TLSCertificateDelegation`: the owner of a Secret allows other namespaces to serve it as a
//! certificate.
//!
//! [`api`] contains the types, [`grants`] the permission check. The Concierge and the gateway use
//! the same rules.

#![forbid(unsafe_code)]

pub mod api;
pub mod grants;
