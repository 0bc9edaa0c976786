//! `TLSCertificateDelegation`: the owner of a Secret allows other namespaces to serve with it.
//!
//! [`api`] has the kinds, [`grants`] the decision. The Concierge and the gateway follow the same rules.

#![forbid(unsafe_code)]

pub mod api;
pub mod grants;
