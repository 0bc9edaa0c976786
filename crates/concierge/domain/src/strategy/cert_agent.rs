//! The strategy `KubeClusterSigningCertificate`: credentials signed with the cluster's own key.
//!
//! The key lies in files beside kube-controller-manager. An agent pod on the same node, with the same files mounted,
//! hands it over. From everything that was observed, [`decide`] says how the agent's Deployment has to be changed and
//! what comes after it; [`entry`] turns the result of both into the strategy's entry in the status.
//!
//! ```text
//! pods         which kube-controller-manager pod is the template, which agent pod is asked
//! flags        where that program was told to find certificate and key
//! deployment   the agent's Deployment as it should be
//! update       what separates an existing one from it
//! cluster_info address and CA of the API server, for clients
//! key          what the agent answers
//! k3s          the same where kube-controller-manager is no pod but part of k3s
//! ```
//!
//! On most cloud providers' clusters, and on others where kube-controller-manager is no pod (k0s), there is none to see.
//! That is the expected answer there.

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

/// Label that selects kube-controller-manager's pods, in the namespace `kube-system`.
pub const CONTROLLER_MANAGER_SELECTOR: &str = "component=kube-controller-manager";

/// Label that selects the agent's pods. The value changes when the agent can no longer be asked in the same way.
pub const AGENT_SELECTOR: &str = "kube-cert-agent.pinniped.dev=v3";

/// The agent's program, found in the image's `PATH`.
pub const AGENT_PROGRAM: &str = "pinniped-concierge-kube-cert-agent";

/// The agent's container.
pub const AGENT_CONTAINER: &str = "sleeper";

/// What was seen. An error is the API server's text about a list that could not be had.
#[derive(Clone, Debug)]
pub struct Observed {
    /// kube-controller-manager's pods.
    pub controller_managers: Result<Vec<Arc<Pod>>, String>,
    /// The nodes of those pods, where [`pods::needs_nodes`].
    pub nodes: Nodes,
    /// What takes the place of those pods where k3s runs the cluster; looked for when there are none.
    pub k3s: Option<Arc<k3s::K3s>>,
    /// The agent's Deployment, if it exists.
    pub deployment: Result<Option<Arc<Deployment>>, String>,
    /// The agent's pods.
    pub agents: Result<Vec<Arc<Pod>>, String>,
    /// `kube-public/cluster-info`, if it exists.
    pub cluster_info: Result<Option<Arc<ConfigMap>>, String>,
}

/// What has to be done. The two parts are independent: a Deployment that cannot be written does not keep a replica from
/// reading the key out of a pod that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How to bring the agent's Deployment to its wanted state.
    pub deployment: Result<update::Step, String>,
    /// What comes after it.
    pub next: Result<Read, Failure>,
}

/// The key can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// From which pod.
    pub agent: AgentPod,
    /// What clients are told once it is there.
    pub info: TokenCredentialRequestApiInfo,
}

/// An agent's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: another one is another pod, whose files may be others.
    pub uid: String,
}

impl std::fmt::Display for AgentPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "agent pod {}/{}", self.namespace, self.name)
    }
}

/// Why the key cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub reason: StrategyReason,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A failure to find or read the key.
    pub fn key(message: impl Into<String>) -> Self {
        Self { reason: StrategyReason::CouldNotFetchKey, message: message.into() }
    }
}

/// Decides.
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

/// What clients are told: `cluster-info`, or where k3s makes none, what takes its place.
fn info(observed: &Observed, url: Option<&str>) -> Result<TokenCredentialRequestApiInfo, String> {
    let k3s = observed.k3s.as_ref().and_then(|k3s| k3s.info.clone());
    match (&observed.cluster_info, k3s) {
        (Ok(None), Some(info)) => {
            Ok(TokenCredentialRequestApiInfo { server: url.map_or(info.server, ToOwned::to_owned), ..info })
        }
        (found, _) => cluster_info::info(found, url),
    }
}

/// The entry in the status. A Deployment that could not be ensured is told before everything that came after it, with
/// the reason of what came after it.
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
