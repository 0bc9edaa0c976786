//! Refresh tokens in the keyring of the operating system, instead of the session cache.
//!
//! A refresh token is the part of a session that is valid for long: the other tokens stay in the
//! session cache. An item of the keyring belongs to one session of one session cache, so that the
//! login lock beside the cache ([`oidc`](super::oidc)) also protects the item.
//!
//! A keyring may be locked, or may not respond. Every call has a time limit. Of the calls that this
//! module makes, only those for a user who can see a dialog ask the user to unlock the keyring;
//! macOS and Windows may ask in others. Callers log in without the keyring after an error; they
//! never write a refresh token of the keyring to a file.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use pinniped_secret::SecretString;

use super::session_cache::{MAX_UNUSED, RefreshToken, SessionKey, StoredSession, Tokens, short_digest};
use crate::environment::Environment;
pub use crate::platform::KeyringError;
use crate::platform::{ItemName, NEEDS_DISPLAY, SystemKeyring};
use crate::printer::Printer;

/// The time limit of a call that does not wait for the user.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);
/// The time in which the user can unlock the keyring.
const UNLOCK_LIMIT: Duration = Duration::from_secs(60);

/// The reaction to a locked keyring.
#[derive(Clone, Copy, Debug)]
pub enum Unlock {
    /// The call fails.
    Never,
    /// The keyring asks the user to unlock it, and the program prints that it waits.
    AskUser(Printer),
}

impl Unlock {
    /// Returns the reaction for a user at this process, who needs a display for a dialog.
    pub fn for_user(environment: &Environment, printer: Printer) -> Self {
        let is_set = |name| environment.non_empty(name).is_some();
        match !NEEDS_DISPLAY || ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(is_set) {
            true => Self::AskUser(printer),
            false => Self::Never,
        }
    }
}

/// The refresh tokens of the sessions of one session cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    group: String,
}

/// The secret of an item.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    key: SessionKey,
    last_used: Timestamp,
    refresh_token: SecretString,
}

impl Secret {
    fn parse(bytes: &[u8]) -> Result<Self, KeyringError> {
        serde_json::from_slice(bytes).map_err(|_| KeyringError::Malformed)
    }

    fn is_current(&self, key: &SessionKey, now: Timestamp) -> bool {
        self.key == *key && now.duration_since(self.last_used) <= MAX_UNUSED
    }

    fn into_session(self) -> StoredSession {
        let refresh = Some(RefreshToken { token: self.refresh_token });
        let tokens = Tokens { refresh, ..Tokens::default() };
        StoredSession { key: self.key, tokens, last_used: Some(self.last_used) }
    }
}

async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, KeyringError>>,
) -> Result<T, KeyringError> {
    tokio::time::timeout(limit, Box::pin(call)).await.unwrap_or(Err(KeyringError::Timeout))
}

impl Keyring {
    /// Creates the keyring for the sessions of this session cache.
    pub fn of_cache(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { group: short_digest(&path.to_string_lossy()) }
    }

    fn item(&self, key: &SessionKey) -> ItemName {
        ItemName { group: self.group.clone(), name: key.digest() }
    }

    async fn open(&self, unlock: Unlock) -> Result<SystemKeyring, KeyringError> {
        let keyring = limited(RESPONSE_LIMIT, SystemKeyring::open()).await?;
        if let Unlock::AskUser(printer) = unlock
            && limited(RESPONSE_LIMIT, keyring.is_locked(&self.group)).await?
        {
            printer.line("The keyring is locked: waiting until you unlock it");
            let unlocked = limited(UNLOCK_LIMIT, keyring.unlock(&self.group)).await;
            // The keyring responded, but the user did not.
            unlocked.map_err(|error| match error {
                KeyringError::Timeout => KeyringError::NotUnlocked,
                other => other,
            })?;
        }
        Ok(keyring)
    }

    /// Checks that the keyring can be used without the user.
    ///
    /// # Errors
    ///
    /// Returns the reason why it cannot.
    pub async fn check(&self) -> Result<(), KeyringError> {
        let keyring = self.open(Unlock::Never).await?;
        match limited(RESPONSE_LIMIT, keyring.is_locked(&self.group)).await? {
            true => Err(KeyringError::Locked),
            false => Ok(()),
        }
    }

    /// Returns whether there is an item for a session, also if it is locked or not valid any more.
    ///
    /// # Errors
    ///
    /// Returns the error of the keyring.
    pub async fn contains(&self, key: &SessionKey) -> Result<bool, KeyringError> {
        let keyring = self.open(Unlock::Never).await?;
        limited(RESPONSE_LIMIT, keyring.contains(&self.item(key))).await
    }

    /// Returns the refresh token of a session. As in the session cache, a token that was not used
    /// for 90 days is ignored.
    ///
    /// # Errors
    ///
    /// Returns the error of the keyring; callers log in.
    pub async fn get(
        &self,
        key: &SessionKey,
        now: Timestamp,
        unlock: Unlock,
    ) -> Result<Option<RefreshToken>, KeyringError> {
        let keyring = self.open(unlock).await?;
        let Some(bytes) = limited(RESPONSE_LIMIT, keyring.read(&self.item(key))).await? else {
            return Ok(None);
        };
        let secret = Some(Secret::parse(&bytes)?).filter(|secret| secret.is_current(key, now));
        Ok(secret.map(|secret| RefreshToken { token: secret.refresh_token }))
    }

    /// Stores the refresh token of a session, and removes those that have not been used for long.
    ///
    /// # Errors
    ///
    /// Returns the error of the keyring; callers continue without it.
    pub async fn put(
        &self,
        key: &SessionKey,
        token: &RefreshToken,
        now: Timestamp,
        unlock: Unlock,
    ) -> Result<(), KeyringError> {
        let secret = Secret { key: key.clone(), last_used: now, refresh_token: token.token.clone() };
        let bytes = serde_json::to_vec(&secret).map_err(|_| KeyringError::Malformed)?;
        let bytes = Zeroizing::new(bytes);
        let keyring = self.open(unlock).await?;
        let label = format!("Refresh token of pinniped for {}", key.issuer);
        limited(RESPONSE_LIMIT, keyring.write(&self.item(key), &label, &bytes)).await?;
        // The next call tries again.
        let _ = limited(RESPONSE_LIMIT, keyring.delete_unchanged_since(&self.group, now - MAX_UNUSED)).await;
        Ok(())
    }

    /// Removes the refresh token of a session, and returns the session with this token only.
    ///
    /// # Errors
    ///
    /// Returns the error of the keyring.
    pub async fn take(
        &self,
        key: &SessionKey,
        unlock: Unlock,
    ) -> Result<Option<StoredSession>, KeyringError> {
        // The user is not asked to unlock a keyring without the item.
        if !self.contains(key).await? {
            return Ok(None);
        }
        let keyring = self.open(unlock).await?;
        let taken = limited(RESPONSE_LIMIT, take(&keyring, &self.item(key))).await?;
        Ok(taken.filter(|session| session.key == *key))
    }

    /// Removes the refresh tokens of all sessions, and returns the sessions with these tokens only.
    /// Also returns the last error. After an error of one item it continues with the others, except
    /// after a timeout.
    pub async fn take_all(&self, unlock: Unlock) -> (Vec<StoredSession>, Result<(), KeyringError>) {
        let mut taken = Vec::new();
        let result = self.take_all_into(&mut taken, unlock).await;
        (taken, result)
    }

    async fn take_all_into(
        &self,
        taken: &mut Vec<StoredSession>,
        unlock: Unlock,
    ) -> Result<(), KeyringError> {
        let keyring = limited(RESPONSE_LIMIT, SystemKeyring::open()).await?;
        let items = limited(RESPONSE_LIMIT, keyring.items(&self.group)).await?;
        if items.is_empty() {
            return Ok(());
        }
        let keyring = self.open(unlock).await?;
        let mut result = Ok(());
        for item in items {
            match limited(RESPONSE_LIMIT, take(&keyring, &item)).await {
                Ok(session) => taken.extend(session),
                // The keyring itself does not work.
                Err(KeyringError::Timeout) => return Err(KeyringError::Timeout),
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

/// Removes an item, and returns its session, unless the item has another format.
async fn take(keyring: &SystemKeyring, item: &ItemName) -> Result<Option<StoredSession>, KeyringError> {
    let Some(bytes) = keyring.read(item).await? else { return Ok(None) };
    keyring.delete(item).await?;
    Ok(Secret::parse(&bytes).ok().map(Secret::into_session))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SessionKey {
        SessionKey {
            issuer: "https://i".into(),
            client_id: "c".into(),
            scopes: vec!["openid".into()],
            redirect_uri: "http://localhost:0/callback".into(),
            upstream_provider_name: String::new(),
        }
    }

    #[test]
    fn each_session_of_each_cache_has_an_item_of_its_own() {
        let here = Keyring::of_cache(Path::new("s.yaml"));
        let absolute = std::env::current_dir().unwrap().join("s.yaml");
        assert_eq!(here, Keyring::of_cache(&absolute));
        assert_ne!(here, Keyring::of_cache(Path::new("/other/s.yaml")));
        let other = SessionKey { client_id: "other".into(), ..key() };
        assert_ne!(here.item(&key()), here.item(&other));
        let item = here.item(&key());
        assert!([item.group, item.name].iter().all(|text| text.len() == 16), "not a short name");
    }

    #[test]
    fn a_token_of_another_session_or_one_that_was_not_used_for_long_is_ignored() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let secret = Secret { key: key(), last_used: now - MAX_UNUSED, refresh_token: "r".into() };
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(
            text,
            r#"{"key":{"issuer":"https://i","clientID":"c","scopes":["openid"],"redirect_uri":"http://localhost:0/callback"},"lastUsed":"2026-08-23T10:00:00Z","refreshToken":"r"}"#
        );
        let secret = Secret::parse(text.as_bytes()).unwrap();
        assert!(secret.is_current(&key(), now));
        assert!(!secret.is_current(&key(), now + Duration::from_secs(1)));
        assert!(!secret.is_current(&SessionKey { client_id: "other".into(), ..key() }, now));
        assert!(matches!(Secret::parse(b"r"), Err(KeyringError::Malformed)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_keyring_that_does_not_respond_is_given_up() {
        let never = std::future::pending::<Result<(), KeyringError>>();
        assert_eq!(limited(RESPONSE_LIMIT, never).await, Err(KeyringError::Timeout));
    }
}
