//! The strategy `KubeClusterSigningCertificate`: credentials that are signed with the cluster's
//! signing key.
//!
//! The key is in files of kube-controller-manager. An agent pod on the same node, with the same
//! files mounted, returns it. [`decide`] derives from an observation how to change the agent's
//! Deployment and whether the key can be read; [`conclude`] turns the results of both into the
//! strategy's entry in the status.
//!
//! ```text
//! pods         selects the kube-controller-manager pod to copy and the agent pod to read from
//! key_layout   the files with certificate and key, and how the agent gets their paths
//! flags        finds the paths of these files in the flags of that program
//! deployment   the wanted Deployment of the agent
//! update       the change from the existing Deployment to the wanted one
//! cluster_info address and CA of the API server for clients
//! signing_key  the output of the agent
//! k3s          replaces the pod where kube-controller-manager is part of k3s
//! ```
//!
//! Most cloud providers' clusters have no visible kube-controller-manager pod, nor do clusters
//! where it is a plain process (k0s). The strategy's error is the expected result there.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, CredentialIssuerStrategy, StrategyReason, StrategyType,
    TokenCredentialRequestApiInfo,
};
use pinniped_kube_types::partial::{Deployment, Pod};

use crate::credential_issuer::strategies::{failing, fetched};
use crate::status_text::StatusText;
use agent_output::SigningKeyError;
use cluster_info::ClusterInfoError;
use pods::PodError;

pub mod agent_output;
pub mod cluster_info;
pub mod deployment;
pub mod flags;
pub mod k3s;
pub mod key_layout;
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

/// Delay before the next pass after a write conflict on the Deployment, if no event occurs before.
const CONFLICT_RECHECK: Duration = Duration::from_secs(1);

/// Name of the agent's container.
pub const AGENT_CONTAINER: &str = "sleeper";

/// The observed state. Errors are the API server's texts about lists that failed.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The pods of kube-controller-manager.
    pub controller_managers: Result<Vec<Arc<Pod>>, StatusText>,
    /// The nodes of these pods, if [`pods::needs_nodes`].
    pub nodes: Nodes,
    /// The replacement of these pods where k3s runs the cluster; observed only if there are none.
    pub k3s: Option<Arc<k3s::K3s>>,
    /// The Deployment of the agent, if it exists.
    pub deployment: Result<Option<Arc<Deployment>>, StatusText>,
    /// The pods of the agent.
    pub agents: Result<Vec<Arc<Pod>>, StatusText>,
    /// The ConfigMap `kube-public/cluster-info`, if it exists.
    pub cluster_info: Result<Option<Arc<ConfigMap>>, StatusText>,
}

/// The actions to take. The two parts are independent: a replica reads the key from an existing pod
/// even if the Deployment cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The change of the agent's Deployment.
    pub deployment: Result<update::Step, DeploymentError>,
    /// The pod from which to read the key, or the reason why the key is not available.
    pub key: Result<KeySource, KeyError>,
}

/// The Deployment could not be read; the text is the API server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not get deployments: {0}")]
pub struct DeploymentError(#[source] pub StatusText);

/// The key can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource {
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

/// Reasons why the key is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is no pod to copy, or none to read from.
    #[error(transparent)]
    Pod(#[from] PodError),
    /// The address and CA for clients are not available.
    #[error(transparent)]
    ClusterInfo(#[from] ClusterInfoError),
    /// The command in the pod failed.
    #[error("could not exec into {agent}: {cause}")]
    Exec {
        /// The pod.
        agent: AgentPod,
        /// The error of the command or the connection.
        #[source]
        cause: StatusText,
        /// Whether the cause is a missing permission.
        is_forbidden: bool,
    },
    /// The output of the agent is not a key.
    #[error(transparent)]
    Output(#[from] SigningKeyError),
    /// The certificate and the key are not the pair of a CA.
    #[error("failed to set signing cert/key content from {agent}: {cause}")]
    Pair {
        /// The pod.
        agent: AgentPod,
        /// The reason.
        #[source]
        cause: StatusText,
    },
}

impl KeyError {
    /// Returns the reason in the status.
    fn reason(&self) -> StrategyReason {
        match self {
            Self::ClusterInfo(_) => StrategyReason::CouldNotGetClusterInfo,
            Self::Pod(_) | Self::Exec { .. } | Self::Output(_) | Self::Pair { .. } => {
                StrategyReason::CouldNotFetchKey
            }
        }
    }
}

/// Decides how to change the Deployment and whether the key can be read.
pub fn decide(observed: &Observed, settings: &Settings, discovery_url: Option<&str>) -> Plan {
    let template = match pods::template(observed) {
        Ok(template) => template,
        Err(error) => return Plan { deployment: Ok(update::Step::Nothing), key: Err(error.into()) },
    };
    let wanted = deployment::wanted(settings, template);
    let step = match &observed.deployment {
        Ok(existing) => Ok(update::step(existing.as_deref(), wanted)),
        Err(error) => Err(DeploymentError(error.clone())),
    };
    Plan { deployment: step, key: key_source(observed, discovery_url) }
}

fn key_source(observed: &Observed, discovery_url: Option<&str>) -> Result<KeySource, KeyError> {
    let agent = pods::agent(observed)?;
    let info = info(observed, discovery_url)?;
    let meta = &agent.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let agent = AgentPod { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) };
    Ok(KeySource { agent, info })
}

/// Returns the address and CA for clients: from `cluster-info`, or from k3s, which has no
/// `cluster-info`.
fn info(observed: &Observed, url: Option<&str>) -> Result<TokenCredentialRequestApiInfo, ClusterInfoError> {
    let k3s = observed.k3s.as_ref().and_then(|k3s| k3s.info.clone());
    match (&observed.cluster_info, k3s) {
        (Ok(None), Some(info)) => {
            Ok(TokenCredentialRequestApiInfo { server: url.map_or(info.server, ToOwned::to_owned), ..info })
        }
        (found, _) => cluster_info::info(found, url),
    }
}

/// The result of applying the change of the Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedDeployment {
    /// The Deployment is as wanted.
    Done,
    /// Another replica is the leader and applies the change.
    LeftToLeader,
    /// Another client changed the Deployment at the same time; a watch event for that change
    /// follows.
    Conflict,
    /// The change failed.
    Failed(StatusText),
}

/// The end of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// The entry in the status.
    pub entry: CredentialIssuerStrategy,
    /// Time after which to run the next pass if no event occurs before.
    pub recheck_after: Option<Duration>,
}

/// Decides the entry in the status from the results of applying the Deployment and of reading the
/// key. If the Deployment could not be written, its message takes precedence, with the reason of
/// the failure that followed.
pub fn conclude(
    deployment: &AppliedDeployment,
    key: Result<TokenCredentialRequestApiInfo, &KeyError>,
    now: Timestamp,
) -> Conclusion {
    let failed =
        |reason, message: String| failing(StrategyType::KubeClusterSigningCertificate, reason, message, now);
    let not_ensured = |error| format!("could not ensure agent deployment: {error}");
    let entry = match (deployment, key) {
        (AppliedDeployment::Failed(error), Ok(_)) => {
            failed(StrategyReason::CouldNotFetchKey, not_ensured(error))
        }
        (AppliedDeployment::Failed(error), Err(key)) => failed(key.reason(), not_ensured(error)),
        (_, Err(key)) => failed(key.reason(), key.to_string()),
        (_, Ok(info)) => fetched(CredentialIssuerFrontend::token_credential_request_api(info), now),
    };
    let recheck_after = (*deployment == AppliedDeployment::Conflict).then_some(CONFLICT_RECHECK);
    Conclusion { entry, recheck_after }
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
