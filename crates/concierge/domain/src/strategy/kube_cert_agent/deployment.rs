//! Builds the wanted Deployment of the agent: on the node of a kube-controller-manager pod, with
//! the files of that pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinniped_concierge_api::names::{LABEL_APP, LABEL_KUBE_CERT_AGENT, LABEL_KUBE_CERT_AGENT_VALUE};
use pinniped_kube_types::partial::{Container, Deployment, Pod, PodSpec};
use serde_json::{Value, json};

use super::key_layout::{CERTIFICATE, CERTIFICATE_VARIABLE, FileFlags, KEY, KEY_VARIABLE};
use super::{AGENT_CONTAINER, AGENT_PROGRAM, flags};

/// Minimum time for which a new agent must be ready, so that the Deployment controller does not
/// churn agents that start and stop quickly.
const MIN_READY_SECONDS: i32 = 10;

/// Number of agents. One is sufficient, because every replica of the Concierge keeps the key.
const REPLICAS: i32 = 1;

/// Time that a deleted agent has to terminate. It has nothing to complete.
const TERMINATION_GRACE_SECONDS: i64 = 0;

/// Memory of the agent, as request and as limit.
const MEMORY: &str = "32Mi";

/// Limit of the agent's CPU time.
const CPU_LIMIT: &str = "20m";

/// Requested CPU time. Written as 0, because an absent request equals the limit.
const CPU_REQUEST: &str = "0";

/// Configuration of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespace of the Concierge, in which the agent runs.
    pub namespace: String,
    /// Name of the Deployment, see [`deployment_name`].
    pub deployment_name: String,
    /// Labels of the Deployment and, except for `app`, of its pods.
    pub labels: BTreeMap<String, String>,
    /// ServiceAccount of the pods.
    pub service_account: String,
    /// Container image.
    pub image: String,
    /// Names of image pull Secrets.
    pub image_pull_secrets: Vec<String>,
    /// Priority class of the pods, or empty.
    pub priority_class_name: String,
    /// User ID; 0 if not set, because root owns the files nearly everywhere.
    pub run_as_user: Option<i64>,
    /// Group ID; 0 if not set.
    pub run_as_group: Option<i64>,
    /// Strategy type of the Deployment, if set.
    pub deployment_strategy_type: Option<String>,
}

/// Returns the name of the Deployment for a configured prefix of pod names.
pub fn deployment_name(name_prefix: &str) -> String {
    name_prefix.strip_suffix('-').unwrap_or(name_prefix).to_owned()
}

/// Returns the Deployment modeled after the pod `controller_manager`, without an owner.
pub fn wanted(settings: &Settings, controller_manager: &Pod) -> Deployment {
    let selector =
        BTreeMap::from([(LABEL_KUBE_CERT_AGENT.to_owned(), LABEL_KUBE_CERT_AGENT_VALUE.to_owned())]);
    // The label `app` would make them pods of the Concierge's own Deployment, whose selector is
    // immutable.
    let mut pod_labels = settings.labels.clone();
    pod_labels.remove(LABEL_APP);
    pod_labels.extend(selector.clone());
    let mut spec = json!({
        "replicas": REPLICAS,
        "minReadySeconds": MIN_READY_SECONDS,
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": pod_labels}, "spec": pod(settings, controller_manager)},
    });
    if let Some(type_) = &settings.deployment_strategy_type {
        spec["strategy"] = json!({"type": type_});
    }
    Deployment {
        metadata: ObjectMeta {
            name: Some(settings.deployment_name.clone()),
            namespace: Some(settings.namespace.clone()),
            labels: Some(settings.labels.clone()).filter(|labels| !labels.is_empty()),
            ..ObjectMeta::default()
        },
        spec,
    }
}

fn pod(settings: &Settings, controller_manager: &Pod) -> Value {
    let none = PodSpec::default();
    let model = controller_manager.spec.as_ref().unwrap_or(&none);
    let user = settings.run_as_user.unwrap_or(0);
    let mut pod = json!({
        "containers": [container(settings, model)],
        "hostNetwork": model.host_network.unwrap_or(false),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        // An attacker who compromises the agent through its files must not gain access to the API.
        "automountServiceAccountToken": false,
        "serviceAccountName": settings.service_account,
        "securityContext": {"runAsUser": user, "runAsGroup": settings.run_as_group.unwrap_or(0)},
    });
    if user != 0 {
        pod["securityContext"]["runAsNonRoot"] = json!(true);
    }
    let secrets = settings.image_pull_secrets.iter().map(|name| json!({"name": name}));
    let class = &settings.priority_class_name;
    let rest = [
        ("volumes", model.volumes.clone()),
        ("nodeName", model.node_name.clone().map(Value::String)),
        ("nodeSelector", model.node_selector.clone()),
        ("tolerations", model.tolerations.clone()),
        ("imagePullSecrets", (secrets.len() > 0).then(|| secrets.collect())),
        ("priorityClassName", (!class.is_empty()).then(|| Value::String(class.clone()))),
    ];
    set(&mut pod, rest);
    pod
}

fn container(settings: &Settings, model: &PodSpec) -> Value {
    let containers = model.containers.as_deref().unwrap_or_default();
    let mut container = json!({
        "name": AGENT_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [AGENT_PROGRAM, "sleep"],
        "env": [
            {"name": CERTIFICATE_VARIABLE, "value": path(containers, &CERTIFICATE)},
            {"name": KEY_VARIABLE, "value": path(containers, &KEY)},
        ],
        "resources": {
            "limits": {"memory": MEMORY, "cpu": CPU_LIMIT},
            "requests": {"memory": MEMORY, "cpu": CPU_REQUEST},
        },
    });
    set(&mut container, [("volumeMounts", containers.first().and_then(|first| first.volume_mounts.clone()))]);
    container
}

/// Sets the members that have a value.
fn set<const N: usize>(object: &mut Value, members: [(&str, Option<Value>); N]) {
    for (name, value) in members {
        if let Some(value) = value {
            object[name] = value;
        }
    }
}

/// Returns the path from the first container that has one of the flags.
fn path(containers: &[Container], file: &FileFlags) -> String {
    let from = |container: &Container| {
        let parts = container.command.iter().chain(&container.args).flatten();
        let arguments: Vec<&str> = parts.map(String::as_str).collect();
        flags::value(&arguments, &file.flags)
    };
    containers.iter().find_map(from).unwrap_or_else(|| file.default_path.to_owned())
}

#[cfg(test)]
mod tests;
