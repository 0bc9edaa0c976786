//! The program `pinniped-concierge`: configuration, the aggregated API, and the composition of the
//! parts ([`concierge`]). The file of the program is `pinniped-server`, which runs [`main`].

#![forbid(unsafe_code)]

pub mod apiserver;
pub mod audit;
mod certificate_metrics;
pub mod client_cert_issuer;
mod command_line;
pub mod concierge;
pub mod config;
pub mod debug_state;
mod impersonation;
mod owner;
mod start_line;
pub mod token_client;
pub mod token_issuer;
pub mod traces;
#[cfg(test)]
mod unexpected_ends;

pub use command_line::main;
