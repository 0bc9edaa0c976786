//! The strategy `ServiceAccountToken`: users get a short-lived token of a service account of their own, which may do
//! nothing but impersonate them.
//!
//! For clusters whose signing key nobody hands out and where no load balancer is wanted (upstream Pinniped's #346).
//!
//! ```text
//! settings     spec.serviceAccountTokens, validated
//! eligible     may this user be given such a token, and as whom does it act?
//! limits       how large an identity may be
//! objects      service account, role, binding and bound Secret of an identity
//! drift        what separates an existing object from the one that should be there
//! collection   what the leader removes or restores
//! strategy     the entry in the CredentialIssuer's status
//! ```
//!
//! Objects are named after the [digest](pinniped_kube_request::identity::digest) of an identity. So a role certifies itself: whether it
//! still grants what it was made for can be told from its rules and its name alone.

pub mod collection;
pub mod drift;
pub mod eligible;
pub mod limits;
pub mod objects;
pub mod settings;
pub mod strategy;

pub use objects::{Form, Maker, object_name};
pub use settings::Settings;

#[cfg(test)]
pub(crate) mod fixtures;
