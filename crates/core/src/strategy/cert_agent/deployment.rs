//! The agent's Deployment as it should be: next to a kube-controller-manager pod, with that one's files.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, LocalObjectReference, Pod, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use pinniped_api::names::{LABEL_APP, LABEL_KUBE_CERT_AGENT, LABEL_KUBE_CERT_AGENT_VALUE};

use super::{AGENT_CONTAINER, AGENT_PROGRAM, flags};

/// Where kube-controller-manager's certificate is, by the flags that say so; else the path that remains.
const CERTIFICATE: ([&str; 2], &str) = (
    ["cluster-signing-cert-file", "cluster-signing-kube-apiserver-client-cert-file"],
    "/etc/kubernetes/ca/ca.pem",
);

/// The same for its key.
const KEY: ([&str; 2], &str) = (
    ["cluster-signing-key-file", "cluster-signing-kube-apiserver-client-key-file"],
    "/etc/kubernetes/ca/ca.key",
);

/// Agents that come and go at this pace are not churned by the Deployment controller.
const MIN_READY_SECONDS: i32 = 10;

/// What the configuration says about the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The Concierge's namespace, where the agent runs, too.
    pub namespace: String,
    /// Name of the Deployment, see [`deployment_name`].
    pub deployment_name: String,
    /// Put on the Deployment and, but for `app`, on its pods.
    pub labels: BTreeMap<String, String>,
    /// ServiceAccount of the pods.
    pub service_account: String,
    /// Container image.
    pub image: String,
    /// Names of image pull Secrets.
    pub image_pull_secrets: Vec<String>,
    /// Priority class of the pods, or empty.
    pub priority_class_name: String,
    /// User id, 0 when not set: the files belong to root nearly everywhere.
    pub run_as_user: Option<i64>,
    /// Group id, 0 when not set.
    pub run_as_group: Option<i64>,
    /// Strategy type of the Deployment, if set.
    pub deployment_strategy_type: Option<String>,
    /// Overrides the API server's URL that clients are told.
    pub discovery_url: Option<String>,
}

/// The Deployment's name for a configured prefix of pod names.
pub fn deployment_name(name_prefix: &str) -> String {
    name_prefix.strip_suffix('-').unwrap_or(name_prefix).to_owned()
}

/// The Deployment after the model of `controller_manager`, without an owner.
pub fn wanted(settings: &Settings, controller_manager: &Pod) -> Deployment {
    let selector =
        BTreeMap::from([(LABEL_KUBE_CERT_AGENT.to_owned(), LABEL_KUBE_CERT_AGENT_VALUE.to_owned())]);
    // The label `app` would make them pods of the Concierge's own Deployment, whose selector cannot be changed.
    let mut pod_labels = settings.labels.clone();
    pod_labels.remove(LABEL_APP);
    pod_labels.extend(selector.clone());
    Deployment {
        metadata: ObjectMeta {
            name: Some(settings.deployment_name.clone()),
            namespace: Some(settings.namespace.clone()),
            labels: Some(settings.labels.clone()).filter(|labels| !labels.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            min_ready_seconds: Some(MIN_READY_SECONDS),
            selector: LabelSelector { match_labels: Some(selector), ..LabelSelector::default() },
            strategy: settings
                .deployment_strategy_type
                .clone()
                .map(|type_| DeploymentStrategy { type_: Some(type_), ..DeploymentStrategy::default() }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(pod_labels), ..ObjectMeta::default() }),
                spec: Some(pod(settings, controller_manager)),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn pod(settings: &Settings, controller_manager: &Pod) -> PodSpec {
    let none = PodSpec::default();
    let model = controller_manager.spec.as_ref().unwrap_or(&none);
    let user = settings.run_as_user.unwrap_or(0);
    let secrets = settings.image_pull_secrets.iter();
    let secrets: Vec<_> = secrets.map(|name| LocalObjectReference { name: name.clone() }).collect();
    PodSpec {
        containers: vec![container(settings, model)],
        volumes: model.volumes.clone(),
        node_name: model.node_name.clone(),
        node_selector: model.node_selector.clone(),
        tolerations: model.tolerations.clone(),
        host_network: Some(model.host_network.unwrap_or(false)),
        restart_policy: Some("Always".to_owned()),
        termination_grace_period_seconds: Some(0),
        // Who is taken over by way of the agent's files shall not get at the API as well.
        automount_service_account_token: Some(false),
        service_account_name: Some(settings.service_account.clone()),
        image_pull_secrets: Some(secrets).filter(|secrets| !secrets.is_empty()),
        priority_class_name: Some(settings.priority_class_name.clone()).filter(|name| !name.is_empty()),
        security_context: Some(PodSecurityContext {
            run_as_user: Some(user),
            run_as_group: Some(settings.run_as_group.unwrap_or(0)),
            run_as_non_root: (user != 0).then_some(true),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    }
}

fn container(settings: &Settings, model: &PodSpec) -> Container {
    let variable =
        |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
    let amounts = |memory: &str, cpu: &str| {
        Some(BTreeMap::from([
            ("memory".to_owned(), Quantity(memory.to_owned())),
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
        ]))
    };
    Container {
        name: AGENT_CONTAINER.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec![AGENT_PROGRAM.to_owned(), "sleep".to_owned()]),
        env: Some(vec![
            variable("CERT_PATH", path(model, &CERTIFICATE)),
            variable("KEY_PATH", path(model, &KEY)),
        ]),
        volume_mounts: model.containers.first().and_then(|first| first.volume_mounts.clone()),
        resources: Some(ResourceRequirements {
            limits: amounts("32Mi", "20m"),
            // Written as 0, because a request that is not written is as large as the limit.
            requests: amounts("32Mi", "0"),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}

/// The first container that was given one of the flags decides.
fn path(model: &PodSpec, (names, fallback): &([&str; 2], &str)) -> String {
    let from = |container: &Container| {
        let parts = container.command.iter().chain(&container.args).flatten();
        let arguments: Vec<&str> = parts.map(String::as_str).collect();
        flags::value(&arguments, names)
    };
    model.containers.iter().find_map(from).unwrap_or_else(|| (*fallback).to_owned())
}

#[cfg(test)]
mod tests;
