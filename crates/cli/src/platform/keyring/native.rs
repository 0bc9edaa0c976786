//! macOS: the keychain of the user. Windows: the Credential Manager.
//!
//! The system decrypts the items of a user who has logged in, and may ask whether the program may
//! read them. The calls for items block, so they run on threads for blocking work.

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(target_os = "macos")]
use apple_native_keyring_store::keychain::Store;
use jiff::Timestamp;
use keyring_core::{CredentialStore, Entry, Error};
#[cfg(windows)]
use windows_native_keyring_store::Store;
use zeroize::Zeroizing;

use super::{APPLICATION, ItemName, KeyringError};

/// Attributes of new items. On Windows, they do not leave the machine with a roaming profile.
#[cfg(windows)]
const MODIFIERS: [(&str, &str); 1] = [("persistence", "Local")];
/// Attributes of new items.
#[cfg(target_os = "macos")]
const MODIFIERS: [(&str, &str); 0] = [];

/// The parameters of a search for the items of this program.
#[cfg(windows)]
const SEARCH: [(&str, &str); 1] = [("pattern", "pinniped")];
/// The parameters of a search for the items of this program.
#[cfg(target_os = "macos")]
const SEARCH: [(&str, &str); 1] = [("service", APPLICATION)];

/// The keyring of the user.
#[derive(Clone, Debug)]
pub(crate) struct SystemKeyring(Arc<CredentialStore>);

fn error(error: Error) -> KeyringError {
    match error {
        Error::NoStorageAccess(_) => KeyringError::Locked,
        Error::BadEncoding(_) | Error::BadDataFormat(..) | Error::BadStoreFormat(_) => {
            KeyringError::Malformed
        }
        other => KeyringError::System(other.to_string()),
    }
}

/// Returns the user of an item, as the systems call its name.
fn user(item: &ItemName) -> String {
    format!("{}-{}", item.group, item.name)
}

impl SystemKeyring {
    /// Opens the keyring.
    pub(crate) async fn open() -> Result<Self, KeyringError> {
        Ok(Self(Store::new().map_err(error)?))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&CredentialStore) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, KeyringError> {
        let store = Arc::clone(&self.0);
        let called = tokio::task::spawn_blocking(move || call(&*store)).await;
        called.map_err(|failed| KeyringError::System(failed.to_string()))?.map_err(error)
    }

    async fn with_entry<T: Send + 'static>(
        &self,
        item: &ItemName,
        call: impl FnOnce(&Entry) -> Result<T, Error> + Send + 'static,
    ) -> Result<Option<T>, KeyringError> {
        let user = user(item);
        let modifiers = HashMap::from(MODIFIERS);
        self.blocking(move |store| match call(&store.build(APPLICATION, &user, Some(&modifiers))?) {
            Err(Error::NoEntry) => Ok(None),
            result => result.map(Some),
        })
        .await
    }

    /// Returns false: the system unlocks the keyring if it is needed.
    pub(crate) async fn is_locked(&self, _: &str) -> Result<bool, KeyringError> {
        Ok(false)
    }

    /// Does nothing.
    pub(crate) async fn unlock(&self, _: &str) -> Result<(), KeyringError> {
        Ok(())
    }

    /// Returns whether the item exists.
    pub(crate) async fn contains(&self, item: &ItemName) -> Result<bool, KeyringError> {
        Ok(self.with_entry(item, |entry| entry.get_credential().map(drop)).await?.is_some())
    }

    /// Returns the secret of an item, if it exists.
    pub(crate) async fn read(&self, item: &ItemName) -> Result<Option<Zeroizing<Vec<u8>>>, KeyringError> {
        self.with_entry(item, |entry| entry.get_secret().map(Zeroizing::new)).await
    }

    /// Creates or replaces an item.
    pub(crate) async fn write(&self, item: &ItemName, _: &str, secret: &[u8]) -> Result<(), KeyringError> {
        let secret = Zeroizing::new(secret.to_vec());
        self.with_entry(item, move |entry| entry.set_secret(&secret)).await.map(drop)
    }

    /// Deletes an item, if it exists.
    pub(crate) async fn delete(&self, item: &ItemName) -> Result<(), KeyringError> {
        self.with_entry(item, Entry::delete_credential).await.map(drop)
    }

    /// Returns the names of the items of a group.
    pub(crate) async fn items(&self, group: &str) -> Result<Vec<ItemName>, KeyringError> {
        let entries = self.blocking(|store| store.search(&HashMap::from(SEARCH))).await?;
        let users = entries.iter().filter_map(|entry| {
            let (service, user) = entry.get_specifiers()?;
            (service == APPLICATION).then_some(user)
        });
        Ok(users
            .filter_map(|user| {
                let name = user.strip_prefix(group)?.strip_prefix('-')?.to_owned();
                Some(ItemName { group: group.to_owned(), name })
            })
            .collect())
    }

    /// Does nothing: the system does not store the time of a change.
    pub(crate) async fn delete_unchanged_since(&self, _: &str, _: Timestamp) -> Result<(), KeyringError> {
        Ok(())
    }
}
