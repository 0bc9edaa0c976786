//! The `identity.concierge.<suffix>/v1alpha1` API: the identity of the caller as the cluster sees
//! it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::names;
use pinniped_kube_types::resource::{cluster_resource, null_as_default};
use pinniped_kube_types::suffix::GroupSuffix;

/// Requests the identity of the caller. The response has the same type with the status filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhoAmIRequest {
    /// Always `WhoAmIRequest`; may be absent in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub kind: String,
    /// Group and version of the installation; may be absent in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub api_version: String,
    /// Standard metadata, empty in a response.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// Empty.
    #[serde(default, deserialize_with = "null_as_default")]
    pub spec: WhoAmIRequestSpec,
    /// The identity of the caller, set in a response.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: WhoAmIRequestStatus,
}

cluster_resource!(WhoAmIRequest, group: names::GROUP_IDENTITY, kind: "WhoAmIRequest", plural: "whoamirequests");

impl WhoAmIRequest {
    /// Returns a request.
    pub fn new(suffix: &GroupSuffix) -> Self {
        Self { kind: Self::KIND.to_owned(), api_version: Self::group_version(suffix), ..Self::default() }
    }

    /// Returns a response.
    pub fn response(suffix: &GroupSuffix, user: UserInfo) -> Self {
        let kubernetes_user_info = KubernetesUserInfo { user, audiences: Vec::new() };
        Self { status: WhoAmIRequestStatus { kubernetes_user_info }, ..Self::new(suffix) }
    }
}

/// The empty spec of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoAmIRequestSpec {}

/// The identity of the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WhoAmIRequestStatus {
    /// The caller as Kubernetes authenticated it.
    #[serde(deserialize_with = "null_as_default")]
    pub kubernetes_user_info: KubernetesUserInfo,
}

/// A caller as Kubernetes authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubernetesUserInfo {
    /// The user.
    #[serde(deserialize_with = "null_as_default")]
    pub user: UserInfo,
    /// The audiences of the token, if the authenticator returned them.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub audiences: Vec<String>,
}

/// A user with groups and extra attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    /// Username.
    #[serde(deserialize_with = "null_as_default")]
    pub username: String,
    /// Unique identifier, often absent.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub uid: String,
    /// Groups, in the order in which the authenticator returned them.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub groups: Vec<String>,
    /// Extra attributes by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A list of `WhoAmIRequest` objects, always empty because no object is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhoAmIRequestList {
    /// Always `WhoAmIRequestList`.
    #[serde(default)]
    pub kind: String,
    /// Group and version of the installation.
    #[serde(default)]
    pub api_version: String,
    /// Standard metadata of lists.
    #[serde(default)]
    pub metadata: ListMeta,
    /// The items of the list.
    #[serde(default, deserialize_with = "null_as_default")]
    pub items: Vec<WhoAmIRequest>,
}

impl WhoAmIRequestList {
    /// Returns the empty list at resource version 0.
    pub fn empty(suffix: &GroupSuffix) -> Self {
        Self {
            kind: "WhoAmIRequestList".to_owned(),
            api_version: WhoAmIRequest::group_version(suffix),
            metadata: ListMeta { resource_version: Some("0".to_owned()), ..ListMeta::default() },
            items: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_have_the_upstream_bytes() {
        let user = UserInfo {
            username: "pinny".into(),
            groups: vec!["z".into(), "system:authenticated".into()],
            extra: BTreeMap::from([("k".into(), vec!["v1".into(), "v2".into()])]),
            ..UserInfo::default()
        };
        assert_eq!(
            pinniped_go_compat::json::to_string(&WhoAmIRequest::response(&GroupSuffix::default(), user)),
            r#"{"kind":"WhoAmIRequest","apiVersion":"identity.concierge.pinniped.dev/v1alpha1","metadata":{},"spec":{},"status":{"kubernetesUserInfo":{"user":{"username":"pinny","groups":["z","system:authenticated"],"extra":{"k":["v1","v2"]}}}}}"#
        );
    }
}
