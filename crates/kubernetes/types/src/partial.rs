//! Kubernetes' own kinds, as much of each as is looked at here. What is only handed on is kept as it came.
//!
//! The types of k8s-openapi know every field. For pods and what holds them that is more than a megabyte of program, and
//! a field that is newer than the library gets lost between the pod that is copied and the copy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// A pod: where it runs, and what another one needs to find the same files.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What was asked for.
    pub spec: Option<PodSpec>,
    /// What became of it.
    pub status: Option<PodStatus>,
}

/// Of a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs, once that is decided.
    pub node_name: Option<String>,
    /// Its containers, without those that only prepare.
    pub containers: Option<Vec<Container>>,
    /// Whether it has no network of its own.
    pub host_network: Option<bool>,
    /// How long it may take to end, in seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// As it came.
    pub node_selector: Option<Value>,
    /// As they came.
    pub tolerations: Option<Value>,
    /// As they came.
    pub volumes: Option<Value>,
}

/// Of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// The program and its first arguments.
    pub command: Option<Vec<String>>,
    /// The arguments after those.
    pub args: Option<Vec<String>>,
    /// As they came.
    pub volume_mounts: Option<Value>,
}

/// Of a pod's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: Option<String>,
}

/// A node: who it is, and whether pods may be scheduled there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What was asked for.
    pub spec: Option<NodeSpec>,
    /// What it says of itself.
    pub status: Option<NodeStatus>,
}

/// Of a node's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Whether it is cordoned.
    pub unschedulable: Option<bool>,
}

/// Of a node's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Its addresses and names.
    pub addresses: Option<Vec<NodeAddress>>,
    /// Its versions.
    pub node_info: Option<NodeInfo>,
}

/// One address of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// Such as `InternalIP`.
    #[serde(rename = "type")]
    pub type_: String,
    /// The address, or a name.
    pub address: String,
}

/// Of a node's versions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// The kubelet's, such as `v1.36.3+k3s1`.
    pub kubelet_version: String,
}

/// A Deployment, whose spec is written as a whole. Its status is not ours: the API server keeps it when this is written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// As it came.
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

/// Says where the API server has a kind, as k8s-openapi does for its own types; kube takes it from there.
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

    fn place<K: Resource<DynamicType = ()>>() -> (String, String, String, String) {
        let (api, plural) = (K::api_version(&()).into_owned(), K::plural(&()).into_owned());
        (api, plural, K::kind(&()).into_owned(), K::url_path(&(), None))
    }

    #[test]
    fn they_are_where_the_whole_kinds_are() {
        assert_eq!(place::<Pod>(), place::<core::v1::Pod>());
        assert_eq!(place::<Node>(), place::<core::v1::Node>());
        assert_eq!(place::<Deployment>(), place::<apps::v1::Deployment>());
    }

    #[test]
    fn what_is_not_set_may_be_null_or_missing() {
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
    fn a_deployment_is_written_with_everything_that_came() {
        let text = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": 1, "not yet thought of": [1]},
        });
        let deployment: Deployment = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(deployment).unwrap(), text);
    }
}
