//! A build without the feature `keyring`: there is no keyring.

use jiff::Timestamp;
use zeroize::Zeroizing;

use super::{ItemName, KeyringError};

/// A keyring that cannot be opened.
#[derive(Debug)]
pub(crate) enum SystemKeyring {}

impl SystemKeyring {
    pub(crate) async fn open() -> Result<Self, KeyringError> {
        Err(KeyringError::NotBuilt)
    }

    pub(crate) async fn is_locked(&self, _: &str) -> Result<bool, KeyringError> {
        match *self {}
    }

    pub(crate) async fn unlock(&self, _: &str) -> Result<(), KeyringError> {
        match *self {}
    }

    pub(crate) async fn contains(&self, _: &ItemName) -> Result<bool, KeyringError> {
        match *self {}
    }

    pub(crate) async fn read(&self, _: &ItemName) -> Result<Option<Zeroizing<Vec<u8>>>, KeyringError> {
        match *self {}
    }

    pub(crate) async fn write(&self, _: &ItemName, _: &str, _: &[u8]) -> Result<(), KeyringError> {
        match *self {}
    }

    pub(crate) async fn delete(&self, _: &ItemName) -> Result<(), KeyringError> {
        match *self {}
    }

    pub(crate) async fn items(&self, _: &str) -> Result<Vec<ItemName>, KeyringError> {
        match *self {}
    }

    pub(crate) async fn delete_unchanged_since(&self, _: &str, _: Timestamp) -> Result<(), KeyringError> {
        match *self {}
    }
}
