//! Decides what runs for each strategy of a `CredentialIssuer`.
//!
//! [`impersonator::decide`] is the central function: it turns an observation into a list of steps
//! and a status. It uses [`spec`] (validation of the spec), [`certificate_names`] (names in a
//! serving certificate), [`service`] (the wanted Services), [`external_certificate`] (externally
//! provided certificates) and [`certificate_validation`] (whether such a certificate works for
//! clients). [`kube_cert_agent`] decides about the cluster's signing key, and
//! [`certificate_signing_requests`] about certificates that the cluster's own signer signs.
//! [`api_server_address`] has the address for clients of strategies without a proxy.
//! [`crate::credential_issuer`] merges the results of all strategies into one status.

pub mod api_server_address;
pub mod certificate_names;
pub mod certificate_signing_requests;
pub mod certificate_validation;
pub mod external_certificate;
pub mod impersonator;
pub mod kube_cert_agent;
pub mod service;
pub mod spec;
