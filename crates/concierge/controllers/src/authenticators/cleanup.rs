//! Removes authenticators from the registry whose objects were deleted (`cachecleaner-controller`).

use std::collections::HashSet;
use std::hash::Hash;

use kube::Resource;
use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_kube_types::suffix::GroupSuffix;

use super::registry_key;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// The controller. Trigger it for every object of both kinds, and run it only when both caches are
/// filled.
pub struct AuthenticatorCleanup {
    /// Suffix of this installation's API groups.
    pub suffix: GroupSuffix,
    /// The registry to clean.
    pub registry: Registry,
    /// The objects of kind `WebhookAuthenticator`.
    pub webhooks: Store<WebhookAuthenticator>,
    /// The objects of kind `JWTAuthenticator`.
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

/// Returns the keys of the registry without an existing object.
fn leftovers(keys: Vec<AuthenticatorKey>, existing: &HashSet<AuthenticatorKey>) -> Vec<AuthenticatorKey> {
    keys.into_iter().filter(|key| !existing.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_authenticators_without_an_object_of_their_kind_are_removed() {
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
