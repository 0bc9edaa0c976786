//! The Kubernetes APIs of the Concierge: the wire types.
//!
//! | module | kinds |
//! |---|---|
//! | [`config`] | `CredentialIssuer` |
//! | [`authentication`] | `WebhookAuthenticator`, `JWTAuthenticator` |
//! | [`login`] | `TokenCredentialRequest` |
//! | [`identity`] | `WhoAmIRequest` |
//!
//! [`names`] has every label, annotation and well-known name. Use the kinds with `kube::Api`
//! through a [`GroupSuffix`](pinniped_kube_types::suffix::GroupSuffix), because the API groups of
//! an installation may end in a suffix other than `pinniped.dev`.
//!
//! This crate makes no decisions: `pinniped-concierge-domain` validates specs and decides statuses.

#![forbid(unsafe_code)]

pub mod authentication;
pub mod config;
pub mod identity;
pub mod login;
pub mod names;
