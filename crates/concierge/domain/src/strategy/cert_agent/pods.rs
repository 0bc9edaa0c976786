//! Which pods to look at.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinniped_kube_types::partial::Pod;

use super::Observed;

/// The nodes on which kube-controller-manager runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// There is no choice between pods.
    NotAsked,
    /// Whether pods may be scheduled there, by name.
    Listed(BTreeMap<String, bool>),
    /// They could not be listed; the API server's text.
    Failed(String),
}

/// Whether the choice depends on nodes: a single pod is taken wherever it runs.
pub fn needs_nodes(controller_managers: &[Arc<Pod>]) -> bool {
    running(controller_managers).len() > 1
}

/// The kube-controller-manager pod after which the agent is made: the newest one that runs, on a node that is not
/// cordoned if there is such a one.
pub(super) fn template(observed: &Observed) -> Result<&Pod, String> {
    let failed = |error: &str| format!("error while looking for controller manager pod: {error}");
    let all = observed.controller_managers.as_ref().map_err(|error| failed(error))?;
    let candidates = running(all);
    let Some(newest) = candidates.first() else {
        if let Some(k3s) = observed.k3s.as_ref().filter(|_| all.is_empty()) {
            return Ok(&k3s.controller_manager);
        }
        let text = no_healthy("kube-controller-manager", all.len());
        return Err(if all.is_empty() {
            format!(
                "{text}: note that this error is the expected behavior for some cluster types, including most cloud \
                 provider clusters (e.g. GKE, AKS, EKS)"
            )
        } else {
            text
        });
    };
    let nodes = match &observed.nodes {
        _ if candidates.len() == 1 => return Ok(newest),
        Nodes::Listed(nodes) => nodes,
        Nodes::Failed(error) => return Err(failed(error)),
        Nodes::NotAsked => return Err(failed("the nodes have not been listed yet")),
    };
    if nodes.contains_key("") {
        return Err(failed("a node from the list of all nodes has no name"));
    }
    let schedulable = |pod: &&&Pod| node(pod).and_then(|name| nodes.get(name)).is_some_and(|free| *free);
    Ok(candidates.iter().find(schedulable).unwrap_or(newest))
}

/// The agent's pod to ask: the newest one that runs.
pub(super) fn agent(observed: &Observed) -> Result<&Pod, String> {
    let all = observed.agents.as_ref().map_err(|error| format!("could not list agent pods: {error}"))?;
    running(all).first().copied().ok_or_else(|| no_healthy("agent", all.len()))
}

/// The names of the nodes that [`Nodes`] has to know.
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

/// Those that run, newest first, then by name.
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

fn no_healthy(what: &str, candidates: usize) -> String {
    let plural = if candidates == 1 { "candidate" } else { "candidates" };
    format!("could not find a healthy {what} pod ({candidates} {plural})")
}
