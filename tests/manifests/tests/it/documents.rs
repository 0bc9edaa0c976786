//! Reads the YAML files of the repository as untyped data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The three definitions, by file name.
pub(crate) const CRDS: [&str; 3] = [
    "authentication.concierge.pinniped.dev_jwtauthenticators.yaml",
    "authentication.concierge.pinniped.dev_webhookauthenticators.yaml",
    "config.concierge.pinniped.dev_credentialissuers.yaml",
];

/// Returns a path from the root of the repository.
pub(crate) fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(relative)
}

pub(crate) fn text(relative: &str) -> String {
    std::fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// Returns every non-empty document of a file.
pub(crate) fn all(relative: &str) -> Vec<Value> {
    parse(&text(relative), relative)
}

/// Returns every non-empty document of a text; `what` is its name in messages.
pub(crate) fn parse(text: &str, what: &str) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// Returns objects by kind and name, with the Concierge's configuration parsed.
pub(crate) fn by_identity(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for mut object in objects {
        if let Some(text) = object["data"]["pinniped.yaml"].as_str().map(ToOwned::to_owned) {
            object["data"]["pinniped.yaml"] =
                serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        }
        let identity = identity(&object);
        assert!(found.insert(identity.clone(), object).is_none(), "{identity} twice");
    }
    found
}

/// Returns the only document of a file.
pub(crate) fn one(relative: &str) -> Value {
    let mut documents = all(relative);
    assert_eq!(documents.len(), 1, "{relative}");
    documents.remove(0)
}

/// Returns kind, namespace and name as one word.
pub(crate) fn identity(object: &Value) -> String {
    let kind = object["kind"].as_str().expect("an object has a kind");
    let name = object["metadata"]["name"].as_str().expect("an object has a name");
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
