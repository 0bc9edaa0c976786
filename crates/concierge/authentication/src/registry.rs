//! The registry of ready authenticators, by reference.
//!
//! Readers take a snapshot without a lock. Writers, one controller per kind, replace the map as a
//! whole.
//!
//! `crates/concierge/controllers/src/authenticators.rs` lists the parts of a new kind of
//! authenticator.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use pinniped_kube_request::identity::User;
use pinniped_oidc::RemoteKeySet;
use pinniped_secret::token::Token;

/// Identifies an authenticator object: the content of a TokenCredentialRequest's
/// `spec.authenticator`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthenticatorKey {
    /// API group of the object, with the suffix of this installation.
    pub api_group: String,
    /// Kind of the object, `WebhookAuthenticator` or `JWTAuthenticator`.
    pub kind: String,
    /// Name of the object, which is cluster-scoped.
    pub name: String,
}

/// The reason why a token gives no user. The texts are those that upstream returns in the same
/// cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticateError {
    /// The token is not valid, or its claims are not those that the authenticator requires.
    #[error("{0}")]
    InvalidToken(String),
    /// Too many tokens wait for the peer. Clients with invalid tokens can cause this.
    #[error("{0}")]
    Overloaded(String),
    /// The authenticator cannot decide: the request failed, or the peer returned an error.
    #[error("{0}")]
    Failed(String),
}

/// Authenticates tokens. Returns the user; `None` if the token is not valid and upstream returns no
/// error; or an error.
pub trait TokenAuthenticator: Send + Sync {
    /// Authenticates one token.
    fn authenticate<'a>(&'a self, token: &'a Token)
    -> BoxFuture<'a, Result<Option<User>, AuthenticateError>>;

    /// Returns the keys of the issuer, if the authenticator verifies tokens itself.
    fn signing_keys(&self) -> Option<&RemoteKeySet> {
        None
    }
}

#[derive(Clone)]
struct Entry {
    fingerprint: String,
    authenticator: Arc<dyn TokenAuthenticator>,
}

/// The registry of ready authenticators. Cheap to clone; all clones share their entries.
#[derive(Clone, Default)]
pub struct Registry {
    entries: Arc<ArcSwap<HashMap<AuthenticatorKey, Entry>>>,
}

impl Registry {
    /// Returns an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the authenticator with this key if it is ready.
    pub fn get(&self, key: &AuthenticatorKey) -> Option<Arc<dyn TokenAuthenticator>> {
        self.entries.load().get(key).map(|entry| Arc::clone(&entry.authenticator))
    }

    /// Adds or replaces an authenticator. The fingerprint identifies the inputs from which it was
    /// built.
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

    /// Replaces an authenticator, and returns whether it was present; otherwise nothing changes.
    pub fn replace(
        &self,
        key: &AuthenticatorKey,
        fingerprint: &str,
        authenticator: Arc<dyn TokenAuthenticator>,
    ) -> bool {
        let replacement = Entry { fingerprint: fingerprint.to_owned(), authenticator };
        let before = self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.entry(key.clone()).and_modify(|entry| *entry = replacement.clone());
            entries
        });
        before.contains_key(key)
    }

    /// Returns the fingerprint with which the authenticator was inserted.
    pub fn fingerprint(&self, key: &AuthenticatorKey) -> Option<String> {
        self.entries.load().get(key).map(|entry| entry.fingerprint.clone())
    }

    /// Removes an authenticator and returns whether it was present.
    pub fn remove(&self, key: &AuthenticatorKey) -> bool {
        let before = self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.remove(key);
            entries
        });
        before.contains_key(key)
    }

    /// Returns all authenticators, sorted by their keys.
    pub fn entries(&self) -> Vec<(AuthenticatorKey, Arc<dyn TokenAuthenticator>)> {
        let entries = self.entries.load();
        let mut all: Vec<_> =
            entries.iter().map(|(key, entry)| (key.clone(), Arc::clone(&entry.authenticator))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Returns all keys, sorted.
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

    struct NoUser;

    impl TokenAuthenticator for NoUser {
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
        registry.insert(key("b"), "1".to_owned(), Arc::new(NoUser));
        registry.insert(key("a"), "2".to_owned(), Arc::new(NoUser));
        assert_eq!(other.keys(), [key("a"), key("b")]);
        assert_eq!(other.fingerprint(&key("a")).as_deref(), Some("2"));
        assert!(other.get(&key("c")).is_none());
        assert!(other.replace(&key("b"), "3", Arc::new(NoUser)));
        assert!(!other.replace(&key("c"), "3", Arc::new(NoUser)));
        assert_eq!(registry.keys(), [key("a"), key("b")]);
        assert_eq!(registry.fingerprint(&key("b")).as_deref(), Some("3"));
        assert!(other.remove(&key("a")));
        assert!(!registry.remove(&key("a")));
        assert!(registry.get(&key("b")).is_some());
    }
}
