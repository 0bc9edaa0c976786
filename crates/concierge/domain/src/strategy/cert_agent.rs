//! The strategy `KubeClusterSigningCertificate`: credentials that are signed with the cluster's
//! signing key.
//!
//! The key is in files of kube-controller-manager. An agent pod on the same node, with the same
//! files mounted, returns it. [`decide`] derives from an observation how to change the agent's
//! Deployment and whether the key can be read; [`entry`] turns the results of both into the
//! strategy's entry in the status.
//!
//! ```text
//! pods         selects the kube-controller-manager pod to copy and the agent pod to read from
//! flags        finds the paths of certificate and key in the flags of that program
//! deployment   the wanted Deployment of the agent
//! update       the change from the existing Deployment to the wanted one
//! cluster_info address and CA of the API server for clients
//! key          the output of the agent
//! k3s          replaces the pod where kube-controller-manager is part of k3s
//! ```
//!
//! Most cloud providers' clusters have no visible kube-controller-manager pod, nor do clusters
//! where it is a plain process (k0s). The strategy's error is the expected result there.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, CredentialIssuerStrategy, StrategyReason, StrategyType,
    TokenCredentialRequestApiInfo,
};
use pinniped_kube_types::partial::{Deployment, Pod};

use super::status::{failing, fetched};

pub mod cluster_info;
pub mod deployment;
pub mod flags;
pub mod k3s;
pub mod key;
pub mod pods;
mod quantity;
mod subset;
pub mod update;

pub use deployment::Settings;
pub use pods::Nodes;

/// Label selector of kube-controller-manager's pods in the namespace `kube-system`.
pub const CONTROLLER_MANAGER_SELECTOR: &str = "component=kube-controller-manager";

/// Label selector of the agent's pods. The value changes when the interface of the agent changes.
pub const AGENT_SELECTOR: &str = "kube-cert-agent.pinniped.dev=v3";

/// Name of the agent's program, found through `PATH` in the image.
pub const AGENT_PROGRAM: &str = "pinniped-concierge-kube-cert-agent";

/// Name of the agent's container.
pub const AGENT_CONTAINER: &str = "sleeper";

/// The observed state. Errors are the API server's texts about lists that failed.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The pods of kube-controller-manager.
    pub controller_managers: Result<Vec<Arc<Pod>>, String>,
    /// The nodes of these pods, if [`pods::needs_nodes`].
    pub nodes: Nodes,
    /// The replacement of these pods where k3s runs the cluster; observed only if there are none.
    pub k3s: Option<Arc<k3s::K3s>>,
    /// The Deployment of the agent, if it exists.
    pub deployment: Result<Option<Arc<Deployment>>, String>,
    /// The pods of the agent.
    pub agents: Result<Vec<Arc<Pod>>, String>,
    /// The ConfigMap `kube-public/cluster-info`, if it exists.
    pub cluster_info: Result<Option<Arc<ConfigMap>>, String>,
}

/// The actions to take. The two parts are independent: a replica reads the key from an existing pod
/// even if the Deployment cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The change of the agent's Deployment.
    pub deployment: Result<update::Step, String>,
    /// The action that follows.
    pub next: Result<Read, Failure>,
}

/// The key can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The pod to read from.
    pub agent: AgentPod,
    /// The address and CA to publish when the key was read.
    pub info: TokenCredentialRequestApiInfo,
}

/// A pod of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// UID of the pod. A pod with another UID may have other files.
    pub uid: String,
}

impl std::fmt::Display for AgentPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "agent pod {}/{}", self.namespace, self.name)
    }
}

/// The reason why the key is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Machine-readable reason.
    pub reason: StrategyReason,
    /// Human-readable reason.
    pub message: String,
}

impl Failure {
    /// Returns a failure to find or read the key.
    pub fn key(message: impl Into<String>) -> Self {
        Self { reason: StrategyReason::CouldNotFetchKey, message: message.into() }
    }
}

/// Decides how to change the Deployment and whether the key can be read.
pub fn decide(observed: &Observed, settings: &Settings) -> Plan {
    let template = match pods::template(observed) {
        Ok(template) => template,
        Err(message) => {
            return Plan { deployment: Ok(update::Step::Nothing), next: Err(Failure::key(message)) };
        }
    };
    let wanted = deployment::wanted(settings, template);
    let step = match &observed.deployment {
        Ok(existing) => Ok(update::step(existing.as_deref(), wanted)),
        Err(error) => Err(format!("could not get deployments: {error}")),
    };
    Plan { deployment: step, next: read(observed, settings) }
}

fn read(observed: &Observed, settings: &Settings) -> Result<Read, Failure> {
    let agent = pods::agent(observed).map_err(Failure::key)?;
    let info = info(observed, settings.discovery_url.as_deref())
        .map_err(|message| Failure { reason: StrategyReason::CouldNotGetClusterInfo, message })?;
    let meta = &agent.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let agent = AgentPod { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) };
    Ok(Read { agent, info })
}

/// Returns the address and CA for clients: from `cluster-info`, or from k3s, which has no
/// `cluster-info`.
fn info(observed: &Observed, url: Option<&str>) -> Result<TokenCredentialRequestApiInfo, String> {
    let k3s = observed.k3s.as_ref().and_then(|k3s| k3s.info.clone());
    match (&observed.cluster_info, k3s) {
        (Ok(None), Some(info)) => {
            Ok(TokenCredentialRequestApiInfo { server: url.map_or(info.server, ToOwned::to_owned), ..info })
        }
        (found, _) => cluster_info::info(found, url),
    }
}

/// Returns the entry in the status. If the Deployment could not be written, its message takes
/// precedence, with the reason of the failure that followed.
pub fn entry(
    key: Result<TokenCredentialRequestApiInfo, Failure>,
    deployment_error: Option<&str>,
    now: Timestamp,
) -> CredentialIssuerStrategy {
    let outcome = match (key, deployment_error) {
        (Ok(info), None) => Ok(info),
        (Ok(_), Some(error)) => Err(Failure::key(not_ensured(error))),
        (Err(failure), None) => Err(failure),
        (Err(failure), Some(error)) => Err(Failure { message: not_ensured(error), ..failure }),
    };
    match outcome {
        Ok(info) => fetched(CredentialIssuerFrontend::token_credential_request_api(info), now),
        Err(failure) => {
            failing(StrategyType::KubeClusterSigningCertificate, failure.reason, failure.message, now)
        }
    }
}

fn not_ensured(error: &str) -> String {
    format!("could not ensure agent deployment: {error}")
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
