//! Who a request is from, and how that is written into headers and read out of them.
//!
//! A [`User`] is what Kubernetes calls `user.Info`. It enters through certificates, tokens or front-proxy headers
//! and leaves as `Impersonate-*` headers.

use std::collections::BTreeMap;

/// The name of the anonymous user.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of every authenticated user.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of the anonymous user.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group which may do everything.
pub const MASTERS: &str = "system:masters";
/// The extra key under which the API server records which credential was used.
pub const CREDENTIAL_ID_EXTRA: &str = "authentication.kubernetes.io/credential-id";

/// A user as Kubernetes knows it. Empty members mean "not set".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// User name.
    pub name: String,
    /// Unique id, often empty.
    pub uid: String,
    /// Groups in the order in which they were learnt.
    pub groups: Vec<String>,
    /// Further facts about the user, by lower-case key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user a request without any credential is from.
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Is this the anonymous user, by name?
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Appends [`AUTHENTICATED`] unless the user has it or [`UNAUTHENTICATED`] already, or is anonymous.
    pub fn with_authenticated_group(mut self) -> Self {
        let has = self.groups.iter().any(|g| g == AUTHENTICATED || g == UNAUTHENTICATED);
        if !has && !self.is_anonymous() {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// Is the user in this group?
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// Checks the extra keys an authenticator returned, with the message a `TokenCredentialRequest` is refused with.
pub fn check_extra_keys(_extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    todo!()
}
