//! Removes the `Impersonate-*` headers of a client from the request.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use pinniped_go_compat::json::quote;

use crate::identity::{User, unescape_extra_key};
use crate::impersonation::{IMPERSONATE_EXTRA_PREFIX, IMPERSONATE_GROUP, IMPERSONATE_UID, IMPERSONATE_USER};

/// The reasons why the headers cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntakeError {
    /// There is a UID, group or extra, but no user name. The text is that of the API server, which
    /// prints its own data structure.
    #[error("requested {} without impersonating a user name", dump(.0))]
    NoName(User),
    /// A header is not UTF-8. Access reviews are JSON, so the invalid bytes would be replaced: the
    /// review could be about another user than the one whose name the API server would then
    /// receive.
    #[error("header {0} is not valid UTF-8")]
    NotText(HeaderName),
}

/// Reads the user to impersonate and removes its headers. Returns `None` when the client does not
/// impersonate. No group is added to the user.
///
/// Without a user name, and for headers of unknown kinds, the headers are not removed; [`leftover`]
/// finds them.
///
/// # Errors
/// When there is a UID, group or extra but no user name, and when a value is not UTF-8.
pub fn intake(headers: &mut HeaderMap) -> Result<Option<User>, IntakeError> {
    if leftover(headers).is_none() {
        return Ok(None);
    }
    let first = |name: &HeaderName| match headers.get(name) {
        Some(value) => text(name, value),
        None => Ok(String::new()),
    };
    let all = |name: &HeaderName| -> Result<Vec<String>, IntakeError> {
        headers.get_all(name).iter().map(|value| text(name, value)).collect()
    };
    let mut user = User {
        name: first(&IMPERSONATE_USER)?,
        uid: first(&IMPERSONATE_UID)?,
        groups: all(&IMPERSONATE_GROUP)?,
        ..User::default()
    };

    let extras: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(IMPERSONATE_EXTRA_PREFIX)).cloned().collect();
    for name in &extras {
        let key = unescape_extra_key(&name.as_str()[IMPERSONATE_EXTRA_PREFIX.len()..])
            .ok_or_else(|| IntakeError::NotText(name.clone()))?;
        user.extra.entry(key).or_default().extend(all(name)?);
    }

    if user.name.is_empty() {
        let asks = !user.uid.is_empty() || !user.groups.is_empty() || !extras.is_empty();
        return if asks { Err(IntakeError::NoName(user)) } else { Ok(None) };
    }
    for name in [IMPERSONATE_USER, IMPERSONATE_UID, IMPERSONATE_GROUP].iter().chain(&extras) {
        headers.remove(name);
    }
    Ok(Some(user))
}

/// Returns a header that must not be forwarded: any whose name starts with `Impersonate`.
pub fn leftover(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| name.as_str().starts_with("impersonate"))
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, IntakeError> {
    let text = str::from_utf8(value.as_bytes()).map_err(|_| IntakeError::NotText(name.clone()))?;
    Ok(text.to_owned())
}

/// Formats the user like Go's `%#v`.
fn dump(user: &User) -> String {
    format!(
        "&user.DefaultInfo{{Name:{}, UID:{}, Groups:{}, Extra:{}}}",
        quote(&user.name),
        quote(&user.uid),
        dump_list(&user.groups),
        dump_map(&user.extra)
    )
}

fn dump_list(list: &[String]) -> String {
    if list.is_empty() {
        return "[]string(nil)".to_owned();
    }
    format!("[]string{{{}}}", list.iter().map(|s| quote(s)).collect::<Vec<_>>().join(", "))
}

fn dump_map(map: &BTreeMap<String, Vec<String>>) -> String {
    if map.is_empty() {
        return "map[string][]string(nil)".to_owned();
    }
    let entries: Vec<String> =
        map.iter().map(|(key, values)| format!("{}:{}", quote(key), dump_list(values))).collect();
    format!("map[string][]string{{{}}}", entries.join(", "))
}
