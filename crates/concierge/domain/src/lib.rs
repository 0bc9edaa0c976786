//! Decisions of the Concierge as pure functions: no clock, no I/O, no client. Times and names are
//! arguments.
//!
//! | module | decision |
//! |---|---|
//! | [`strategy`] | what runs for a `CredentialIssuer`, strategy by strategy |
//! | [`credential_issuer`] | the entries and conditions in the status of the `CredentialIssuer` |
//! | [`authenticator_status`] | the status of an authenticator |
//! | [`jwt_authenticator`] | whether the spec of a `JWTAuthenticator` is valid, and its conditions |
//! | [`endpoint`] | external endpoints and the URLs that are advertised |
//! | [`renewal`] | when a certificate is replaced |
//! | [`service_account_tokens`] | the objects that allow users to impersonate themselves |
//!
//! The controllers in `pinniped-concierge-controllers` observe the state of the cluster, call these
//! functions and apply the result.

#![forbid(unsafe_code)]

pub mod admission_report;
pub mod authenticator_status;
pub mod credential_issuer;
pub mod endpoint;
pub mod identity_digest;
pub mod jwt_authenticator;
pub mod renewal;
pub mod service_account_tokens;
pub mod status_text;
pub mod strategy;
