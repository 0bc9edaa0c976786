//! Removes authenticators from the registry whose objects were deleted (`cachecleaner-controller`).

use std::collections::HashSet;

use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_logging::value::ALWAYS;

use super::{names, registry_key};
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
        let key = |kind: &str, name: &str| registry_key(&self.suffix, kind, name);
        let webhooks = names(&self.webhooks).into_iter().map(|name| key(WebhookAuthenticator::KIND, &name));
        let jwts = names(&self.jwts).into_iter().map(|name| key(JwtAuthenticator::KIND, &name));
        let existing = webhooks.chain(jwts).collect();
        for key in leftovers(self.registry.keys(), &existing) {
            tracing::info!(
                target: ALWAYS,
                controller = self.name(),
                object = format!("{}/{}", key.kind, key.name),
                "deleting authenticator from cache"
            );
            self.registry.remove(&key);
        }
        Ok(Action::done())
    }
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
