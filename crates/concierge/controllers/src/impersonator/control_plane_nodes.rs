//! Determines whether the cluster's control plane is visible among its nodes.
//!
//! The nodes are listed only in mode `auto`. The result is cached for ten minutes. It changes only
//! if two lists in a row agree, so that a node that joins and leaves does not switch the proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::impersonator::Nodes;
use pinniped_kube_types::partial::Node;
use tokio::time::Instant;

use pinniped_controller::client::error_text;

/// Time for which a result is cached.
const CACHE_LIFETIME: Duration = Duration::from_secs(600);

/// Delay before the nodes are listed again after a first different result.
const CONFIRMATION_DELAY: Duration = Duration::from_secs(30);

/// Label keys of control plane nodes, with any value.
const ROLE_LABELS: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Label with the role of a node as its value.
const ROLE_LABEL: &str = "kubernetes.io/node-role";

/// Reasons why it is not known whether the control plane is visible, with upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum NodesError {
    /// The nodes could not be listed.
    #[error("error fetching nodes: {0}")]
    List(#[source] StatusText),
    /// The list is empty.
    #[error("no nodes found")]
    NoNodes,
}

/// Lists nodes and caches the result.
pub(super) struct ControlPlaneNodes {
    api: Api<Node>,
    cached: CachedResult,
}

impl ControlPlaneNodes {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { api: Api::all(client), cached: CachedResult::default() }
    }

    /// Returns the result, from the cache while it is fresh.
    pub(super) async fn get(&mut self) -> Nodes {
        if self.cached.is_due(Instant::now()) {
            let result = match self.api.list_metadata(&ListParams::default()).await {
                Ok(list) => has_control_plane(list.items.iter().map(|node| node.metadata.labels.as_ref())),
                Err(error) => Err(NodesError::List(error_text(&error).into())),
            };
            if let Ok(found) = result {
                tracing::debug!(foundControlPlaneNodes = found, "queried for control plane nodes");
            }
            return self.cached.record(result, Instant::now());
        }
        self.cached.current()
    }

    /// Cancels the next list, because the mode does not depend on the nodes. The cached result
    /// stays valid.
    pub(super) fn pause(&mut self) {
        self.cached.next = None;
    }

    /// Returns the time until the next list, if there is one.
    pub(super) fn recheck_after(&self) -> Option<Duration> {
        self.cached.next.map(|next| next.saturating_duration_since(Instant::now()))
    }
}

fn has_control_plane<'a>(
    labels: impl Iterator<Item = Option<&'a BTreeMap<String, String>>>,
) -> Result<bool, NodesError> {
    let mut any = false;
    for labels in labels {
        any = true;
        let Some(labels) = labels else { continue };
        let role = labels.get(ROLE_LABEL).is_some_and(|role| role == "control-plane" || role == "master");
        if role || ROLE_LABELS.iter().any(|key| labels.contains_key(*key)) {
            return Ok(true);
        }
    }
    if any { Ok(false) } else { Err(NodesError::NoNodes) }
}

#[derive(Default)]
struct CachedResult {
    accepted: Option<bool>,
    next: Option<Instant>,
    contradicted: bool,
}

impl CachedResult {
    fn is_due(&self, now: Instant) -> bool {
        self.accepted.is_none() || self.next.is_none_or(|next| now >= next)
    }

    fn current(&self) -> Nodes {
        match self.accepted {
            None => Nodes::Unknown,
            Some(true) => Nodes::ControlPlane,
            Some(false) => Nodes::WorkersOnly,
        }
    }

    fn record(&mut self, result: Result<bool, NodesError>, now: Instant) -> Nodes {
        let found = match (result, self.accepted) {
            (Ok(found), _) => found,
            (Err(error), None) => return Nodes::Failed(StatusText::of(&error)),
            (Err(error), Some(accepted)) => {
                tracing::debug!(%error, "nodes could not be listed, using the last result");
                self.next = Some(now + CACHE_LIFETIME);
                self.contradicted = false;
                return if accepted { Nodes::ControlPlane } else { Nodes::WorkersOnly };
            }
        };
        if self.accepted.is_some_and(|accepted| accepted != found) && !self.contradicted {
            self.contradicted = true;
            self.next = Some(now + CONFIRMATION_DELAY);
        } else {
            self.accepted = Some(found);
            self.contradicted = false;
            self.next = Some(now + CACHE_LIFETIME);
        }
        self.current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_identify_the_control_plane() {
        let node = |labels: &[(&str, &str)]| -> BTreeMap<String, String> {
            labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        for (labels, wanted) in [
            (vec![], false),
            (vec![("node-role.kubernetes.io/control-plane", "")], true),
            (vec![("node-role.kubernetes.io/master", "false")], true),
            (vec![("kubernetes.io/node-role", "master")], true),
            (vec![("kubernetes.io/node-role", "control-plane")], true),
            (vec![("kubernetes.io/node-role", "node")], false),
            (vec![("node-role.kubernetes.io/worker", "")], false),
        ] {
            let (worker, node) = (node(&[]), node(&labels));
            assert_eq!(
                has_control_plane([None, Some(&worker), Some(&node)].into_iter()),
                Ok(wanted),
                "{labels:?}"
            );
        }
        let error = has_control_plane(std::iter::empty()).unwrap_err();
        assert_eq!(error.to_string(), "no nodes found");
    }

    #[test]
    fn the_first_result_is_accepted_and_two_are_needed_for_a_change() {
        let mut cached = CachedResult::default();
        let start = Instant::now();
        assert_eq!(
            cached.record(Err(NodesError::List("x".into())), start),
            Nodes::Failed("error fetching nodes: x".into())
        );
        assert!(cached.is_due(start));
        assert_eq!(cached.record(Ok(true), start), Nodes::ControlPlane);
        assert!(!cached.is_due(start + Duration::from_secs(599)));
        let later = start + CACHE_LIFETIME;
        assert!(cached.is_due(later));
        assert_eq!(cached.record(Ok(false), later), Nodes::ControlPlane, "one result is not sufficient");
        assert!(!cached.is_due(later));
        let confirmed = later + CONFIRMATION_DELAY;
        assert!(cached.is_due(confirmed));
        assert_eq!(cached.record(Ok(false), confirmed), Nodes::WorkersOnly);
        let failed = confirmed + CACHE_LIFETIME;
        assert_eq!(
            cached.record(Err(NodesError::List("x".into())), failed),
            Nodes::WorkersOnly,
            "an error changes nothing"
        );
    }

    #[test]
    fn no_pass_is_scheduled_for_a_result_that_is_not_needed() {
        pinniped_pki::install_crypto_provider();
        let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let mut nodes = ControlPlaneNodes::new(kube::Client::try_from(config).unwrap());
        let listed = Instant::now().checked_sub(CACHE_LIFETIME).unwrap();
        nodes.cached.record(Ok(true), listed);
        assert_eq!(nodes.recheck_after(), Some(Duration::ZERO), "due while the mode is auto");
        nodes.pause();
        assert_eq!(nodes.recheck_after(), None);
        assert_eq!(nodes.cached.current(), Nodes::ControlPlane);
        assert!(nodes.cached.is_due(Instant::now()), "a later request lists the nodes again");
    }
}
