//! The controllers of authenticators: one module for each kind, and what all kinds share.
//!
//! ```text
//! webhook      WebhookAuthenticator
//! tls_source   spec.tls of every kind: the CA bundle, and its condition
//! cleanup      removes authenticators whose objects were deleted
//! ```
//!
//! A new kind needs a module like [`webhook`], a watch and a start in
//! [`crate::controllers`], and its keys in [`cleanup`]. The status (summary condition and phase) is
//! decided in `pinniped_concierge_domain::authenticator` for every kind.

pub mod cleanup;
pub mod tls_source;
pub mod webhook;

use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_concierge_authentication::registry::AuthenticatorKey;
use pinniped_kube_types::suffix::GroupSuffix;

/// Returns the key of an authenticator object in the registry of this installation.
pub fn registry_key(suffix: &GroupSuffix, kind: &str, name: &str) -> AuthenticatorKey {
    AuthenticatorKey {
        // All kinds have the same group.
        api_group: suffix.replace(WebhookAuthenticator::GROUP),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}
