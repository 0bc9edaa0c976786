//! Who is asking: webhook, TokenReview, certificates, front proxy.
//!
//! Two kinds of question are answered here:
//!
//! * *Whose token is in a TokenCredentialRequest?* The [`registry`] holds the authenticators that administrators
//!   configured; [`webhook`] is the kind that asks an HTTPS endpoint.
//! * *Who sends this HTTP request, and may they?* [`request::RequestAuthenticator`] walks front proxy, client
//!   certificate and bearer token in the order of a Kubernetes API server, with trust read from the cluster by
//!   [`cluster_auth_config`]; [`cluster`] asks the API server to review tokens and access.
//!
//! What this crate refuses to do: it never forwards a request, never writes to the cluster, and never turns a
//! failed review into a yes. Tokens live in [`Token`], which does not print itself, and caches are keyed by a keyed
//! hash of the token.

#![forbid(unsafe_code)]

pub mod bearer;
mod certificate;
pub mod cluster;
pub mod cluster_auth_config;
mod digest;
pub mod registry;
pub mod request;
mod request_header;
mod review;
pub mod token;
pub mod webhook;

pub use token::{Token, TokenSource};
