//! The authenticators that are ready to judge tokens, by reference.
//!
//! Readers take a snapshot without locking; the few writers (one controller per kind) replace the map as a whole.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use pinniped_kube_request::identity::User;

use pinniped_secret::token::Token;

/// Names one authenticator object: what a TokenCredentialRequest's `spec.authenticator` says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthenticatorKey {
    /// API group of the object, with this installation's suffix.
    pub api_group: String,
    /// Kind of the object, `WebhookAuthenticator` or `JWTAuthenticator`.
    pub kind: String,
    /// Name of the (cluster-scoped) object.
    pub name: String,
}

/// An authenticator could not give a verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    /// The other side answered with an error, or could not be asked. The text is what the peer says in that case.
    #[error("{0}")]
    Failed(String),
}

/// Judges tokens: `Some` user, `None` for "not valid", an error for "cannot say".
pub trait TokenAuthenticator: Send + Sync {
    /// Judges one token.
    fn authenticate<'a>(&'a self, token: &'a Token)
    -> BoxFuture<'a, Result<Option<User>, AuthenticateError>>;
}

#[derive(Clone)]
struct Entry {
    fingerprint: String,
    authenticator: Arc<dyn TokenAuthenticator>,
}

/// The ready authenticators. Cheap to clone; all clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Arc<ArcSwap<HashMap<AuthenticatorKey, Entry>>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// The authenticator of that name, if it is ready.
    pub fn get(&self, key: &AuthenticatorKey) -> Option<Arc<dyn TokenAuthenticator>> {
        self.entries.load().get(key).map(|entry| Arc::clone(&entry.authenticator))
    }

    /// Adds or replaces one. The fingerprint tells from which inputs it was built.
    pub fn insert(
        &self,
        key: AuthenticatorKey,
        fingerprint: String,
        authenticator: Arc<dyn TokenAuthenticator>,
    ) {
        let addition = (key, Entry { fingerprint, authenticator });
        self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            let (key, entry) = addition.clone();
            entries.insert(key, entry);
            entries
        });
    }

    /// The fingerprint the authenticator was inserted with.
    pub fn fingerprint(&self, key: &AuthenticatorKey) -> Option<String> {
        self.entries.load().get(key).map(|entry| entry.fingerprint.clone())
    }

    /// Removes one; tells whether it was there.
    pub fn remove(&self, key: &AuthenticatorKey) -> bool {
        let before = self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.remove(key);
            entries
        });
        before.contains_key(key)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<AuthenticatorKey> {
        let mut keys: Vec<_> = self.entries.load().keys().cloned().collect();
        keys.sort();
        keys
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl TokenAuthenticator for Nobody {
        fn authenticate<'a>(
            &'a self,
            _: &'a Token,
        ) -> BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
            Box::pin(async { Ok(None) })
        }
    }

    fn key(name: &str) -> AuthenticatorKey {
        AuthenticatorKey {
            api_group: "authentication.concierge.pinniped.dev".to_owned(),
            kind: "WebhookAuthenticator".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn clones_share_their_entries() {
        let registry = Registry::new();
        let other = registry.clone();
        registry.insert(key("b"), "1".to_owned(), Arc::new(Nobody));
        registry.insert(key("a"), "2".to_owned(), Arc::new(Nobody));
        assert_eq!(other.keys(), [key("a"), key("b")]);
        assert_eq!(other.fingerprint(&key("a")).as_deref(), Some("2"));
        assert!(other.get(&key("c")).is_none());
        assert!(other.remove(&key("a")));
        assert!(!registry.remove(&key("a")));
        assert!(registry.get(&key("b")).is_some());
    }
}
