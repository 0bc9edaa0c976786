//! Controllers: observe, decide in `pinniped-concierge-domain`, apply.
//!
//! Every replica runs every controller. Reads come from shared watch caches ([`watch`]); writes go through a
//! [`client::Writer`], which refuses while this pod does not hold the Lease ([`lease`]). A refused write is not an
//! error: the leader does it, the result arrives by watch, and the controller looks again ([`runtime`]).
//!
//! Start reading at [`controllers`], which composes everything of the Concierge; [`impersonator`] is the biggest one. The
//! gateway's are in [`gateway`].
//!
//! What this crate refuses to be: a place for decisions. What should run, what an object should look like and when a
//! certificate is due are pure functions in `pinniped-concierge-domain`.

#![forbid(unsafe_code)]

pub mod api_certs;
pub mod authenticator_cleanup;
pub mod cert_agent;
pub mod cleanup;
pub mod context;
pub mod controllers;
pub mod credential_issuer;
pub mod delegated_secret;
pub mod impersonator;
pub mod service_account_tokens;
pub mod tls_source;
pub mod webhook_authenticator;
