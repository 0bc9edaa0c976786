//! The user that a kubeconfig user entry impersonates: the fields `as`, `as-uid`, `as-groups` and
//! `as-user-extra` next to a login plugin, and the plugin argument with their digest.
//!
//! The fields and the digest are always written together, so that the plugin can determine from its
//! arguments which headers kubectl sends.

use std::io;
use std::path::{Path, PathBuf};

use kube::config::AuthInfo;
use serde_json::{Map, Value, json};

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::identity_digest::IdentityDigest;

use super::merge::with_users;
use super::paths;
use super::replace::{ReplaceError, replace};
use crate::bounded_file;
use crate::environment::Environment;
use crate::flags::Delivery;
use crate::login::session::{DELIVERY, EXPECTED_IDENTITY};

const FIELDS: [&str; 4] = ["as", "as-uid", "as-groups", "as-user-extra"];

/// The file in which an identity is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The identity was written to this file.
    Written {
        /// The file.
        path: PathBuf,
        /// Whether the comments of a file are lost.
        comments_lost: bool,
    },
    /// Another process had already written it to this file.
    Already(PathBuf),
}

/// The reason why an identity was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No file contains the login.
    #[error("no kubeconfig with this login was found{}", in_paths(.0))]
    NotFound(Vec<String>),
    /// The file cannot be changed.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

fn in_paths(paths: &[String]) -> String {
    if paths.is_empty() { String::new() } else { format!(" in {}", paths.join(", ")) }
}

/// Writes the user to impersonate, or none, to every user entry whose plugin has the command and
/// arguments of this process.
///
/// # Errors
///
/// Returns an error if a file with such an entry cannot be written, or if there is no such file.
pub fn record(environment: &Environment, user: Option<&ImpersonatedUser>) -> Result<Recorded, RecordError> {
    // With the flag, kubectl reads only one file.
    let from_parent = environment.kubeconfig_of_parent().map(|path| path.to_string_lossy().into_owned());
    let candidates = match from_parent {
        Some(path) if has_login(Path::new(&path), environment) => vec![path],
        _ => paths(environment),
    };
    let mut recorded = None;
    let mut lost = false;
    for path in candidates.iter().map(Path::new).filter(|path| has_login(path, environment)) {
        let written = replace(path, |text| {
            let before = parse(text)?;
            let mut after = before.clone();
            let changed = edit(&mut after, environment, user) == Some(true);
            Ok(changed.then(|| {
                let (text, comments_lost) = with_users(text, &before, &after);
                lost |= comments_lost;
                text
            }))
        })?;
        match recorded {
            Some(Recorded::Written { .. }) => {}
            _ if written => {
                recorded = Some(Recorded::Written { path: path.to_owned(), comments_lost: false });
            }
            Some(Recorded::Already(_)) => {}
            None => recorded = Some(Recorded::Already(path.to_owned())),
        }
    }
    if let Some(Recorded::Written { comments_lost, .. }) = &mut recorded {
        *comments_lost = lost;
    }
    recorded.ok_or(RecordError::NotFound(candidates))
}

fn has_login(path: &Path, environment: &Environment) -> bool {
    bounded_file::read_to_string(path)
        .and_then(|text| parse(&text))
        .is_ok_and(|mut document| edit(&mut document, environment, None).is_some())
}

fn parse(text: &str) -> io::Result<Value> {
    // The parser's message may quote the content of the file.
    serde_saphyr::from_str(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a kubeconfig"))
}

/// Changes the entries that log in like this process. Returns whether anything changed, or `None`
/// without such an entry.
fn edit(document: &mut Value, environment: &Environment, user: Option<&ImpersonatedUser>) -> Option<bool> {
    let mut found = None;
    let users = document.get_mut("users").and_then(Value::as_array_mut);
    for entry in users.into_iter().flatten() {
        let Some(Value::Object(entry)) = entry.get_mut("user") else { continue };
        if entry.get("exec").is_some_and(|exec| is_this_login(exec, environment)) {
            let before = entry.clone();
            write_fields(entry, user);
            found = Some(found == Some(true) || *entry != before);
        }
    }
    found
}

/// Returns whether this plugin has the command and arguments of this process, except for the
/// expected identity.
fn is_this_login(exec: &Value, environment: &Environment) -> bool {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let list = |name: &str| exec.get(name).and_then(Value::as_array).into_iter().flatten();
    let args: Option<Vec<String>> = list("args").map(text).collect();
    let lasting = |args: &[String]| -> Vec<String> {
        args.iter().filter(|arg| !arg.starts_with(EXPECTED_IDENTITY)).cloned().collect()
    };
    let same_variables = list("env").all(|pair| {
        let name = pair.get("name").and_then(Value::as_str).unwrap_or_default();
        environment.variable(name) == pair.get("value").and_then(Value::as_str)
    });
    same_variables && args.is_some_and(|args| lasting(&args) == lasting(&environment.args))
}

fn write_fields(entry: &mut Map<String, Value>, user: Option<&ImpersonatedUser>) {
    for field in FIELDS {
        entry.remove(field);
    }
    if let Some(Value::Array(args)) = entry.get_mut("exec").and_then(|exec| exec.get_mut("args")) {
        args.retain(|arg| !arg.as_str().is_some_and(|arg| arg.starts_with(EXPECTED_IDENTITY)));
        args.extend(user.map(|user| Value::from(expectation(user))));
    }
    if let Some(user) = user {
        entry.extend(fields(user));
    }
}

/// Returns the fields that impersonate a user.
pub fn fields(user: &ImpersonatedUser) -> Map<String, Value> {
    let all = [
        ("as", json!(user.username), true),
        ("as-uid", json!(user.uid), !user.uid.is_empty()),
        ("as-groups", json!(user.groups), !user.groups.is_empty()),
        ("as-user-extra", json!(user.extra), !user.extra.is_empty()),
    ];
    all.into_iter().filter(|(_, _, set)| *set).map(|(name, value, _)| (name.to_owned(), value)).collect()
}

/// Returns the argument that belongs to [`fields`].
pub fn expectation(user: &ImpersonatedUser) -> String {
    format!("{EXPECTED_IDENTITY}{}", IdentityDigest::of(user))
}

/// Sets the impersonation fields of an entry, and adds the digest and the delivery to the arguments
/// of its plugin.
pub fn write_user(entry: &mut AuthInfo, user: &ImpersonatedUser, delivery: Delivery) {
    entry.impersonate = Some(user.username.clone());
    entry.impersonate_uid = (!user.uid.is_empty()).then(|| user.uid.clone());
    entry.impersonate_groups = (!user.groups.is_empty()).then(|| user.groups.clone());
    entry.impersonate_user_extra = (!user.extra.is_empty()).then(|| user.extra.clone().into_iter().collect());
    if let Some(exec) = &mut entry.exec {
        let args = exec.args.get_or_insert_default();
        args.retain(|arg| !arg.starts_with(EXPECTED_IDENTITY) && !arg.starts_with(DELIVERY));
        args.push(format!("{DELIVERY}{}", delivery.as_str()));
        args.push(expectation(user));
    }
}

/// A user entry that impersonates a UID, groups or extra values without a user name. The field is
/// the name of the entry; the text is that of client-go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requesting uid, groups or user-extra for {0} without impersonating a user")]
pub struct NoUsername(String);

/// Returns the user that the fields of an entry impersonate.
///
/// # Errors
///
/// Returns an error for fields without a user name.
pub fn read_user(name: &str, entry: &AuthInfo) -> Result<Option<ImpersonatedUser>, NoUsername> {
    let user = ImpersonatedUser {
        username: entry.impersonate.clone().unwrap_or_default(),
        uid: entry.impersonate_uid.clone().unwrap_or_default(),
        groups: entry.impersonate_groups.clone().unwrap_or_default(),
        extra: entry.impersonate_user_extra.clone().unwrap_or_default().into_iter().collect(),
    };
    match user.username.is_empty() {
        false => Ok(Some(user)),
        true if user == ImpersonatedUser::default() => Ok(None),
        true => Err(NoUsername(name.to_owned())),
    }
}

/// Returns kubectl's flags that impersonate a user, quoted for a shell.
pub fn kubectl_flags(user: &ImpersonatedUser) -> String {
    let mut flags = vec![format!("--as={}", user.username)];
    if !user.uid.is_empty() {
        flags.push(format!("--as-uid={}", user.uid));
    }
    flags.extend(user.groups.iter().map(|group| format!("--as-group={group}")));
    for (key, values) in &user.extra {
        flags.extend(values.iter().map(|value| format!("--as-user-extra={key}={value}")));
    }
    flags.iter().map(|flag| shell_word(flag)).collect::<Vec<_>>().join(" ")
}

fn shell_word(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte)) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
