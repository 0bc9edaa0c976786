//! Observes the state for the agent's controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client};
use pinniped_concierge_api::names::{CONFIG_MAP_CLUSTER_INFO, NAMESPACE_KUBE_PUBLIC, NAMESPACE_KUBE_SYSTEM};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::kube_cert_agent::k3s::{self, K3s};
use pinniped_concierge_domain::strategy::kube_cert_agent::{
    AGENT_SELECTOR, CONTROLLER_MANAGER_SELECTOR, Nodes, Observed, pods,
};
use pinniped_kube_types::partial::{Deployment, Node, Pod};

use crate::context::Context;
use pinniped_controller::runtime::{ReconcileError, Trigger};
use pinniped_controller::watch::{Problem, Watched, Watches};

/// The watches that only this controller uses, before they start.
pub(crate) struct AgentWatches {
    controller_managers: Watched<Pod>,
    deployment: Watched<Deployment>,
    agents: Watched<Pod>,
    cluster_info: Watched<ConfigMap>,
}

impl AgentWatches {
    pub(crate) fn new(context: &Context, deployment_name: &str) -> Self {
        let any = || watcher::Config::default().any_semantic();
        let named = |name: &str| any().fields(&format!("metadata.name={name}"));
        let (client, namespace) = (&context.client, context.namespace.as_str());
        let inside = |kind: &str, namespace: &str| format!("{kind} in namespace {namespace}");
        Self {
            controller_managers: Watched::new(
                Api::namespaced(client.clone(), NAMESPACE_KUBE_SYSTEM),
                (),
                any().labels(CONTROLLER_MANAGER_SELECTOR),
                inside("pods", NAMESPACE_KUBE_SYSTEM),
            ),
            deployment: Watched::new(
                Api::namespaced(client.clone(), namespace),
                (),
                named(deployment_name),
                inside("deployments.apps", namespace),
            ),
            agents: Watched::new(
                Api::namespaced(client.clone(), namespace),
                (),
                any().labels(AGENT_SELECTOR),
                inside("pods", namespace),
            ),
            cluster_info: Watched::new(
                Api::namespaced(client.clone(), NAMESPACE_KUBE_PUBLIC),
                (),
                named(CONFIG_MAP_CLUSTER_INFO),
                inside("configmaps", NAMESPACE_KUBE_PUBLIC),
            ),
        }
    }

    /// Fires the trigger on every change.
    pub(crate) fn wake(&mut self, trigger: &Trigger) {
        self.controller_managers.wake(trigger, |_| true);
        self.deployment.wake(trigger, |_| true);
        self.agents.wake(trigger, |_| true);
        self.cluster_info.wake(trigger, |_| true);
    }

    /// Fires the trigger of another controller on every change of the API server's address.
    pub(crate) fn wake_for_cluster_info(&mut self, trigger: &Trigger) {
        self.cluster_info.wake(trigger, |_| true);
    }

    /// Returns access to the address of the API server.
    pub(crate) fn cluster_info(&self) -> ClusterInfo {
        ClusterInfo(Cache::of(&self.cluster_info))
    }

    /// Waits until that cache is filled or its watch is refused.
    pub(crate) fn cluster_info_ready(&self) -> impl Future<Output = ()> + Send + use<> {
        filled_or_refused(&self.cluster_info)
    }

    /// Returns the caches of the watches.
    pub(crate) fn caches(&self) -> Caches {
        Caches {
            controller_managers: Cache::of(&self.controller_managers),
            deployment: Cache::of(&self.deployment),
            agents: Cache::of(&self.agents),
            cluster_info: Cache::of(&self.cluster_info),
        }
    }

    /// Waits until each cache is filled or its watch is refused. A refused watch is reported in the
    /// status instead of delaying the controller.
    pub(crate) fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let ready = (
            filled_or_refused(&self.controller_managers),
            filled_or_refused(&self.deployment),
            filled_or_refused(&self.agents),
            filled_or_refused(&self.cluster_info),
        );
        async move {
            ready.0.await;
            ready.1.await;
            ready.2.await;
            ready.3.await;
        }
    }

    pub(crate) fn start(self, watches: &mut Watches) {
        watches.start(self.controller_managers);
        watches.start(self.deployment);
        watches.start(self.agents);
        watches.start(self.cluster_info);
    }
}

fn filled_or_refused<K>(watched: &Watched<K>) -> impl Future<Output = ()> + Send + use<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync,
{
    let (filled, refused) = (watched.ready(), watched.problem().arises());
    async {
        tokio::select! {
            () = filled => {}
            () = refused => {}
        }
    }
}

/// One of the caches.
struct Cache<K>
where
    K: kube::Resource<DynamicType = ()> + 'static,
{
    store: Store<K>,
    problem: Problem,
}

impl<K> Cache<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync,
{
    fn of(watched: &Watched<K>) -> Self {
        Self { store: watched.store(), problem: watched.problem() }
    }

    /// Returns all objects, or the API server's error text if the watch fails.
    fn all(&self) -> Result<Vec<Arc<K>>, StatusText> {
        match self.problem.current() {
            Some(problem) => Err(problem.into()),
            None => Ok(self.store.state()),
        }
    }

    /// Returns the object called `name`.
    fn named(&self, name: &str) -> Result<Option<Arc<K>>, StatusText> {
        let all = self.all()?;
        Ok(all.into_iter().find(|object| object.meta().name.as_deref() == Some(name)))
    }
}

/// The ConfigMap with the address of the API server, for another controller.
pub(crate) struct ClusterInfo(Cache<ConfigMap>);

impl ClusterInfo {
    /// Returns the current object, or the API server's error text if the watch fails.
    pub(crate) fn current(&self) -> Result<Option<Arc<ConfigMap>>, StatusText> {
        self.0.named(CONFIG_MAP_CLUSTER_INFO)
    }
}

/// The caches that the controller reads.
pub(crate) struct Caches {
    controller_managers: Cache<Pod>,
    deployment: Cache<Deployment>,
    agents: Cache<Pod>,
    cluster_info: Cache<ConfigMap>,
}

impl Caches {
    /// Returns the current observation, and the error if the nodes were needed and could not be
    /// listed.
    pub(super) async fn observe(
        &self,
        client: &Client,
        namespace: &str,
        deployment_name: &str,
    ) -> (Observed, Option<ReconcileError>) {
        let controller_managers = self.controller_managers.all();
        let mut nodes = (Nodes::NotListed, None);
        if let Ok(candidates) = &controller_managers
            && pods::needs_nodes(candidates)
        {
            nodes = match list(client, &pods::node_names(candidates)).await {
                Ok(schedulable) => (Nodes::Listed(schedulable), None),
                Err(error) => {
                    let error = ReconcileError::from(error);
                    let text = StatusText::of(&error);
                    (
                        Nodes::Failed(text),
                        Some(error.context("error while looking for controller manager pod")),
                    )
                }
            };
        }
        let none = controller_managers.as_ref().is_ok_and(Vec::is_empty);
        let k3s = if none { k3s(client, namespace).await } else { None };
        let observed = Observed {
            controller_managers,
            nodes: nodes.0,
            k3s,
            deployment: self.deployment.named(deployment_name),
            agents: self.agents.all(),
            cluster_info: self.cluster_info.named(CONFIG_MAP_CLUSTER_INFO),
        };
        (observed, nodes.1)
    }
}

/// Returns whether pods may be scheduled on these nodes. Gets each node separately, because a
/// cluster may have thousands of other nodes.
async fn list(client: &Client, names: &[String]) -> Result<BTreeMap<String, bool>, kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let mut schedulable = BTreeMap::new();
    for name in names {
        let list = api.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await?;
        for node in list {
            let cordoned = node.spec.is_some_and(|spec| spec.unschedulable == Some(true));
            schedulable.insert(node.metadata.name.unwrap_or_default(), !cordoned);
        }
    }
    Ok(schedulable)
}

/// Returns the information about k3s if k3s runs this cluster. An error counts as "not k3s", which
/// is the case on nearly all clusters without a kube-controller-manager pod.
async fn k3s(client: &Client, namespace: &str) -> Option<Arc<K3s>> {
    let api: Api<Node> = Api::all(client.clone());
    let servers = match api.list(&ListParams::default().labels(k3s::SERVER_SELECTOR)).await {
        Ok(servers) => servers.items,
        Err(error) => {
            tracing::debug!(%error, "could not list nodes to detect k3s");
            return None;
        }
    };
    let server = k3s::server(&servers)?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let root_ca = match config_maps.get_opt(k3s::ROOT_CA.0).await {
        Ok(root_ca) => root_ca,
        Err(error) => {
            tracing::debug!(%error, "could not read the cluster's CA");
            None
        }
    };
    Some(Arc::new(k3s::known(server, root_ca.as_ref())))
}
