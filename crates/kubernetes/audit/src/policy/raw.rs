//! A policy as it is in the file. Lists whose elements are validated one by one are parsed later,
//! so that an error has the index of its element.

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Policy {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// Has no meaning.
    #[serde(rename = "metadata")]
    pub(super) _metadata: Value,
    pub(super) rules: Vec<Value>,
    pub(super) omit_stages: Vec<String>,
    pub(super) omit_managed_fields: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) level: String,
    pub(super) users: Vec<String>,
    pub(super) user_groups: Vec<String>,
    pub(super) verbs: Vec<String>,
    pub(super) resources: Vec<Value>,
    pub(super) namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    pub(super) non_resource_urls: Vec<String>,
    pub(super) omit_stages: Vec<String>,
    pub(super) omit_managed_fields: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct GroupResources {
    pub(super) group: String,
    pub(super) resources: Vec<String>,
    pub(super) resource_names: Vec<String>,
}

/// Removes keys whose value is null, which means "not set" as in the API server.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, without_nulls(value)))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
