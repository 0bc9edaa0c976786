//! The `Impersonate-*` headers of a client, taken out of the request.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use pinniped_api::gojson::quote;

use crate::identity::{User, unescape_extra_key};
use crate::impersonation::{IMPERSONATE_EXTRA_PREFIX, IMPERSONATE_GROUP, IMPERSONATE_UID, IMPERSONATE_USER};

/// The headers ask for something, but not for a user. The text is the one of the API server, which prints its own data
/// structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requested {} without impersonating a user name", dump(.0))]
pub struct IntakeError(pub User);

/// Reads whom the client wants to be and removes those headers. `None`: nobody else. The user is raw: no group is added.
///
/// Headers stay where they are when there is no user name, and so do headers of unknown kinds; [`leftover`] finds them.
///
/// # Errors
/// When there is a UID, group or extra but no user name.
pub fn intake(headers: &mut HeaderMap) -> Result<Option<User>, IntakeError> {
    let first = |name: &HeaderName| headers.get(name).map(text).unwrap_or_default();
    let mut user = User { name: first(&IMPERSONATE_USER), uid: first(&IMPERSONATE_UID), ..User::default() };
    user.groups = headers.get_all(IMPERSONATE_GROUP).iter().map(text).collect();

    let extras: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(IMPERSONATE_EXTRA_PREFIX)).cloned().collect();
    for name in &extras {
        let key = unescape_extra_key(&name.as_str()[IMPERSONATE_EXTRA_PREFIX.len()..]);
        user.extra.entry(key).or_default().extend(headers.get_all(name).iter().map(text));
    }

    if user.name.is_empty() {
        let asks = !user.uid.is_empty() || !user.groups.is_empty() || !extras.is_empty();
        return if asks { Err(IntakeError(user)) } else { Ok(None) };
    }
    for name in [IMPERSONATE_USER, IMPERSONATE_UID, IMPERSONATE_GROUP].iter().chain(&extras) {
        headers.remove(name);
    }
    Ok(Some(user))
}

/// A header that must not be forwarded as the client sent it: any whose name starts with `Impersonate`.
pub fn leftover(headers: &HeaderMap) -> Option<&HeaderName> {
    headers.keys().find(|name| name.as_str().starts_with("impersonate"))
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// The user in Go's `%#v` form.
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
