//! Controllers of the Concierge: they observe, let `pinniped-concierge-domain` decide, and apply.
//!
//! Every replica runs every controller. Reads come from shared watch caches
//! (`pinniped_controller::watch`). Writes go through a `pinniped_controller::client::Writer`, which
//! refuses while this pod does not hold the Lease. A refused write is not an error: the leader
//! applies it, the result arrives through a watch, and the controller runs again.
//!
//! [`controllers`] composes all controllers and is the place to start; [`impersonator`] is the
//! largest one.
//!
//! This crate makes no decisions: whether something runs, the content of objects and the renewal of
//! certificates are pure functions in `pinniped-concierge-domain`.

#![forbid(unsafe_code)]

pub mod admission_report;
pub mod api_certs;
pub mod api_server_address;
pub mod authenticators;
pub mod certificate_signing_requests;
pub mod context;
pub mod controllers;
pub mod credential_issuer;
pub mod delegated_secret;
pub mod impersonator;
pub mod kube_cert_agent;
pub mod legacy_cleanup;
pub mod service_account_tokens;
