//! Drops authenticators from the registry whose objects are gone (`cachecleaner-controller`).

use std::collections::HashSet;
use std::hash::Hash;

use kube::Resource;
use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_kube_types::suffix::GroupSuffix;

use crate::webhook_authenticator::registry_key;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Wake it for every object of both kinds, and run it only when both caches are filled.
pub struct AuthenticatorCleanup {
    /// Suffix of this installation's API groups.
    pub suffix: GroupSuffix,
    /// What is cleaned.
    pub registry: Registry,
    /// The objects of one kind.
    pub webhooks: Store<WebhookAuthenticator>,
    /// The objects of the other.
    pub jwts: Store<JwtAuthenticator>,
}

impl Reconcile for AuthenticatorCleanup {
    fn name(&self) -> &'static str {
        "cachecleaner-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let existing = names(&self.webhooks)
            .map(|name| registry_key(&self.suffix, WebhookAuthenticator::KIND, &name))
            .chain(names(&self.jwts).map(|name| registry_key(&self.suffix, JwtAuthenticator::KIND, &name)))
            .collect();
        for key in leftovers(self.registry.keys(), &existing) {
            tracing::info!(kind = %key.kind, name = %key.name, "deleting authenticator from cache");
            self.registry.remove(&key);
        }
        Ok(Action::done())
    }
}

fn names<K>(store: &Store<K>) -> impl Iterator<Item = String>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store.state().into_iter().filter_map(|object| object.meta().name.clone())
}

/// What is in the registry and nowhere else.
fn leftovers(keys: Vec<AuthenticatorKey>, existing: &HashSet<AuthenticatorKey>) -> Vec<AuthenticatorKey> {
    keys.into_iter().filter(|key| !existing.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_authenticators_without_an_object_of_their_kind_are_left_over() {
        let suffix = GroupSuffix::default();
        let key = |kind: &str, name: &str| registry_key(&suffix, kind, name);
        let existing = HashSet::from([key("WebhookAuthenticator", "a"), key("JWTAuthenticator", "b")]);
        let keys = vec![
            key("WebhookAuthenticator", "a"),
            key("WebhookAuthenticator", "b"),
            key("JWTAuthenticator", "a"),
            key("JWTAuthenticator", "b"),
        ];
        assert_eq!(
            leftovers(keys, &existing),
            [key("WebhookAuthenticator", "b"), key("JWTAuthenticator", "a")]
        );
    }
}
