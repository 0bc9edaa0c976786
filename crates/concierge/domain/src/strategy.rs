//! Decides what runs for a `CredentialIssuer` and what its status contains.
//!
//! [`impersonator::decide`] is the central function: it turns an observation into a list of steps
//! and a status decision. It uses [`spec`] (validation of the spec), [`certificate_names`] (names
//! in a serving certificate), [`service`] (the wanted Services), [`external`] (externally provided
//! certificates) and [`validation`] (whether such a certificate works for clients). [`cert_agent`]
//! decides about the other strategy, and [`status`] merges the entries of both into the list.

pub mod cert_agent;
pub mod certificate_names;
pub mod external;
pub mod impersonator;
pub mod service;
pub mod spec;
pub mod status;
pub mod validation;
