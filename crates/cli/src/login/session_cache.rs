//! A cache of OIDC sessions: the tokens of each login, in one YAML file.
//!
//! Format and keys are compatible with the upstream command line ([`super::cache_file`] has the
//! locking), so that both can share a file. With `--refresh-token-store=keyring`, refresh tokens
//! are in the keyring ([`super::keyring`]) and not in the file. Cluster credentials are in another
//! file ([`super::exec_cache`]).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use pinniped_go_compat::json as gojson;
use pinniped_secret::SecretString;

use super::cache_file::{CacheEntry, CacheFile, CacheFileError};

/// The time after which an unused session is removed: 90 days.
pub(super) const MAX_UNUSED: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The parameters of a login that select its session. All of them have to match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKey {
    /// The issuer.
    pub issuer: String,
    /// The client ID.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// The requested scopes, sorted.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The redirect URI, with the port that was requested, not the one that was used.
    #[serde(default)]
    pub redirect_uri: String,
    /// The identity provider of a Supervisor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub upstream_provider_name: String,
}

impl SessionKey {
    /// Returns a short name that is unique for this key, and valid in a file name.
    pub(super) fn digest(&self) -> String {
        short_digest(&gojson::to_string(self))
    }
}

/// Returns 16 hexadecimal digits that are different for other texts.
pub(super) fn short_digest(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    HEXLOWER.encode(&digest.as_ref()[..8])
}

/// The tokens of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// The access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessToken>,
    /// The ID token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<IdToken>,
    /// The refresh token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<RefreshToken>,
}

/// An access token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// The token.
    #[serde(default)]
    pub token: SecretString,
    /// The type of the token, such as `Bearer`.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// The expiration.
    #[serde(default, rename = "expiryTimestamp")]
    pub expiry: Option<Time>,
}

/// An ID token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdToken {
    /// The token.
    #[serde(default)]
    pub token: SecretString,
    /// The expiration.
    #[serde(default, rename = "expiryTimestamp")]
    pub expiry: Option<Time>,
    /// The claims, together with those of the userinfo endpoint.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub claims: Map<String, Value>,
}

/// A refresh token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshToken {
    /// The token.
    #[serde(default)]
    pub token: SecretString,
}

impl Tokens {
    /// Returns the remaining lifetime of the ID token at `now`; zero without one.
    pub fn id_lifetime(&self, now: Timestamp) -> SignedDuration {
        lifetime(self.id.as_ref().and_then(|id| id.expiry.as_ref()), now)
    }

    /// Returns the remaining lifetime of the access token at `now`; zero without one.
    pub fn access_lifetime(&self, now: Timestamp) -> SignedDuration {
        lifetime(self.access.as_ref().and_then(|access| access.expiry.as_ref()), now)
    }

    /// Returns the refresh token, if there is one.
    pub fn refresh_token(&self) -> Option<&SecretString> {
        self.refresh.as_ref().map(|refresh| &refresh.token).filter(|token| !token.is_empty())
    }

    /// Returns whether the ID token was issued for this audience, so that no other token has to be
    /// requested for it.
    pub fn has_audience(&self, audience: &str) -> bool {
        match self.id.as_ref().and_then(|id| id.claims.get("aud")) {
            Some(Value::String(only)) => only == audience,
            Some(Value::Array(all)) => all.iter().any(|one| one == audience),
            _ => false,
        }
    }
}

fn lifetime(expiry: Option<&Time>, now: Timestamp) -> SignedDuration {
    expiry.map_or(SignedDuration::ZERO, |expiry| expiry.0.duration_since(now).max(SignedDuration::ZERO))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    key: SessionKey,
    #[serde(default)]
    creation_timestamp: Option<Time>,
    #[serde(default)]
    last_used_timestamp: Option<Time>,
    #[serde(default)]
    tokens: Tokens,
}

impl CacheEntry for Entry {
    const KIND: &'static str = "SessionCache";
    const LIST: &'static str = "sessions";

    fn created(&self) -> Option<Timestamp> {
        self.creation_timestamp.as_ref().map(|time| time.0)
    }

    fn prune(&mut self, now: Timestamp) -> bool {
        let over = |token: &SecretString, expiry: &Option<Time>| {
            token.is_empty() || expiry.as_ref().is_none_or(|expiry| expiry.0 < now)
        };
        let tokens = &mut self.tokens;
        tokens.access = tokens.access.take().filter(|access| !over(&access.token, &access.expiry));
        tokens.id = tokens.id.take().filter(|id| !over(&id.token, &id.expiry));
        tokens.refresh = tokens.refresh.take().filter(|refresh| !refresh.token.is_empty());
        let used = self.last_used_timestamp.as_ref();
        *tokens != Tokens::default() && used.is_some_and(|used| now.duration_since(used.0) <= MAX_UNUSED)
    }
}

impl Entry {
    fn into_stored(self) -> StoredSession {
        StoredSession {
            key: self.key,
            tokens: self.tokens,
            last_used: self.last_used_timestamp.map(|time| time.0),
        }
    }
}

/// A session of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSession {
    /// The parameters of its login.
    pub key: SessionKey,
    /// Its tokens.
    pub tokens: Tokens,
    /// The time of the last use.
    pub last_used: Option<Timestamp>,
}

/// The cache file.
#[derive(Clone, Debug)]
pub struct SessionCache {
    file: CacheFile<Entry>,
}

impl SessionCache {
    /// Creates a cache with this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { file: CacheFile::new(path) }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the tokens of a session that are valid at `now`. Updates the time of the last use.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the read; callers log in.
    pub fn get(&self, key: &SessionKey, now: Timestamp) -> Result<Option<Tokens>, CacheFileError> {
        let mut found = None;
        self.file.read(now, |entries| {
            if let Some(entry) = entries.iter_mut().find(|entry| entry.key == *key) {
                entry.last_used_timestamp = Some(Time(now));
                found = Some(entry.tokens.clone());
            }
        })?;
        Ok(found)
    }

    /// Stores the tokens of a session.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the write; callers continue without the cache.
    pub fn put(&self, key: &SessionKey, tokens: &Tokens, now: Timestamp) -> Result<(), CacheFileError> {
        self.file.transaction(now, |entries| match entries.iter_mut().find(|entry| entry.key == *key) {
            Some(entry) => {
                entry.last_used_timestamp = Some(Time(now));
                entry.tokens = tokens.clone();
            }
            None => entries.push(Entry {
                key: key.clone(),
                creation_timestamp: Some(Time(now)),
                last_used_timestamp: Some(Time(now)),
                tokens: tokens.clone(),
            }),
        })
    }

    /// Returns a session as it is stored, with the tokens that are valid at `now`, without a change
    /// of the file.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the read.
    pub fn peek(&self, key: &SessionKey, now: Timestamp) -> Result<Option<StoredSession>, CacheFileError> {
        let found = self.file.peek(now)?.into_iter().find(|entry| entry.key == *key);
        Ok(found.map(Entry::into_stored))
    }

    /// Removes a session, and returns it.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the change.
    pub fn take(&self, key: &SessionKey, now: Timestamp) -> Result<Option<StoredSession>, CacheFileError> {
        Ok(self.file.take(now, |entry| entry.key == *key)?.into_iter().next().map(Entry::into_stored))
    }

    /// Removes all sessions, and returns them.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the change.
    pub fn take_all(&self, now: Timestamp) -> Result<Vec<StoredSession>, CacheFileError> {
        Ok(self.file.take(now, |_| true)?.into_iter().map(Entry::into_stored).collect())
    }

    /// Opens the file whose lock the process that logs in with this key holds. Each key has a file
    /// of its own.
    ///
    /// # Errors
    ///
    /// Returns the failed call.
    pub fn login_lock_file(&self, key: &SessionKey) -> io::Result<File> {
        self.file.lock_file(&format!(".{}.lock", key.digest()))
    }
}

#[cfg(test)]
mod tests;
