//! Merges generated entries into the text of an existing kubeconfig.
//!
//! Everything else in the file stays: other entries, unknown fields, and comments. The result is
//! parsed again and compared with the expected content. If the editor of the text cannot produce
//! it, the document is written anew, without its comments.

use std::collections::HashSet;

use pinniped_go_compat::json::quote;
use pinniped_go_compat::yaml as goyaml;
use serde_json::{Map, Value, json};

use super::generated::Entries;
use crate::login::session::login_command;

mod text;

/// The field with the name of the current context.
const CURRENT_CONTEXT: &str = "current-context";

/// Generated entries were not merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The file is not YAML. The field is the first line of the parser's text: further lines may
    /// contain credentials.
    #[error("it is not YAML: {0}")]
    Syntax(String),
    /// The document is no kubeconfig.
    #[error("it is not a kubeconfig: {0}")]
    NotKubeconfig(String),
    /// An entry of this name has another content.
    #[error(
        "it already has a {kind} {} {problem}; choose another name with --context, or replace it with --overwrite",
        quote(.name)
    )]
    Clash {
        /// The kind of entry.
        kind: &'static str,
        /// The name of the entry.
        name: String,
        /// The difference.
        problem: String,
    },
}

/// The settings of a merge.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeSettings {
    /// Whether entries of the same name are replaced, whatever they are.
    pub overwrite: bool,
    /// Whether the merged context becomes the current one.
    pub set_current: bool,
}

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The new text; `None` if nothing changed.
    pub text: Option<String>,
    /// Whether the comments of the previous text are lost.
    pub comments_lost: bool,
}

/// A list of the kubeconfig, and the field of its entries.
struct List {
    name: &'static str,
    kind: &'static str,
}

const CLUSTERS: List = List { name: "clusters", kind: "cluster" };
const USERS: List = List { name: "users", kind: "user" };
const CONTEXTS: List = List { name: "contexts", kind: "context" };

/// The fields of a cluster that a generated entry has, unless their value is the default. They
/// determine how the cluster is reached and verified, so that they are replaced together.
const GENERATED: [&str; 8] = [
    "certificate-authority",
    "certificate-authority-data",
    "disable-compression",
    "extensions",
    "insecure-skip-tls-verify",
    "proxy-url",
    "server",
    "tls-server-name",
];

/// The fields of a user entry that determine the user that the cluster authenticates. A login has
/// its own.
const CREDENTIALS: [&str; 13] = [
    "as",
    "as-groups",
    "as-uid",
    "as-user-extra",
    "auth-provider",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "password",
    "token",
    "tokenFile",
    "username",
];

/// A change of the document.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// An entry of a list, at this index, or after the last one.
    Entry { list: &'static str, at: Option<usize>, entry: Value },
    /// A text of the document itself.
    Field { name: &'static str, text: String },
}

/// Merges entries into `text`, which may be empty.
///
/// # Errors
///
/// Returns an error for a text that is not a kubeconfig, and for an entry of the same name that is
/// not an earlier result for the same cluster.
pub fn merge(text: &str, entries: &Entries, settings: MergeSettings) -> Result<Merged, MergeError> {
    let document = parse(text)?;
    let mut expected = document.clone();
    let mut changes = Vec::new();
    for (list, name, content) in [
        (&CLUSTERS, &entries.cluster_name, entries.cluster.clone()),
        (&USERS, &entries.user_name, entries.user.clone()),
        (&CONTEXTS, &entries.context_name, entries.context()),
    ] {
        let found = list.find(&document, name);
        changes.extend(change(list, name, found, content, settings.overwrite, |found, content| {
            clash(&document, list, found, content, entries)
        })?);
    }
    if settings.set_current && current_context(&document) != entries.context_name {
        changes.push(Change::Field { name: CURRENT_CONTEXT, text: entries.context_name.clone() });
    }
    // kubectl accepts a document without them; an empty one gets them as every generated one has.
    for (name, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        if document.is_empty() {
            changes.push(Change::Field { name, text: value.to_owned() });
        }
    }
    if changes.is_empty() {
        return Ok(Merged { text: None, comments_lost: false });
    }
    for change in &changes {
        apply(&mut expected, change);
    }
    let (text, comments_lost) = changed(text, &changes, &Value::Object(expected));
    Ok(Merged { text: Some(text), comments_lost })
}

/// Returns a text for the document `after`, which differs from `before`, the document of `text`,
/// in user entries only, and whether comments are lost.
pub(super) fn with_users(text: &str, before: &Value, after: &Value) -> (String, bool) {
    let users = |document: &Value| -> Vec<Value> {
        document.get(USERS.name).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let pairs = users(before).into_iter().zip(users(after)).enumerate();
    let changes: Vec<Change> = pairs
        .filter(|(_, (old, new))| old != new)
        .map(|(at, (_, entry))| Change::Entry { list: USERS.name, at: Some(at), entry })
        .collect();
    changed(text, &changes, after)
}

/// Applies changes to a text. `expected` is the document of the result. Returns the new text, and
/// whether comments are lost.
fn changed(text: &str, changes: &[Change], expected: &Value) -> (String, bool) {
    let edited = text::edit(text, changes).filter(|edited| is_document(edited, expected));
    chosen(text::comments(text), edited, expected)
}

/// Returns the edited text, or the document written anew; and whether comments are lost, of which
/// there were as many before, if that is known.
fn chosen(comments_before: Option<usize>, edited: Option<String>, expected: &Value) -> (String, bool) {
    let (text, comments) = match edited {
        // The comments inside an entry go with its previous content.
        Some(edited) => {
            let comments = text::comments(&edited);
            (edited, comments)
        }
        None => (goyaml::to_string(expected), Some(0)),
    };
    let lost = comments_before.zip(comments).is_none_or(|(before, after)| before > after);
    (text, lost)
}

/// Checks that entries can be merged into `text`.
///
/// # Errors
///
/// Returns an error for a text that is not a kubeconfig.
pub fn check_document(text: &str) -> Result<(), MergeError> {
    parse(text).map(drop)
}

/// Returns the current context of a text that is a kubeconfig; empty if there is none.
pub fn current_context_of(text: &str) -> String {
    parse(text).map(|document| current_context(&document).to_owned()).unwrap_or_default()
}

fn current_context(document: &Map<String, Value>) -> &str {
    document.get(CURRENT_CONTEXT).and_then(Value::as_str).unwrap_or_default()
}

fn is_document(text: &str, expected: &Value) -> bool {
    serde_saphyr::from_str::<Value>(text).is_ok_and(|document| document == *expected)
}

fn parse(text: &str) -> Result<Map<String, Value>, MergeError> {
    if text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#')) {
        return Ok(Map::new());
    }
    let document = match serde_saphyr::from_str::<Value>(text) {
        Ok(Value::Null) => Map::new(),
        Ok(Value::Object(document)) => document,
        Ok(_) => return Err(MergeError::NotKubeconfig("it has no fields".to_owned())),
        Err(error) => {
            let text = error.to_string();
            return Err(MergeError::Syntax(text.lines().next().unwrap_or_default().to_owned()));
        }
    };
    for (field, wanted) in [("kind", "Config"), ("apiVersion", "v1")] {
        if document
            .get(field)
            .and_then(Value::as_str)
            .is_some_and(|found| !found.is_empty() && found != wanted)
        {
            return Err(MergeError::NotKubeconfig(format!("{field} is not {wanted}")));
        }
    }
    if document.get(CURRENT_CONTEXT).is_some_and(|value| !value.is_null() && !value.is_string()) {
        return Err(MergeError::NotKubeconfig(format!("{CURRENT_CONTEXT} is not a text")));
    }
    for list in [&CLUSTERS, &USERS, &CONTEXTS] {
        let mut names = HashSet::new();
        for entry in list.entries(&document)? {
            let name = name_of(entry)
                .ok_or_else(|| MergeError::NotKubeconfig(format!("an entry of {} has no name", list.name)))?;
            // kubectl refuses the file, too.
            if !names.insert(name) {
                return Err(MergeError::NotKubeconfig(format!(
                    "{} has two entries with the name {}",
                    list.name,
                    quote(name)
                )));
            }
        }
    }
    Ok(document)
}

impl List {
    fn entries<'a>(&self, document: &'a Map<String, Value>) -> Result<&'a [Value], MergeError> {
        match document.get(self.name) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(entries)) => Ok(entries),
            Some(_) => Err(MergeError::NotKubeconfig(format!("{} is not a list", self.name))),
        }
    }

    /// Returns the entries of a document that [`parse`] has checked.
    fn all<'a>(&self, document: &'a Map<String, Value>) -> &'a [Value] {
        self.entries(document).unwrap_or_default()
    }

    /// Returns the entry of this name, and its index.
    fn find<'a>(&self, document: &'a Map<String, Value>, name: &str) -> Option<(usize, &'a Value)> {
        self.all(document).iter().enumerate().find(|(_, entry)| name_of(entry) == Some(name))
    }
}

fn name_of(entry: &Value) -> Option<&str> {
    entry.get("name").and_then(Value::as_str)
}

/// Returns the change that makes the entry `name` of a list have this content, unless it has it.
/// `found` is the entry of this name with its index, and `clash` the reason not to replace it.
fn change(
    list: &List,
    name: &str,
    found: Option<(usize, &Value)>,
    content: Value,
    overwrite: bool,
    clash: impl FnOnce(&Value, &Value) -> Option<String>,
) -> Result<Option<Change>, MergeError> {
    let Some((at, existing)) = found else {
        let entry = json!({list.kind: content, "name": name});
        return Ok(Some(Change::Entry { list: list.name, at: None, entry }));
    };
    let found = existing.get(list.kind).unwrap_or(&Value::Null);
    let content = with_settings_of_user(list.kind, found, content, overwrite);
    if *found == content {
        return Ok(None);
    }
    if !overwrite && let Some(problem) = clash(found, &content) {
        return Err(MergeError::Clash { kind: list.kind, name: name.to_owned(), problem });
    }
    let mut entry = existing.clone();
    entry[list.kind] = content;
    Ok(Some(Change::Entry { list: list.name, at: Some(at), entry }))
}

/// Returns the content with the fields of the previous entry that the user may have set.
fn with_settings_of_user(kind: &str, found: &Value, mut content: Value, overwrite: bool) -> Value {
    match kind {
        // The user may have set a namespace.
        "context" => keep(found, &mut content, |_| true),
        "cluster" if !overwrite => {
            keep(found, &mut content, |field| !GENERATED.contains(&field));
        }
        "user" if !overwrite => {
            keep(found, &mut content, |field| !CREDENTIALS.contains(&field));
            let (Some(found), Some(exec)) = (found.get("exec"), content.get_mut("exec")) else {
                return content;
            };
            keep(found, exec, |field| field != "installHint");
            // A generated entry has an empty list.
            if let Some(variables) = found.get("env").filter(|env| env.is_array()) {
                exec["env"] = variables.clone();
            }
        }
        _ => {}
    }
    content
}

/// Copies the fields that `content` does not have.
fn keep(found: &Value, content: &mut Value, is_kept: impl Fn(&str) -> bool) {
    if let (Value::Object(found), Value::Object(content)) = (found, content) {
        for (field, value) in found.iter().filter(|(field, _)| is_kept(field)) {
            content.entry(field).or_insert_with(|| value.clone());
        }
    }
}

/// Returns the difference between the content of an entry and its replacement, unless the entry is
/// an earlier result for the same cluster.
fn clash(
    document: &Map<String, Value>,
    list: &List,
    found: &Value,
    content: &Value,
    entries: &Entries,
) -> Option<String> {
    let text =
        |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    match list.kind {
        "cluster" => {
            let (found, new) = (text(found, "server"), text(content, "server"));
            (found != new).then(|| format!("of the server {}, not {}", quote(&found), quote(&new)))
        }
        "user" if !is_login(found) => Some("that does not log in with this program".to_owned()),
        "user" => used_elsewhere(document, entries)
            .map(|context| format!("that context {} uses for another cluster", quote(context))),
        _ => {
            let (cluster, user) = (text(found, "cluster"), text(found, "user"));
            let previous = USERS.find(document, &user).and_then(|(_, entry)| entry.get(USERS.kind));
            let is_earlier_result = cluster == entries.cluster_name && previous.is_some_and(is_login);
            (!is_earlier_result)
                .then(|| format!("of the cluster {} and the user {}", quote(&cluster), quote(&user)))
        }
    }
}

/// Returns the name of another context that uses the user of `entries` for another cluster.
fn used_elsewhere<'a>(document: &'a Map<String, Value>, entries: &Entries) -> Option<&'a str> {
    let has = |context: &Value, field: &str, name: &str| {
        context.pointer(&format!("/context/{field}")).and_then(Value::as_str) == Some(name)
    };
    let other = CONTEXTS.all(document).iter().find(|context| {
        name_of(context) != Some(&entries.context_name)
            && has(context, "user", &entries.user_name)
            && !has(context, "cluster", &entries.cluster_name)
    });
    other.and_then(name_of)
}

/// Returns whether the plugin of a user entry is a `login` command of this program.
fn is_login(user: &Value) -> bool {
    let args = user.pointer("/exec/args").and_then(Value::as_array);
    let args = args.into_iter().flatten().map(|arg| arg.as_str().map(str::to_owned));
    args.collect::<Option<Vec<String>>>().is_some_and(|args| login_command(&args).is_some())
}

fn apply(document: &mut Map<String, Value>, change: &Change) {
    match change {
        Change::Field { name, text } => {
            document.insert((*name).to_owned(), json!(text));
        }
        Change::Entry { list, at, entry } => {
            let entries = document.entry(*list).or_insert(Value::Null);
            if entries.is_null() {
                *entries = json!([]);
            }
            let Value::Array(entries) = entries else { return };
            match at {
                Some(at) => entries[*at] = entry.clone(),
                None => entries.push(entry.clone()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
