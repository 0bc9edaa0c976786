//! The keys that a provider no longer publishes, and the time for which they still verify
//! signatures.
//!
//! A provider that replaces its keys may withdraw a key while tokens that it signed a moment
//! before are on their way. They are accepted for [`WITHDRAWN_KEY_LIFETIME`]; go-oidc refuses them
//! at once. A key that must not verify anything any more, because it was stolen, is forgotten
//! earlier only with its [`RemoteKeySet`](crate::RemoteKeySet), which holds these keys.
//!
//! This module does no I/O and reads no clock. `remote_keys.rs` fetches the keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pinniped_jose::{Algorithm, Jws, KeySet, PublicKey, SignatureError, verify_with};
use tokio::time::Instant;

/// The time for which a key verifies signatures after a response without it.
pub const WITHDRAWN_KEY_LIFETIME: Duration = Duration::from_secs(5 * 60);

/// Maximum number of withdrawn keys of one provider: enough for a provider that replaces a key each
/// second. A key takes a few kilobytes.
const MAX_WITHDRAWN_KEYS: usize = 512;

/// Maximum length of the ID of a withdrawn key in bytes. A provider can publish an ID that is as
/// long as a whole response, and another one every second.
const MAX_KEY_ID: usize = 1024;

/// The withdrawn keys of one provider, the latest first.
#[derive(Debug, Default)]
pub(crate) struct WithdrawnKeys {
    keys: Vec<WithdrawnKey>,
}

#[derive(Debug)]
struct WithdrawnKey {
    key: Arc<PublicKey>,
    /// The time at which it stops verifying signatures.
    end: Instant,
}

impl WithdrawnKeys {
    /// Returns the withdrawn keys after a response at `now` has replaced the keys `before` with
    /// `published`. If there are too many, those that were withdrawn first are dropped.
    pub(crate) fn after(&self, before: &KeySet, published: &KeySet, now: Instant) -> Self {
        let withdrawn = before.keys().iter().map(|key| (key, now + WITHDRAWN_KEY_LIFETIME));
        let earlier = self.keys.iter().filter(|key| now < key.end).map(|key| (&key.key, key.end));
        let mut known: HashSet<_> = published.keys().iter().map(|key| key.identity()).collect();
        let keys = withdrawn
            .chain(earlier)
            .filter(|(key, _)| key.id().map_or(0, str::len) <= MAX_KEY_ID)
            .filter(|(key, _)| known.insert(key.identity()))
            .take(MAX_WITHDRAWN_KEYS)
            .map(|(key, end)| WithdrawnKey { key: Arc::clone(key), end })
            .collect();
        Self { keys }
    }

    /// Verifies the signature of a token at `now`.
    pub(crate) fn verify(
        &self,
        jws: &Jws<'_>,
        allowed: &[Algorithm],
        now: Instant,
    ) -> Result<Algorithm, SignatureError> {
        let valid = self.keys.iter().filter(|key| now < key.end);
        verify_with(valid.map(|key| &*key.key), jws, allowed)
    }
}

#[cfg(test)]
mod tests {
    use pinniped_jose::test_util::{Signer, base64url, key_set};
    use serde_json::{Value, json};

    use super::*;

    fn set(keys: &Value) -> KeySet {
        KeySet::parse(keys.to_string().as_bytes()).unwrap()
    }

    fn published<'a>(signers: impl IntoIterator<Item = &'a Signer>) -> KeySet {
        set(&key_set(signers))
    }

    fn signer(id: &str) -> Signer {
        Signer::generate(Algorithm::Es256, id)
    }

    fn verifies(keys: &WithdrawnKeys, signer: &Signer, now: Instant) -> bool {
        let token = signer.sign(&json!({}));
        keys.verify(&Jws::parse(&token).unwrap(), &[Algorithm::Es256], now).is_ok()
    }

    /// Returns keys with parameters that are not checked before a signature is verified.
    fn invented(ids: impl Iterator<Item = String>) -> KeySet {
        let key = |id: String| {
            let x = base64url(format!("{id:0>32}").split_at(id.len().saturating_sub(32)).1);
            json!({"kty": "EC", "crv": "P-256", "kid": id, "x": x, "y": base64url([1; 32])})
        };
        set(&json!({"keys": ids.map(key).collect::<Vec<_>>()}))
    }

    #[tokio::test]
    async fn a_key_verifies_until_its_lifetime_after_the_first_response_without_it() {
        let (old, new, other) = (signer("old"), signer("new"), signer("other"));
        let start = Instant::now();
        let none = WithdrawnKeys::default();
        let first = none.after(&published([&old]), &published([&new]), start);
        assert!(verifies(&first, &old, start) && !verifies(&first, &new, start));
        let last = start + WITHDRAWN_KEY_LIFETIME - Duration::from_millis(1);
        assert!(verifies(&first, &old, last));
        assert!(!verifies(&first, &old, start + WITHDRAWN_KEY_LIFETIME));
        // Later responses do not extend it.
        let second = first.after(&published([&new]), &published([&other]), last);
        assert!(verifies(&second, &old, last) && verifies(&second, &new, last));
        let end = start + WITHDRAWN_KEY_LIFETIME;
        assert!(!verifies(&second, &old, end) && verifies(&second, &new, end));
        assert_eq!(second.after(&published([&other]), &published([&other]), end).keys.len(), 1);
    }

    #[tokio::test]
    async fn a_key_that_is_published_again_is_not_withdrawn() {
        let (one, other) = (signer("one"), signer("other"));
        let now = Instant::now();
        let keys = WithdrawnKeys::default().after(&published([&one]), &published([&other]), now);
        let keys = keys.after(&published([&other]), &published([&one]), now);
        assert!(!verifies(&keys, &one, now) && verifies(&keys, &other, now));
    }

    #[tokio::test]
    async fn a_key_with_the_id_of_a_published_one_is_withdrawn_with_its_own_numbers() {
        let (old, new) = (signer("same"), signer("same"));
        let now = Instant::now();
        let keys = WithdrawnKeys::default().after(&published([&old]), &published([&new]), now);
        assert!(verifies(&keys, &old, now) && !verifies(&keys, &new, now));
    }

    #[tokio::test]
    async fn the_number_and_the_size_of_withdrawn_keys_are_limited() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let (none, last) = (published([]), signer("last"));
        let many = invented((0..10_000).map(|n| n.to_string()));
        let keys = WithdrawnKeys::default().after(&many, &none, now);
        assert_eq!(keys.keys.len(), MAX_WITHDRAWN_KEYS);
        // The latest ones are kept.
        let keys = keys.after(&published([&last]), &none, later);
        assert_eq!(keys.keys.len(), MAX_WITHDRAWN_KEYS);
        assert!(verifies(&keys, &last, later));
        // One key many times is one key.
        let same = invented((0..10_000).map(|_| "same".to_owned()));
        assert_eq!(WithdrawnKeys::default().after(&same, &none, now).keys.len(), 1);

        let long =
            invented([MAX_KEY_ID, MAX_KEY_ID + 1, 1 << 20].map(|length| "x".repeat(length)).into_iter());
        let keys = WithdrawnKeys::default().after(&long, &none, now);
        assert!(keys.keys.len() == 1 && keys.keys[0].key.id().unwrap().len() == MAX_KEY_ID);
    }

    #[tokio::test]
    async fn a_provider_that_replaces_a_key_each_second_keeps_all_keys_of_the_lifetime() {
        let start = Instant::now();
        let mut keys = WithdrawnKeys::default();
        let key = |n: u64| invented(std::iter::once(n.to_string()));
        for n in 0..400 {
            keys = keys.after(&key(n), &key(n + 1), start + Duration::from_secs(n));
        }
        let lifetime = usize::try_from(WITHDRAWN_KEY_LIFETIME.as_secs()).unwrap();
        assert_eq!(keys.keys.len(), lifetime);
    }
}
