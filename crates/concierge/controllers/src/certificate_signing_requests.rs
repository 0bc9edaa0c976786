//! Client certificates that the cluster's own signer signs: whether they are in use, and the
//! requests for them.
//!
//! ```text
//! controller   spec, status, probe -> the switch, the strategy's entry, orphaned requests
//! switch       whether the logins of this replica get such certificates
//! sweep        deletes orphaned requests
//! signing      create, approve, wait, verify, delete: the request of one login or of a probe
//! ```
//!
//! Every replica signs, so every replica follows the entry in the status; only the leader probes,
//! writes the entry and deletes orphaned requests. The decisions are in
//! `pinniped_concierge_domain::strategy::certificate_signing_requests`.

mod controller;
mod signing;
mod sweep;
mod switch;

pub use controller::{CertificateSigningRequestController, CertificateSigningRequestParams};
pub use signing::{SigningClient, SigningError};
pub use switch::SigningSwitch;
