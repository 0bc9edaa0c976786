//! The controllers of authenticators: one module for each kind, and their common parts.
//!
//! ```text
//! webhook      WebhookAuthenticator
//! jwt          JWTAuthenticator, and the refresh of the keys of its issuer
//! plan         the changes of one pass for one object, and their application
//! tls_source   spec.tls of every kind: the CA bundle, and its condition
//! cleanup      removes authenticators whose objects were deleted
//! ```
//!
//! A new kind needs its type in `pinniped_concierge_api::authentication` and its CRD, a module in
//! `pinniped-concierge-authentication` that verifies tokens, a module like [`webhook`] here, a
//! watch and a start in [`crate::controllers`], its keys in [`cleanup`], and a place in the command
//! line (`crates/cli/src/concierge.rs` and the folder `commands/get_kubeconfig`). The status
//! (summary condition and phase) is decided in `pinniped_concierge_domain::authenticator_status`
//! for every kind.

pub mod cleanup;
pub mod jwt;
mod plan;
#[cfg(test)]
mod test_util;
pub mod tls_source;
pub mod webhook;

use std::hash::Hash;
use std::sync::Arc;

use kube::Resource;
use kube::runtime::reflector::Store;
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

/// Returns the names of the objects of a cache.
fn names<K>(store: &Store<K>) -> Vec<String>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store.state().iter().filter_map(|object| object.meta().name.clone()).collect()
}

/// Returns the object of a cache with this name.
fn named<K>(store: &Store<K>, name: &str) -> Option<Arc<K>>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store.find(|object| object.meta().name.as_deref() == Some(name))
}
