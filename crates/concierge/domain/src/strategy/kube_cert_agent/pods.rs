//! Selects the pods to use.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinniped_kube_types::partial::Pod;

use super::Observed;
use crate::status_text::StatusText;

/// The nodes on which kube-controller-manager runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Not listed, because the selection does not depend on nodes.
    NotListed,
    /// Whether pods may be scheduled on a node, by node name.
    Listed(BTreeMap<String, bool>),
    /// The list failed; the text is the API server's.
    Failed(StatusText),
}

/// Reasons why there is no pod to use, with upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// The pods of kube-controller-manager, or their nodes, could not be listed.
    #[error("error while looking for controller manager pod: {0}")]
    ControllerManagers(#[source] StatusText),
    /// The nodes have not been listed yet.
    #[error("error while looking for controller manager pod: the nodes have not been listed yet")]
    NodesNotListed,
    /// A node has no name.
    #[error("error while looking for controller manager pod: a node from the list of all nodes has no name")]
    NamelessNode,
    /// There is no pod of kube-controller-manager.
    #[error(
        "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the expected \
         behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)"
    )]
    NoControllerManager,
    /// The pods of the agent could not be listed.
    #[error("could not list agent pods: {0}")]
    Agents(#[source] StatusText),
    /// No pod is running.
    #[error(
        "could not find a healthy {program} pod ({candidates} {})",
        if *candidates == 1 { "candidate" } else { "candidates" }
    )]
    NoneHealthy {
        /// The program of the pods.
        program: &'static str,
        /// Number of pods.
        candidates: usize,
    },
}

/// Returns whether the selection depends on nodes: a single pod is used on any node.
pub fn needs_nodes(controller_managers: &[Arc<Pod>]) -> bool {
    running(controller_managers).len() > 1
}

/// Returns the kube-controller-manager pod to copy: the newest running one, preferring nodes that
/// are not cordoned.
pub(super) fn template(observed: &Observed) -> Result<&Pod, PodError> {
    let all =
        observed.controller_managers.as_ref().map_err(|error| PodError::ControllerManagers(error.clone()))?;
    let candidates = running(all);
    let Some(newest) = candidates.first() else {
        if !all.is_empty() {
            return Err(PodError::NoneHealthy { program: "kube-controller-manager", candidates: all.len() });
        }
        let k3s = observed.k3s.as_ref().ok_or(PodError::NoControllerManager)?;
        return Ok(&k3s.controller_manager);
    };
    let nodes = match &observed.nodes {
        _ if candidates.len() == 1 => return Ok(newest),
        Nodes::Listed(nodes) => nodes,
        Nodes::Failed(error) => return Err(PodError::ControllerManagers(error.clone())),
        Nodes::NotListed => return Err(PodError::NodesNotListed),
    };
    if nodes.contains_key("") {
        return Err(PodError::NamelessNode);
    }
    let schedulable = |pod: &&&Pod| node(pod).and_then(|name| nodes.get(name)).is_some_and(|free| *free);
    Ok(candidates.iter().find(schedulable).unwrap_or(newest))
}

/// Returns the agent's pod to read from: the newest running one.
pub(super) fn agent(observed: &Observed) -> Result<&Pod, PodError> {
    let all = observed.agents.as_ref().map_err(|error| PodError::Agents(error.clone()))?;
    let newest = running(all).first().copied();
    newest.ok_or(PodError::NoneHealthy { program: "agent", candidates: all.len() })
}

/// Returns the names of the nodes that [`Nodes`] must contain.
pub fn node_names(controller_managers: &[Arc<Pod>]) -> Vec<String> {
    let mut names: Vec<String> =
        running(controller_managers).into_iter().filter_map(node).map(ToOwned::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns the running pods, newest first, then by name.
fn running(pods: &[Arc<Pod>]) -> Vec<&Pod> {
    let mut running: Vec<&Pod> = pods
        .iter()
        .map(Arc::as_ref)
        .filter(|pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")))
        .collect();
    let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    running.sort_by(|a, b| created(b).cmp(&created(a)).then_with(|| a.metadata.name.cmp(&b.metadata.name)));
    running
}
