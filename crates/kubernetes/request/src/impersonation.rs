//! The identity with which a request continues to the API server.
//!
//! [`plan`] decides between adding `Impersonate-*` headers, passing the client's own token through,
//! and refusing. [`Impersonation::write`] writes the headers.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use serde::Serialize;

use crate::identity::{KnownUser, User, escape_extra_key};

/// The suffix of the extra keys, and of the reasons of reviews, that are reserved for the proxy.
pub const RESERVED: &str = "impersonation-proxy.concierge.pinniped.dev";
/// The extra key in which the API server receives the original user of an impersonated request.
pub const ORIGINAL_USER_INFO: &str = "original-user-info.impersonation-proxy.concierge.pinniped.dev";
/// `Impersonate-User`.
pub const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
/// `Impersonate-Group`.
pub const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
/// `Impersonate-Uid`.
pub const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
/// The prefix of header names for extras.
pub const IMPERSONATE_EXTRA_PREFIX: &str = "impersonate-extra-";

/// Whether users with a UID can be impersonated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UidImpersonation {
    /// `Impersonate-Uid` is sent.
    Enabled,
    /// A user with a UID can only be served with the user's own token, as in upstream.
    Disabled,
}

/// The result of reviewing the bearer token of a request. It is needed only for users with a UID
/// who do not impersonate another user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BearerTokenReview {
    /// The request has no token.
    None,
    /// The token is invalid.
    Rejected,
    /// The token could not be reviewed; contains the error.
    Failed(String),
    /// The token belongs to this user, who may be the user of the request.
    User(User),
}

/// The decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan<'a> {
    /// Forward with our service account's token and `Impersonate-*` headers.
    Impersonate(Impersonation<'a>),
    /// Forward with the client's own token and no other identity.
    Passthrough,
    /// Refuse with 500. The client receives no details.
    Refuse(Refusal),
}

/// The reason why a user cannot be impersonated. Displayed in logs only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The extra key cannot be written into a header so that every server reads it back unchanged.
    #[error("disallowed extra key seen: {0}")]
    ExtraKey(String),
    /// The extra key is reserved for the proxy.
    #[error("disallowed extra key with reserved prefix seen: {0}")]
    ReservedExtraKey(String),
    /// The client impersonates a user with a UID, and UID impersonation is disabled.
    #[error("unable to impersonate uid")]
    NestedUid,
    /// The user has a UID, and the request has no token to pass through.
    #[error("no token on request")]
    NoToken,
    /// The user has a UID, and the token is invalid.
    #[error("token failed to authenticate")]
    TokenRejected,
    /// The user has a UID, and the token could not be reviewed.
    #[error("{0}")]
    TokenUnknown(String),
    /// The user has a UID, and the token belongs to another user.
    #[error("token authenticated as a different user")]
    OtherUser,
}

impl Refusal {
    /// Returns the reason without the texts that clients or the API server choose.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ExtraKey(_) => "extra key",
            Self::ReservedExtraKey(_) => "reserved extra key",
            Self::NestedUid => "impersonated UID",
            Self::NoToken => "no token",
            Self::TokenRejected => "invalid token",
            Self::TokenUnknown(_) => "token not reviewed",
            Self::OtherUser => "token of another user",
        }
    }
}

/// Returns whether [`plan`] needs the owner of the request's token. A review costs a call, so it is
/// made only then.
pub fn needs_token_review(user: &User, is_impersonated: bool) -> bool {
    !user.uid.is_empty() && !is_impersonated
}

/// Decides with which identity the request continues. `original` is the user who impersonates
/// `user`, if any.
pub fn plan<'a>(
    user: &'a KnownUser,
    original: Option<&'a User>,
    token: &BearerTokenReview,
    uids: UidImpersonation,
) -> Plan<'a> {
    if !user.uid.is_empty() && original.is_none() {
        let refusal = match token {
            BearerTokenReview::User(owner) if *owner == **user => return Plan::Passthrough,
            // Fail closed: a token that could not be reviewed is never passed through.
            BearerTokenReview::Failed(error) => return Plan::Refuse(Refusal::TokenUnknown(error.clone())),
            BearerTokenReview::User(_) => Refusal::OtherUser,
            BearerTokenReview::Rejected => Refusal::TokenRejected,
            BearerTokenReview::None => Refusal::NoToken,
        };
        if uids == UidImpersonation::Disabled {
            return Plan::Refuse(refusal);
        }
    }
    if !user.uid.is_empty() && original.is_some() && uids == UidImpersonation::Disabled {
        return Plan::Refuse(Refusal::NestedUid);
    }
    match user.refused(refused_key) {
        Some(refusal) => Plan::Refuse(refusal.clone()),
        None => Plan::Impersonate(Impersonation { user, original }),
    }
}

fn refused_key(user: &User) -> Option<Refusal> {
    user.extra.keys().find_map(|key| {
        if !is_plain_key(key) {
            Some(Refusal::ExtraKey(key.clone()))
        } else if key.strip_suffix(RESERVED).is_some_and(|rest| rest.ends_with('.')) {
            Some(Refusal::ReservedExtraKey(key.clone()))
        } else {
            None
        }
    })
}

fn is_plain_key(key: &str) -> bool {
    !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"/-._".contains(&b))
}

/// A user to write into `Impersonate-*` headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impersonation<'a> {
    user: &'a User,
    original: Option<&'a User>,
}

/// A part of the identity contains characters that are not allowed in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid header field value")]
pub struct InvalidHeader;

impl<'a> Impersonation<'a> {
    /// Returns the impersonation of a user whom no other user impersonates.
    pub fn of(user: &'a User) -> Self {
        Self { user, original: None }
    }

    /// Returns whether another user impersonates the user.
    pub fn is_by_another_user(&self) -> bool {
        self.original.is_some()
    }

    /// Adds the headers. `headers` must not contain an `Impersonate-*` header.
    ///
    /// # Errors
    /// When a name or value contains control characters, or the user has no name: without a name,
    /// the request would be made as our own service account.
    pub fn write(&self, headers: &mut HeaderMap) -> Result<(), InvalidHeader> {
        self.each(|name, value| {
            // A header map has room for 32,768 names, and a user may have more extras.
            headers.try_append(name, value).map(drop).map_err(|_| InvalidHeader)
        })
    }

    /// Returns the headers, in order.
    pub(crate) fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, InvalidHeader> {
        let mut headers = Vec::new();
        self.each(|name, value| {
            headers.push((name, value));
            Ok(())
        })?;
        Ok(headers)
    }

    fn each(
        &self,
        mut add: impl FnMut(HeaderName, HeaderValue) -> Result<(), InvalidHeader>,
    ) -> Result<(), InvalidHeader> {
        if self.user.name.is_empty() {
            return Err(InvalidHeader);
        }
        let mut add = |name: HeaderName, text: &str| {
            add(name, HeaderValue::from_bytes(text.as_bytes()).map_err(|_| InvalidHeader)?)
        };
        add(IMPERSONATE_USER, &self.user.name)?;
        if !self.user.uid.is_empty() {
            add(IMPERSONATE_UID, &self.user.uid)?;
        }
        for group in &self.user.groups {
            add(IMPERSONATE_GROUP, group)?;
        }
        for (key, values) in &self.user.extra {
            let name = extra_header(key)?;
            for text in values {
                add(name.clone(), text)?;
            }
        }
        if let Some(original) = self.original {
            add(extra_header(ORIGINAL_USER_INFO)?, &original_user_info(original))?;
        }
        Ok(())
    }

    /// Returns whether HTTP/1.1 transports this identity unchanged. HTTP/1.1 strips spaces around a
    /// value, so `" admin"` would arrive as `"admin"`. HTTP/2 preserves every byte.
    pub fn is_exact_in_http1(&self) -> bool {
        let is_exact = |text: &String| text.trim_matches([' ', '\t']).len() == text.len();
        let User { name, uid, groups, extra } = self.user;
        is_exact(name) && is_exact(uid) && groups.iter().chain(extra.values().flatten()).all(is_exact)
    }
}

fn extra_header(key: &str) -> Result<HeaderName, InvalidHeader> {
    let name = format!("{IMPERSONATE_EXTRA_PREFIX}{}", escape_extra_key(key));
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| InvalidHeader)
}

/// Returns the user as JSON, with the member order and the escapes of Go's encoder.
pub fn original_user_info(user: &User) -> String {
    #[derive(Serialize)]
    struct UserInfo<'a> {
        #[serde(skip_serializing_if = "str::is_empty")]
        username: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        uid: &'a str,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        groups: &'a [String],
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        extra: &'a BTreeMap<String, Vec<String>>,
    }
    pinniped_go_compat::json::to_string(&UserInfo {
        username: &user.name,
        uid: &user.uid,
        groups: &user.groups,
        extra: &user.extra,
    })
}

#[cfg(test)]
mod tests;
