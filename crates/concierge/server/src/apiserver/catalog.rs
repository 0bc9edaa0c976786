//! The resources of this server: two groups with one resource each, with the suffix of the
//! installation.

use pinniped_concierge_api::names::{CATEGORY, GROUP_IDENTITY, GROUP_LOGIN, VERSION};
use pinniped_kube_types::suffix::GroupSuffix;

/// The verbs of both resources.
pub(super) const VERBS: [&str; 2] = ["create", "list"];

/// The categories of both resources.
pub(super) const CATEGORIES: [&str; 1] = [CATEGORY];

/// A kind that this server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    WhoAmIRequest,
    TokenCredentialRequest,
}

impl Kind {
    /// All kinds, in the alphabetical order of their groups.
    pub(super) const ALL: [Self; 2] = [Self::WhoAmIRequest, Self::TokenCredentialRequest];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => "WhoAmIRequest",
            Self::TokenCredentialRequest => "TokenCredentialRequest",
        }
    }

    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => "whoamirequests",
            Self::TokenCredentialRequest => "tokencredentialrequests",
        }
    }

    pub(super) fn singular(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => "whoamirequest",
            Self::TokenCredentialRequest => "tokencredentialrequest",
        }
    }

    /// Returns the name of the Go package of the kind's group, which appears in model names and in
    /// some messages.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => "identity",
            Self::TokenCredentialRequest => "login",
        }
    }

    /// Returns the group with the default suffix, which validation messages contain regardless of
    /// the configured suffix.
    pub(super) fn plain_group(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => GROUP_IDENTITY,
            Self::TokenCredentialRequest => GROUP_LOGIN,
        }
    }

    /// Returns the group in this installation.
    pub(super) fn group(self, suffix: &GroupSuffix) -> String {
        suffix.replace(self.plain_group())
    }

    /// Returns group and version in this installation.
    pub(super) fn group_version(self, suffix: &GroupSuffix) -> String {
        format!("{}/{VERSION}", self.group(suffix))
    }

    /// Returns the kind of a group in this installation.
    pub(super) fn of_group(group: &str, suffix: &GroupSuffix) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.group(suffix) == group)
    }
}
