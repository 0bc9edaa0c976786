//! The program `pinniped-concierge`: configuration, the aggregated API, and the composition of the
//! parts ([`concierge`]).

#![forbid(unsafe_code)]

pub mod apiserver;
pub mod audit;
pub mod concierge;
pub mod config;
mod impersonation;
pub mod issuer;
mod owner;
pub mod token_client;
pub mod token_issuer;
#[cfg(test)]
mod unexpected_ends;
