//! A set of public keys (JWK Set, RFC 7517, section 5).
//!
//! Keys that cannot verify a signature are skipped, as the RFC recommends, so that a new type of
//! key at the provider does not make the others unusable.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::Algorithm;
use crate::json::from_object;
use crate::jwk::PublicKey;
use crate::jws::{Jws, UnsupportedAlgorithm};

/// Maximum size of a set in bytes. Large providers have sets of a few ten thousand bytes.
pub const MAX_KEY_SET_SIZE: usize = 4 << 20;

/// Maximum number of keys in a set, including those that are skipped.
pub const MAX_KEYS: usize = 10_000;

/// Maximum number of keys that are tried for one token: those with its ID, or all keys for a token
/// without ID. It bounds the work that one token can cause.
const MAX_TRIED_KEYS: usize = 32;

/// The reason why a set cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// The set is larger than [`MAX_KEY_SET_SIZE`].
    #[error("the key set is larger than {MAX_KEY_SET_SIZE} bytes")]
    TooLarge,
    /// The text is not a JWK Set, or has more than [`MAX_KEYS`] keys.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// The reason why a signature is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The algorithm of the token is not allowed.
    #[error(transparent)]
    Algorithm(#[from] UnsupportedAlgorithm),
    /// No key of the set has signed the token.
    #[error("no key of the set has signed the token")]
    NoKey,
}

/// Public keys, ordered by their IDs.
#[derive(Debug, Default)]
pub struct KeySet {
    /// Shared, because a caller may need a key for longer than its set.
    keys: Vec<Arc<PublicKey>>,
    skipped: usize,
}

#[derive(Deserialize)]
struct RawKeySet<'a> {
    /// Missing or null: an empty set, as in Go.
    #[serde(borrow, default, deserialize_with = "limited")]
    keys: Vec<&'a RawValue>,
}

/// Reads at most [`MAX_KEYS`] keys.
fn limited<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<&'de RawValue>, D::Error> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of keys")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut keys = Vec::new();
            while let Some(key) = items.next_element()? {
                if keys.len() == MAX_KEYS {
                    return Err(A::Error::custom(format_args!("more than {MAX_KEYS} keys")));
                }
                keys.push(key);
            }
            Ok(keys)
        }
    }
    deserializer.deserialize_any(Keys)
}

impl KeySet {
    /// Parses a JWK Set.
    ///
    /// # Errors
    /// Returns an error when the text is no set, or exceeds a limit. Keys that cannot be used are
    /// not an error.
    pub fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        if json.len() > MAX_KEY_SET_SIZE {
            return Err(KeySetError::TooLarge);
        }
        let raw: RawKeySet<'_> = from_object(json)?;
        let mut keys: Vec<_> =
            raw.keys.iter().filter_map(|key| PublicKey::parse(key.get()).ok()).map(Arc::new).collect();
        let skipped = raw.keys.len() - keys.len();
        // The sort is stable: keys with the same ID are tried in the order of the set.
        keys.sort_by(|one, other| one.id().cmp(&other.id()));
        Ok(Self { keys, skipped })
    }

    /// Returns the number of keys that can be used.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether no key can be used.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of keys that were skipped.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the keys, ordered by their IDs.
    pub fn keys(&self) -> &[Arc<PublicKey>] {
        &self.keys
    }

    /// Verifies the signature of a token whose algorithm is one of `allowed`, and returns the
    /// algorithm. Of the keys with the token's ID, all are tried; for a token without ID, all keys.
    ///
    /// # Errors
    /// Returns an error when the algorithm is not allowed, or no key has signed the token.
    pub fn verify(&self, jws: &Jws<'_>, allowed: &[Algorithm]) -> Result<Algorithm, SignatureError> {
        let candidates = match jws.key_id() {
            None => &self.keys[..],
            Some(id) => {
                let start = self.keys.partition_point(|key| key.id() < Some(id));
                let length = self.keys[start..].partition_point(|key| key.id() == Some(id));
                &self.keys[start..start + length]
            }
        };
        verify_with(candidates.iter().map(|key| &**key), jws, allowed)
    }
}

/// Verifies the signature of a token as [`KeySet::verify`] does, with keys that are not a set. They
/// are tried in their order.
///
/// # Errors
/// Returns an error when the algorithm is not allowed, or no key has signed the token.
pub fn verify_with<'a>(
    keys: impl IntoIterator<Item = &'a PublicKey>,
    jws: &Jws<'_>,
    allowed: &[Algorithm],
) -> Result<Algorithm, SignatureError> {
    let algorithm = jws.algorithm(allowed)?;
    let fits = |key: &&PublicKey| jws.key_id().is_none_or(|id| key.id() == Some(id)) && key.is_for(algorithm);
    let mut candidates = keys.into_iter().filter(fits).take(MAX_TRIED_KEYS);
    match candidates.any(|key| key.has_signed(jws, algorithm)) {
        true => Ok(algorithm),
        false => Err(SignatureError::NoKey),
    }
}

#[cfg(test)]
mod tests;
