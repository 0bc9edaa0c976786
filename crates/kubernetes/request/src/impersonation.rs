//! As whom a request goes on to the API server.
//!
//! [`plan`] decides between adding `Impersonate-*` headers, passing the client's own token through, and refusing.
//! [`Impersonation::write`] writes the headers.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use serde::Serialize;

use crate::identity::{KnownUser, User, escape_extra_key};

/// The suffix of every extra key, and of every review's reason, that is ours alone.
pub const RESERVED: &str = "impersonation-proxy.concierge.pinniped.dev";
/// The extra key under which the API server is told who impersonated the final user.
pub const ORIGINAL_USER_INFO: &str = "original-user-info.impersonation-proxy.concierge.pinniped.dev";
/// `Impersonate-User`.
pub const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
/// `Impersonate-Group`.
pub const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
/// `Impersonate-Uid`.
pub const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
/// What the name of a header with an extra starts with.
pub const IMPERSONATE_EXTRA_PREFIX: &str = "impersonate-extra-";

/// Whether users with a UID can be impersonated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UidImpersonation {
    /// `Impersonate-Uid` is sent.
    Enabled,
    /// A user with a UID can only be acted for with the user's own token, as in upstream.
    Disabled,
}

/// What is known about the bearer token of a request. It matters only for users with a UID who do not impersonate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The request had none.
    None,
    /// The token is nobody's.
    Rejected,
    /// The token could not be reviewed; why not.
    Unknown(String),
    /// The token is some user's, perhaps the request's.
    Is(User),
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan<'a> {
    /// Our service account's token and `Impersonate-*` headers.
    Impersonate(Impersonation<'a>),
    /// The client's own token and nothing else.
    Passthrough,
    /// 500; the client is told no more than that we cannot act as this user.
    Refuse(Refusal),
}

/// Why we cannot act as a user. Displayed in logs only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The key cannot be written into a header and read back unchanged everywhere.
    #[error("disallowed extra key seen: {0}")]
    ExtraKey(String),
    /// The key is ours.
    #[error("disallowed extra key with reserved prefix seen: {0}")]
    ReservedExtraKey(String),
    /// A nested impersonation asked for a UID while these are off.
    #[error("unable to impersonate uid")]
    NestedUid,
    /// A user with a UID, and no token to pass through.
    #[error("no token on request")]
    NoToken,
    /// A user with a UID, and a token that is nobody's.
    #[error("token failed to authenticate")]
    TokenRejected,
    /// A user with a UID, and a token which could not be reviewed.
    #[error("{0}")]
    TokenUnknown(String),
    /// A user with a UID, and somebody else's token.
    #[error("token authenticated as a different user")]
    OtherUser,
}

/// Does [`plan`] need to know whose token the request carries? A review costs a call, so it is asked only then.
pub fn needs_token_verdict(user: &User, nested: bool) -> bool {
    !user.uid.is_empty() && !nested
}

/// Decides as whom the request goes on. `original` is the user who impersonates `user`, if that is so.
pub fn plan<'a>(
    user: &'a KnownUser,
    original: Option<&'a User>,
    token: &TokenVerdict,
    uids: UidImpersonation,
) -> Plan<'a> {
    if !user.uid.is_empty() && original.is_none() {
        let refusal = match token {
            TokenVerdict::Is(owner) if *owner == **user => return Plan::Passthrough,
            // Not knowing is never a reason to go on.
            TokenVerdict::Unknown(error) => return Plan::Refuse(Refusal::TokenUnknown(error.clone())),
            TokenVerdict::Is(_) => Refusal::OtherUser,
            TokenVerdict::Rejected => Refusal::TokenRejected,
            TokenVerdict::None => Refusal::NoToken,
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

/// A user to be written into `Impersonate-*` headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impersonation<'a> {
    user: &'a User,
    original: Option<&'a User>,
}

/// A part of the identity holds characters which no header may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid header field value")]
pub struct InvalidHeader;

impl<'a> Impersonation<'a> {
    /// Of a user whom nobody impersonates.
    pub fn of(user: &'a User) -> Self {
        Self { user, original: None }
    }

    /// Does somebody impersonate the user?
    pub fn is_nested(&self) -> bool {
        self.original.is_some()
    }

    /// Adds the headers. There must be no `Impersonate-*` header in `headers` before.
    ///
    /// # Errors
    /// When a name or value holds control characters, or the user has no name: without one the request would be made
    /// as our own account.
    pub fn write(&self, headers: &mut HeaderMap) -> Result<(), InvalidHeader> {
        self.each(|name, value| {
            // A map has room for 32,768 names, and a user may come with more extras.
            headers.try_append(name, value).map(drop).map_err(|_| InvalidHeader)
        })
    }

    /// The headers, in order.
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

    /// Does HTTP/1.1 carry this identity as it is? Spaces around a value are none of it there, so that `" admin"` would
    /// arrive as `"admin"`. HTTP/2 carries every byte.
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

/// The user as JSON, in the order and with the escapes of Go's encoder.
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
