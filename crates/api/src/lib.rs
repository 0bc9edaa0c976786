//! Wire types of the Concierge APIs: serde in, serde out.
//!
//! This crate knows what Pinniped's objects look like and what they are called, and nothing else: no sockets, no clock,
//! no decisions. The kinds can be used with [`kube::Api`] through a [`suffix::GroupSuffix`], because the API groups of
//! an installation may end in something other than `pinniped.dev`:
//!
//! | module | kinds |
//! |---|---|
//! | [`config`] | `CredentialIssuer` |
//! | [`authentication`] | `WebhookAuthenticator`, `JWTAuthenticator` |
//! | [`login`] | `TokenCredentialRequest` |
//! | [`identity`] | `WhoAmIRequest` |
//! | [`delegation`] | `TLSCertificateDelegation`, which is Contour's |
//! | [`gateway`] | `HTTPProxy` and `IngressRoute`, which are Contour's, too |
//! | [`partial`] | `Pod`, `Node` and `Deployment`, as far as they are looked at |
//! | [`client_auth`] | `ExecCredential`, what kubectl and its plugins exchange |
//! | [`status`] | `metav1.Status`, as JSON and as Kubernetes protobuf |
//!
//! Start reading at [`config`]; [`names`] lists every label, annotation and well-known name once; [`gojson`] holds the
//! two text forms in which Go differs from Rust and which clients can see, [`goduration`], [`gourl`] and
//! [`goyaml`] what Go reads or writes in its own way.
#![forbid(unsafe_code)]

pub mod authentication;
pub mod client_auth;
pub mod condition;
pub mod config;
pub mod delegation;
pub mod gateway;
pub mod gobase64;
pub mod goduration;
pub mod gojson;
pub mod gourl;
pub mod goyaml;
pub mod identity;
pub mod log_value;
pub mod login;
pub mod names;
pub mod partial;
mod resource;
pub mod secret;
pub mod status;
pub mod suffix;

pub use secret::SecretString;
