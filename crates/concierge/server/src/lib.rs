//! The program `pinniped-concierge`: configuration, the aggregated API, and the composition of the
//! parts ([`concierge`]).

#![forbid(unsafe_code)]

pub mod apiserver;
pub mod audit;
mod certificate_metrics;
pub mod client_cert_issuer;
pub mod concierge;
pub mod config;
mod impersonation;
mod owner;
pub mod token_client;
pub mod token_issuer;
#[cfg(test)]
mod unexpected_ends;
