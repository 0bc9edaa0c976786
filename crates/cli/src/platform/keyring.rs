//! The keyring of the operating system: items with secrets.
//!
//! | module | keyring |
//! |---|---|
//! | `secret_service` | Linux and BSD: the Secret Service, such as GNOME Keyring and KWallet |
//! | `native` | macOS: the keychain of the user; Windows: the Credential Manager |
//! | `missing` | a build without the feature `keyring` |
//!
//! With the Secret Service, no operation unlocks the keyring, except `SystemKeyring::unlock`. macOS
//! and Windows may ask the user in any operation. Callers limit the time: a keyring may not
//! respond. [`login::keyring`](crate::login::keyring) decides which items there are.

#[cfg(not(feature = "keyring"))]
mod missing;
#[cfg(all(feature = "keyring", any(target_os = "macos", windows)))]
mod native;
#[cfg(all(feature = "keyring", unix, not(target_os = "macos")))]
mod secret_service;

#[cfg(not(feature = "keyring"))]
pub(crate) use missing::SystemKeyring;
#[cfg(all(feature = "keyring", any(target_os = "macos", windows)))]
pub(crate) use native::SystemKeyring;
#[cfg(all(feature = "keyring", unix, not(target_os = "macos")))]
pub(crate) use secret_service::SystemKeyring;

/// The program in the names of its items.
#[cfg(feature = "keyring")]
const APPLICATION: &str = "pinniped";

/// The name of an item of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemName {
    /// The group of the item; hexadecimal digits.
    pub(crate) group: String,
    /// The name, which is unique in the group; hexadecimal digits.
    pub(crate) name: String,
}

/// The keyring of the operating system could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// The program was built without the feature `keyring`.
    #[error("this build of the program has no keyring support")]
    NotBuilt,
    /// Nothing provides a keyring.
    #[error("there is no keyring: the session has no D-Bus, or no program provides a Secret Service")]
    Unavailable,
    /// The keyring is locked.
    #[error("the keyring is locked")]
    Locked,
    /// The user did not unlock the keyring.
    #[error("the keyring was not unlocked")]
    NotUnlocked,
    /// There is no keyring for new items.
    #[error("there is no default keyring")]
    NoDefault,
    /// The keyring did not respond in time.
    #[error("the keyring did not respond in time")]
    Timeout,
    /// The item was written by another program.
    #[error("the item in the keyring has another format")]
    Malformed,
    /// The keyring returned this error.
    #[error("{0}")]
    System(String),
}
