//! Partial types of built-in Kubernetes kinds, with only the fields that this program uses. Fields
//! that are only copied are kept as untyped JSON.
//!
//! The types of k8s-openapi have every field. For pods and their owners that adds more than a
//! megabyte to the program, and a field that is newer than the library would be lost when a pod is
//! copied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// A pod: the node on which it runs, and the fields that another pod needs to mount the same files.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: Option<PodSpec>,
    /// The observed state.
    pub status: Option<PodStatus>,
}

/// The spec of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The name of the node, once the pod is scheduled.
    pub node_name: Option<String>,
    /// The containers, without init containers.
    pub containers: Option<Vec<Container>>,
    /// Whether the pod uses the network of the host.
    pub host_network: Option<bool>,
    /// The termination grace period, in seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// The node selector, unmodified.
    pub node_selector: Option<Value>,
    /// The tolerations, unmodified.
    pub tolerations: Option<Value>,
    /// The volumes, unmodified.
    pub volumes: Option<Value>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// The name, which is unique in the pod.
    pub name: Option<String>,
    /// The reference of the image.
    pub image: Option<String>,
    /// The program and its first arguments (the entry point).
    pub command: Option<Vec<String>>,
    /// The arguments that follow `command`.
    pub args: Option<Vec<String>>,
    /// The volume mounts, unmodified.
    pub volume_mounts: Option<Value>,
}

/// The status of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: Option<String>,
}

/// A node: its name, its addresses, its version, and whether it accepts pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: Option<NodeSpec>,
    /// The observed state.
    pub status: Option<NodeStatus>,
}

/// The spec of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Whether the node is cordoned.
    pub unschedulable: Option<bool>,
}

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// The addresses and host names of the node.
    pub addresses: Option<Vec<NodeAddress>>,
    /// The versions of the node's components.
    pub node_info: Option<NodeInfo>,
}

/// One address of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// The type, such as `InternalIP`.
    #[serde(rename = "type")]
    pub type_: String,
    /// The address or host name.
    pub address: String,
}

/// Versions of a node's components.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// The version of the kubelet, such as `v1.36.3+k3s1`.
    pub kubelet_version: String,
}

/// A Deployment whose spec is written as a whole. The status is omitted: the API server keeps it
/// when the object is written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The spec, unmodified.
    pub spec: Value,
}

impl Serialize for Deployment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use k8s_openapi::Resource as _;
        let mut object = serializer.serialize_struct("Deployment", 4)?;
        object.serialize_field("apiVersion", Self::API_VERSION)?;
        object.serialize_field("kind", Self::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.spec)?;
        object.end()
    }
}

/// Implements the traits from which kube derives the API path of a kind, as k8s-openapi does for
/// its own types.
macro_rules! kind {
    ($type:ident, $group:literal, $api_version:literal, $path:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($type);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $path;
            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $type {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind!(Pod, "", "v1", "pods", NamespaceResourceScope);
kind!(Node, "", "v1", "nodes", ClusterResourceScope);
kind!(Deployment, "apps", "apps/v1", "deployments", NamespaceResourceScope);

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps, core};
    use kube_core::Resource;
    use serde_json::json;

    use super::*;

    fn api_path<K: Resource<DynamicType = ()>>() -> (String, String, String, String) {
        let (api, plural) = (K::api_version(&()).into_owned(), K::plural(&()).into_owned());
        (api, plural, K::kind(&()).into_owned(), K::url_path(&(), None))
    }

    #[test]
    fn partial_kinds_have_the_api_paths_of_k8s_openapi() {
        assert_eq!(api_path::<Pod>(), api_path::<core::v1::Pod>());
        assert_eq!(api_path::<Node>(), api_path::<core::v1::Node>());
        assert_eq!(api_path::<Deployment>(), api_path::<apps::v1::Deployment>());
    }

    #[test]
    fn absent_fields_may_be_null_or_missing() {
        let pod =
            json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": null}, "status": null});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
        assert_eq!((pod.spec, pod.status), (Some(PodSpec::default()), None));
        let node = json!({"metadata": {}, "spec": {}, "status": {"addresses": null, "nodeInfo": {}}});
        let node: Node = serde_json::from_value(node).unwrap();
        assert_eq!(node.status.unwrap().node_info, Some(NodeInfo::default()));
    }

    #[test]
    fn a_deployment_keeps_unknown_fields() {
        let text = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": 1, "not yet thought of": [1]},
        });
        let deployment: Deployment = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(deployment).unwrap(), text);
    }
}
