//! Delegated authentication and authorization, as in an aggregated API server.
//!
//! [`request::RequestAuthenticator`] tries front proxy, client certificate and bearer token in the
//! order of a Kubernetes API server, with the trust that [`cluster_auth_config`] reads from the
//! cluster. [`reviews`] sends TokenReviews and SubjectAccessReviews to the API server;
//! [`review_call`] contains the parts that these share with calls to webhooks.
//!
//! The crate never forwards a request, never writes to the cluster, and never turns a failed review
//! into a positive result. Caches are keyed by a keyed hash of the token.

#![forbid(unsafe_code)]

pub mod bearer;
mod certificate;
pub mod client_key;
pub mod cluster_auth_config;
mod digest;
pub mod request;
mod request_header;
pub mod review_call;
pub mod reviews;
