//! The Kubernetes APIs of the Concierge: the types on the wire.
//!
//! | module | kinds |
//! |---|---|
//! | [`config`] | `CredentialIssuer` |
//! | [`authentication`] | `WebhookAuthenticator`, `JWTAuthenticator` |
//! | [`login`] | `TokenCredentialRequest` |
//! | [`identity`] | `WhoAmIRequest` |
//!
//! [`names`] has every label, annotation and well-known name. The kinds can be used with `kube::Api` through a
//! [`GroupSuffix`](pinniped_kube_types::suffix::GroupSuffix), because the API groups of an installation may end in something
//! other than `pinniped.dev`.

#![forbid(unsafe_code)]

pub mod authentication;
pub mod config;
pub mod identity;
pub mod login;
pub mod names;
