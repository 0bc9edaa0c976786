//! The owners of the objects that the controllers create: our own Deployment for objects in the
//! namespace, our login APIService for cluster-scoped objects. Deleting the owner deletes all of
//! them.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use pinniped_concierge_api::names;
use pinniped_controller::client::error_text;
use pinniped_kube_types::partial::{Deployment, Pod, PodSpec};
use pinniped_kube_types::suffix::GroupSuffix;

/// The reasons why an owner was not found, with the texts of upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerError {
    /// The pod, its ReplicaSet or the Deployment of the ReplicaSet was not found.
    #[error("cannot create deployment ref: cannot get deployment: {0}")]
    Deployment(String),
    /// The login APIService was not found.
    #[error("cannot create API service ref: cannot get api service {name}: {problem}")]
    ApiService {
        /// Its name.
        name: String,
        /// The error of the API server.
        problem: String,
    },
}

/// Metadata of the pod in which this process runs.
pub(crate) struct OwnPod {
    /// Our own Deployment: the controller of the controller of this pod.
    pub(crate) deployment: OwnerReference,
    /// The number of replicas of the Deployment.
    pub(crate) replicas: Option<u64>,
    /// The termination grace period of the pod.
    pub(crate) termination_grace: Option<Duration>,
    /// The image of the container in which this process runs.
    pub(crate) image: Option<String>,
}

/// The name of this program's container, in upstream's manifests and in ours.
const CONTAINER: &str = "pinniped-concierge";

/// Reads this pod and its Deployment.
pub(crate) async fn own_pod(
    client: &kube::Client,
    namespace: &str,
    pod_name: &str,
) -> Result<OwnPod, OwnerError> {
    let failed = |what: &str, error: &kube::Error| {
        OwnerError::Deployment(format!("could not get {what}: {}", error_text(error)))
    };
    let missing_owner =
        |name: &str| OwnerError::Deployment(format!("pod {namespace}/{name} is missing owner"));

    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get(pod_name).await.map_err(|error| failed("pod", &error))?;
    let replica_set_name =
        controller_name(&pod.metadata, "ReplicaSet").ok_or_else(|| missing_owner(pod_name))?;

    let replica_sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let replica_set =
        replica_sets.get_metadata(&replica_set_name).await.map_err(|error| failed("replicaset", &error))?;
    let deployment_name = controller_name(&replica_set.metadata, "Deployment").ok_or_else(|| {
        OwnerError::Deployment(format!("replicaset {namespace}/{replica_set_name} is missing owner"))
    })?;

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployment = deployments.get(&deployment_name).await.map_err(|error| failed("deployment", &error))?;
    let spec = pod.spec.unwrap_or_default();
    Ok(OwnPod {
        image: own_image(&spec),
        replicas: deployment.spec["replicas"].as_u64(),
        deployment: reference(&Deployment::api_version(&()), &Deployment::kind(&()), &deployment.metadata),
        termination_grace: spec
            .termination_grace_period_seconds
            .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
    })
}

/// Returns the image of the container with the usual name, or of the first one: other containers
/// are sidecars.
fn own_image(pod: &PodSpec) -> Option<String> {
    let containers = pod.containers.as_deref().unwrap_or_default();
    let named = containers.iter().find(|container| container.name.as_deref() == Some(CONTAINER));
    named.or(containers.first())?.image.clone()
}

/// Returns the login APIService of this installation.
pub(crate) async fn api_service(
    client: &kube::Client,
    suffix: &GroupSuffix,
) -> Result<OwnerReference, OwnerError> {
    let name = names::api_service(&suffix.replace(names::GROUP_LOGIN));
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService"));
    let services: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match services.get(&name).await {
        Ok(service) => Ok(reference("apiregistration.k8s.io/v1", "APIService", &service.metadata)),
        Err(error) => Err(OwnerError::ApiService { name, problem: error_text(&error) }),
    }
}

fn controller_name(metadata: &ObjectMeta, kind: &str) -> Option<String> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true) && owner.kind == kind)
        .map(|owner| owner.name.clone())
}

fn reference(api_version: &str, kind: &str, metadata: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_image_is_that_of_the_named_container_or_of_the_first_one() {
        let table = [
            (
                serde_json::json!([{"name": "sidecar", "image": "s"}, {"name": "pinniped-concierge", "image": "c"}]),
                Some("c"),
            ),
            (
                serde_json::json!([{"name": "other", "image": "o"}, {"name": "sidecar", "image": "s"}]),
                Some("o"),
            ),
            (serde_json::json!([]), None),
            (serde_json::json!(null), None),
        ];
        for (containers, wanted) in table {
            let pod: PodSpec = serde_json::from_value(serde_json::json!({"containers": containers})).unwrap();
            assert_eq!(own_image(&pod).as_deref(), wanted, "{containers}");
        }
    }
}
