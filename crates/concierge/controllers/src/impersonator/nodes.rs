//! Whether the cluster's control plane can be seen among its nodes.
//!
//! Asked only in mode `auto`. The answer is remembered and asked for again every ten minutes; it changes only when two
//! answers in a row agree, so that a node which comes and goes does not switch the proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use pinniped_concierge_domain::strategy::impersonator::Nodes;
use pinniped_kube_types::partial::Node;
use tokio::time::Instant;

use pinniped_controller::client::error_text;

/// Age at which an answer is asked for again.
const LIFETIME: Duration = Duration::from_secs(600);

/// When to ask again after a first answer that differs.
const CONFIRMATION: Duration = Duration::from_secs(30);

/// Label keys of control plane nodes, whatever their value.
const ROLE_LABELS: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Label whose value tells the role.
const ROLE_LABEL: &str = "kubernetes.io/node-role";

/// Lists nodes, and remembers.
pub(super) struct NodeKinds {
    api: Api<Node>,
    memory: Memory,
}

impl NodeKinds {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { api: Api::all(client), memory: Memory::default() }
    }

    /// The answer, from memory while it is young.
    pub(super) async fn ask(&mut self) -> Nodes {
        if self.memory.is_due(Instant::now()) {
            let answer = match self.api.list_metadata(&ListParams::default()).await {
                Ok(list) => judge(list.items.iter().map(|node| node.metadata.labels.as_ref())),
                Err(error) => Err(format!("error fetching nodes: {}", error_text(&error))),
            };
            if let Ok(found) = answer {
                tracing::debug!(foundControlPlaneNodes = found, "queried for control plane nodes");
            }
            return self.memory.learn(answer, Instant::now());
        }
        self.memory.current()
    }

    /// Nobody wants to know, so there is no time to ask again either. What was found stays believed.
    pub(super) fn rest(&mut self) {
        self.memory.next = None;
    }

    /// When to ask again, if anybody wants to know.
    pub(super) fn recheck_after(&self) -> Option<Duration> {
        self.memory.next.map(|next| next.saturating_duration_since(Instant::now()))
    }
}

fn judge<'a>(labels: impl Iterator<Item = Option<&'a BTreeMap<String, String>>>) -> Result<bool, String> {
    let mut any = false;
    for labels in labels {
        any = true;
        let Some(labels) = labels else { continue };
        let role = labels.get(ROLE_LABEL).is_some_and(|role| role == "control-plane" || role == "master");
        if role || ROLE_LABELS.iter().any(|key| labels.contains_key(*key)) {
            return Ok(true);
        }
    }
    if any { Ok(false) } else { Err("no nodes found".to_owned()) }
}

#[derive(Default)]
struct Memory {
    believed: Option<bool>,
    next: Option<Instant>,
    doubted: bool,
}

impl Memory {
    fn is_due(&self, now: Instant) -> bool {
        self.believed.is_none() || self.next.is_none_or(|next| now >= next)
    }

    fn current(&self) -> Nodes {
        match self.believed {
            None => Nodes::Unknown,
            Some(true) => Nodes::ControlPlane,
            Some(false) => Nodes::WorkersOnly,
        }
    }

    fn learn(&mut self, answer: Result<bool, String>, now: Instant) -> Nodes {
        let found = match (answer, self.believed) {
            (Ok(found), _) => found,
            (Err(error), None) => return Nodes::Failed(error),
            (Err(error), Some(believed)) => {
                tracing::debug!(%error, "keeping the last answer about control plane nodes");
                self.next = Some(now + LIFETIME);
                self.doubted = false;
                return if believed { Nodes::ControlPlane } else { Nodes::WorkersOnly };
            }
        };
        if self.believed.is_some_and(|believed| believed != found) && !self.doubted {
            self.doubted = true;
            self.next = Some(now + CONFIRMATION);
        } else {
            self.believed = Some(found);
            self.doubted = false;
            self.next = Some(now + LIFETIME);
        }
        self.current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_the_control_plane() {
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
            assert_eq!(judge([None, Some(&worker), Some(&node)].into_iter()), Ok(wanted), "{labels:?}");
        }
        assert_eq!(judge(std::iter::empty()), Err("no nodes found".to_owned()));
    }

    #[test]
    fn an_answer_is_believed_at_first_and_changed_only_by_two() {
        let mut memory = Memory::default();
        let start = Instant::now();
        assert_eq!(memory.learn(Err("x".into()), start), Nodes::Failed("x".into()));
        assert!(memory.is_due(start));
        assert_eq!(memory.learn(Ok(true), start), Nodes::ControlPlane);
        assert!(!memory.is_due(start + Duration::from_secs(599)));
        let later = start + LIFETIME;
        assert!(memory.is_due(later));
        assert_eq!(memory.learn(Ok(false), later), Nodes::ControlPlane, "one answer is no proof");
        assert!(!memory.is_due(later));
        let confirmed = later + CONFIRMATION;
        assert!(memory.is_due(confirmed));
        assert_eq!(memory.learn(Ok(false), confirmed), Nodes::WorkersOnly);
        let failed = confirmed + LIFETIME;
        assert_eq!(memory.learn(Err("x".into()), failed), Nodes::WorkersOnly, "an error changes nothing");
    }

    #[test]
    fn nobody_is_woken_for_an_answer_that_nobody_wants() {
        pinniped_pki::install_crypto_provider();
        let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let mut nodes = NodeKinds::new(kube::Client::try_from(config).unwrap());
        let asked = Instant::now().checked_sub(LIFETIME).unwrap();
        nodes.memory.learn(Ok(true), asked);
        assert_eq!(nodes.recheck_after(), Some(Duration::ZERO), "due, as long as somebody asks");
        nodes.rest();
        assert_eq!(nodes.recheck_after(), None);
        assert_eq!(nodes.memory.current(), Nodes::ControlPlane);
        assert!(nodes.memory.is_due(Instant::now()), "who asks later gets a fresh answer");
    }
}
