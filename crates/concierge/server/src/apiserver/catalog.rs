//! What this server serves: two groups with one resource each, under the installation's suffix.

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
    /// In the alphabetical order of their groups.
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

    /// The name of the Go package of the kind's group, which shows in model names and in some messages.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => "identity",
            Self::TokenCredentialRequest => "login",
        }
    }

    /// The group under the default suffix, which validation messages name whatever the suffix.
    pub(super) fn plain_group(self) -> &'static str {
        match self {
            Self::WhoAmIRequest => GROUP_IDENTITY,
            Self::TokenCredentialRequest => GROUP_LOGIN,
        }
    }

    /// The group in this installation.
    pub(super) fn group(self, suffix: &GroupSuffix) -> String {
        suffix.replace(self.plain_group())
    }

    /// Group and version in this installation.
    pub(super) fn group_version(self, suffix: &GroupSuffix) -> String {
        format!("{}/{VERSION}", self.group(suffix))
    }

    /// The kind of a group in this installation.
    pub(super) fn of_group(group: &str, suffix: &GroupSuffix) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.group(suffix) == group)
    }
}
