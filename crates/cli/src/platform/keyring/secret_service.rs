//! Linux and BSD: the Secret Service API of freedesktop.org, over D-Bus.
//!
//! This module uses the crate `secret-service`, on which the store of the `keyring` crates is
//! built. That store asks the user to unlock the keyring in every operation, also when a program
//! without a user refreshes a session in the background.

use std::collections::HashMap;
use std::error::Error as _;

use jiff::Timestamp;
use secret_service::{EncryptionType, Error, Item, SecretService};
use zeroize::Zeroizing;

use super::{APPLICATION, ItemName, KeyringError};

/// The attributes of items.
const ATTRIBUTES: [&str; 3] = ["application", "cache", "session"];
/// The type of the secrets.
const CONTENT_TYPE: &str = "application/json";

/// A connection to the Secret Service of the session.
pub(crate) struct SystemKeyring(SecretService<'static>);

impl std::fmt::Debug for SystemKeyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SystemKeyring")
    }
}

fn error(error: Error) -> KeyringError {
    match error {
        Error::Locked => KeyringError::Locked,
        Error::Prompt | Error::PromptDisconnected => KeyringError::NotUnlocked,
        Error::Unavailable => KeyringError::Unavailable,
        Error::NoResult => KeyringError::NoDefault,
        Error::Crypto(_) => KeyringError::Malformed,
        other => KeyringError::System(match other.source() {
            Some(cause) => cause.to_string(),
            None => other.to_string(),
        }),
    }
}

fn of_group(group: &str) -> HashMap<&str, &str> {
    let [application, cache, _] = ATTRIBUTES;
    HashMap::from([(application, APPLICATION), (cache, group)])
}

fn of_item(item: &ItemName) -> HashMap<&str, &str> {
    let [application, cache, session] = ATTRIBUTES;
    HashMap::from([(application, APPLICATION), (cache, &item.group), (session, &item.name)])
}

impl SystemKeyring {
    /// Connects, and agrees on a key that encrypts the secrets on the bus.
    pub(crate) async fn open() -> Result<Self, KeyringError> {
        SecretService::connect(EncryptionType::Dh).await.map(Self).map_err(error)
    }

    /// Returns whether an item of the group, or the keyring of new items, is locked.
    pub(crate) async fn is_locked(&self, group: &str) -> Result<bool, KeyringError> {
        if !self.0.search_items(of_group(group)).await.map_err(error)?.locked.is_empty() {
            return Ok(true);
        }
        match self.0.get_default_collection().await {
            Ok(collection) => collection.is_locked().await.map_err(error),
            Err(Error::NoResult) => Ok(false),
            Err(other) => Err(error(other)),
        }
    }

    /// Lets the user unlock the items of the group, and the keyring of new items.
    pub(crate) async fn unlock(&self, group: &str) -> Result<(), KeyringError> {
        let found = self.0.search_items(of_group(group)).await.map_err(error)?;
        if !found.locked.is_empty() {
            let locked: Vec<&Item<'_>> = found.locked.iter().collect();
            self.0.unlock_all(&locked).await.map_err(error)?;
        }
        match self.0.get_default_collection().await {
            Ok(collection) if collection.is_locked().await.map_err(error)? => {
                collection.unlock().await.map_err(error)
            }
            Ok(_) | Err(Error::NoResult) => Ok(()),
            Err(other) => Err(error(other)),
        }
    }

    /// Returns whether the item exists, also if it is locked.
    pub(crate) async fn contains(&self, item: &ItemName) -> Result<bool, KeyringError> {
        let found = self.0.search_items(of_item(item)).await.map_err(error)?;
        Ok(!found.unlocked.is_empty() || !found.locked.is_empty())
    }

    async fn find(&self, item: &ItemName) -> Result<Option<Item<'_>>, KeyringError> {
        let found = self.0.search_items(of_item(item)).await.map_err(error)?;
        match found.unlocked.into_iter().next() {
            None if !found.locked.is_empty() => Err(KeyringError::Locked),
            item => Ok(item),
        }
    }

    /// Returns the secret of an item, if it exists.
    pub(crate) async fn read(&self, item: &ItemName) -> Result<Option<Zeroizing<Vec<u8>>>, KeyringError> {
        match self.find(item).await? {
            Some(item) => Ok(Some(Zeroizing::new(item.get_secret().await.map_err(error)?))),
            None => Ok(None),
        }
    }

    /// Creates or replaces an item.
    pub(crate) async fn write(
        &self,
        item: &ItemName,
        label: &str,
        secret: &[u8],
    ) -> Result<(), KeyringError> {
        if let Some(item) = self.find(item).await? {
            return item.set_secret(secret, CONTENT_TYPE).await.map_err(error);
        }
        let collection = self.0.get_default_collection().await.map_err(error)?;
        // Otherwise, the call would ask the user.
        collection.ensure_unlocked().await.map_err(error)?;
        let created = collection.create_item(label, of_item(item), secret, true, CONTENT_TYPE);
        created.await.map(drop).map_err(error)
    }

    /// Deletes an item, if it exists.
    pub(crate) async fn delete(&self, item: &ItemName) -> Result<(), KeyringError> {
        match self.find(item).await? {
            Some(item) => item.delete().await.map_err(error),
            None => Ok(()),
        }
    }

    /// Returns the names of the items of a group, also of those that are locked.
    pub(crate) async fn items(&self, group: &str) -> Result<Vec<ItemName>, KeyringError> {
        let [_, _, session] = ATTRIBUTES;
        let found = self.0.search_items(of_group(group)).await.map_err(error)?;
        let mut names = Vec::new();
        for item in found.unlocked.iter().chain(&found.locked) {
            let name = item.get_attributes().await.map_err(error)?.remove(session);
            names.extend(name.map(|name| ItemName { group: group.to_owned(), name }));
        }
        Ok(names)
    }

    /// Deletes the items of a group that have not changed since `time`.
    pub(crate) async fn delete_unchanged_since(
        &self,
        group: &str,
        time: Timestamp,
    ) -> Result<(), KeyringError> {
        for item in self.0.search_items(of_group(group)).await.map_err(error)?.unlocked {
            let modified = item.get_modified().await.map_err(error)?;
            // Not every keyring stores the time.
            if modified != 0 && i64::try_from(modified).is_ok_and(|seconds| seconds < time.as_second()) {
                item.delete().await.map_err(error)?;
            }
        }
        Ok(())
    }
}
