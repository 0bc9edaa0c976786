//! Decides the status of the `CredentialIssuer`.
//!
//! [`strategies`] builds and merges the entries of `status.strategies`. [`conditions`] has the
//! conditions of the `CredentialIssuer`, except `Ready`: add a new one there. [`ready`] decides
//! `Ready`, which summarizes the strategies. [`events`] decides the Events.

use pinniped_go_compat::json::quote;

pub mod conditions;
pub mod events;
pub mod ready;
pub mod strategies;

/// The `CredentialIssuer` of this installation does not exist. The text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not get CredentialIssuer to update: credentialissuer.{group} {} not found", quote(.name))]
pub struct MissingCredentialIssuer {
    /// API group of the installation.
    pub group: String,
    /// Name of the object.
    pub name: String,
}
