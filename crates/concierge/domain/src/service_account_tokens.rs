//! The strategy `ServiceAccountToken`: users receive a short-lived token of a service account of
//! their own, which is only permitted to impersonate them.
//!
//! The strategy is for clusters whose signing key is not available and where no load balancer is
//! wanted (upstream Pinniped's #346).
//!
//! ```text
//! settings     spec.serviceAccountTokens, validated
//! eligible     whether a user can receive a token, and the identity that the token impersonates
//! limits       maximum size of an identity
//! objects      service account, role, binding and bound Secret of an identity
//! drift        differences between an existing object and the wanted one
//! collection   what the leader deletes or restores
//! schedule     when it does
//! strategy     the entry in the CredentialIssuer's status
//! ```
//!
//! Objects are named after the [digest](crate::identity_digest) of an identity. A
//! role is therefore self-certifying: its rules and its name alone show whether it still grants
//! what it was created for.

pub mod collection;
pub mod drift;
pub mod eligible;
pub mod limits;
pub mod objects;
pub mod schedule;
pub mod settings;
pub mod strategy;

pub use objects::{Form, Maker, object_name};
pub use settings::Settings;

#[cfg(test)]
pub(crate) mod fixtures;
