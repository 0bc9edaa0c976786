//! A stand-in for scheduler and kubelet: runs the pods of the product as processes.
//!
//! Pods come from the real controllers: a Deployment applied by kubectl becomes pods here. A pod is
//! bound to the world's only Node when the command of its first container names a registered
//! program. The program is started with only what the pod provides: its flags, environment,
//! volumes, ServiceAccount token, root folder, network namespace and address. This module writes
//! the pod's status as a kubelet does, so that the real endpoint controller fills the Services.
//! Pods of other programs stay Pending.
//!
//! Supported: `command`, `args`, `env`, the volume types configMap, secret, downwardAPI, projected,
//! emptyDir and hostPath, changes of ConfigMaps in volumes, `readOnlyRootFilesystem`, readiness
//! probes (httpGet and tcpSocket), restart after a crash, graceful deletion. Not supported: users
//! and groups, limits, liveness probes, init containers, further containers, images (the command
//! alone selects the program).

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Binding, ConfigMap, Container, Node, ObjectReference, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::control_plane::{ControlPlane, tail};
use crate::guardian::signal_group;
use crate::hosts::Hosts;

mod container;
mod probe;
mod volumes;
mod worker;

/// The name of the world's Node.
pub const NODE_NAME: &str = "world-node";
/// Number of changes after which a pod that did not receive them writes its volumes again anyway.
const MISSED_CHANGES: usize = 64;
/// The address of the Node.
pub const NODE_IP: Ipv4Addr = Ipv4Addr::new(10, 123, 0, 1);

/// State shared by all pods.
pub(crate) struct Shared {
    pub(crate) control_plane: Arc<ControlPlane>,
    pub(crate) client: kube::Client,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) programs: Mutex<BTreeMap<String, PathBuf>>,
    pub(crate) running: Mutex<BTreeMap<(String, String), RunningPod>>,
    next_address: AtomicU16,
    /// Namespace and name of each ConfigMap that changes.
    pub(crate) changed_config_maps: broadcast::Sender<(String, String)>,
}

impl Shared {
    /// Returns a pod address that was not used before.
    pub(crate) fn next_address(&self) -> Ipv4Addr {
        let [high, low] = self.next_address.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Ipv4Addr::new(10, 124, high, low)
    }

    pub(crate) fn update(&self, key: &(String, String), change: impl FnOnce(&mut RunningPod)) {
        let mut running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(running.entry(key.clone()).or_default());
    }
}

/// The observed state of a pod that runs or ran here.
#[derive(Clone, Debug, Default)]
pub struct RunningPod {
    /// Process id of the container while it runs; also the id of its process group.
    pub pid: Option<u32>,
    /// Number of restarts after the container exited without a signal.
    pub restarts: u32,
    /// The address of the pod.
    pub ip: Option<Ipv4Addr>,
    /// Whether the readiness probe succeeds. True without a probe.
    pub ready: bool,
    /// The file with standard output and standard error of all runs of the container.
    pub log: PathBuf,
}

/// The pods of one world.
#[derive(Clone)]
pub struct Pods {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Pods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pods").finish_non_exhaustive()
    }
}

impl Pods {
    /// Creates the Node and returns the pods together with the future that runs them until
    /// `cancel`.
    pub(crate) async fn start(
        control_plane: Arc<ControlPlane>,
        hosts: Arc<Hosts>,
        control_plane_node: bool,
        cancel: CancellationToken,
    ) -> anyhow::Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let client = control_plane.client().await?;
        create_node(&client, control_plane_node).await?;
        let shared = Arc::new(Shared {
            control_plane,
            client,
            hosts,
            programs: Mutex::default(),
            running: Mutex::default(),
            next_address: AtomicU16::new(2),
            changed_config_maps: broadcast::channel(MISSED_CHANGES).0,
        });
        let work = run(Arc::clone(&shared), cancel);
        Ok((Self { shared }, work))
    }

    /// Registers `file` as the program of pods whose container command is `command`, which is its
    /// name in the containers.
    pub fn register(&self, command: &str, file: PathBuf) {
        let mut programs = self.shared.programs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        programs.insert(command.to_owned(), file);
    }

    /// Returns the pods of `namespace` that run or ran here, by name.
    #[must_use]
    pub fn list(&self, namespace: &str) -> Vec<(String, RunningPod)> {
        let running = self.shared.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        running
            .iter()
            .filter(|((ns, _), _)| ns == namespace)
            .map(|((_, name), p)| (name.clone(), p.clone()))
            .collect()
    }

    /// Returns the complete logs of the pods of `namespace`.
    #[must_use]
    pub fn logs(&self, namespace: &str) -> String {
        self.list(namespace)
            .iter()
            .map(|(_, pod)| std::fs::read_to_string(&pod.log).unwrap_or_default())
            .collect()
    }

    /// Returns the last lines of each pod's log with headings, for failure messages.
    #[must_use]
    pub fn log_tails(&self, namespace: &str, lines: usize) -> String {
        self.list(namespace)
            .iter()
            .map(|(name, pod)| {
                format!("--- {namespace}/{name} (restarts: {})\n{}\n", pod.restarts, tail(&pod.log, lines))
            })
            .collect()
    }

    /// Sends a signal to the containers of `namespace`, such as `Signal::KILL` for a crash.
    pub fn signal(&self, namespace: &str, signal: rustix::process::Signal) {
        for (_, pod) in self.list(namespace) {
            if let Some(pid) = pod.pid {
                signal_group(pid, signal);
            }
        }
    }
}

async fn create_node(client: &kube::Client, control_plane_node: bool) -> anyhow::Result<()> {
    let mut labels = json!({
        "kubernetes.io/hostname": NODE_NAME,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    });
    if control_plane_node {
        labels["node-role.kubernetes.io/control-plane"] = json!("");
    }
    let nodes = Api::<Node>::all(client.clone());
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME, "labels": labels}});
    let node: Node = serde_json::from_value(node).context("the node is no Node")?;
    nodes.create(&PostParams::default(), &node).await.context("could not create the Node")?;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = json!({"spec": {"taints": null}, "status": {
        "addresses": [{"type": "InternalIP", "address": NODE_IP}, {"type": "Hostname", "address": NODE_NAME}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "stand-in",
            "lastHeartbeatTime": now, "lastTransitionTime": now}],
    }});
    let params = PatchParams::default();
    nodes
        .patch(NODE_NAME, &params, &Patch::Merge(&status))
        .await
        .context("could not remove the Node's taint")?;
    nodes
        .patch_status(NODE_NAME, &params, &Patch::Merge(&status))
        .await
        .context("could not set the Node's status")?;
    Ok(())
}

/// Binds and runs pods until `cancel`.
async fn run(shared: Arc<Shared>, cancel: CancellationToken) {
    let pods = Api::<Pod>::all(shared.client.clone());
    let mut events = watcher(pods, watcher::Config::default()).default_backoff().applied_objects().boxed();
    let config_maps = Api::<PartialObjectMeta<ConfigMap>>::all(shared.client.clone());
    let mut changed =
        watcher(config_maps, watcher::Config::default()).default_backoff().applied_objects().boxed();
    let mut workers = JoinSet::new();
    // Keyed by UID. The token is cancelled when the pod must stop.
    let mut known: HashMap<String, CancellationToken> = HashMap::new();
    loop {
        let pod = tokio::select! {
            () = cancel.cancelled() => break,
            Some(_) = workers.join_next() => continue,
            Some(Ok(map)) = changed.next() => {
                // Fails while no pod runs.
                let _ = shared.changed_config_maps.send((map.namespace().unwrap_or_default(), map.name_any()));
                continue;
            }
            pod = events.next() => pod,
        };
        let pod = match pod {
            Some(Ok(pod)) => pod,
            Some(Err(_)) => continue,
            None => break,
        };
        if program_of(&shared, &pod).is_none() {
            continue;
        }
        let uid = pod.uid().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let ending = pod.metadata.deletion_timestamp.is_some();
        match known.get(&uid) {
            Some(stop) if ending => stop.cancel(),
            Some(_) => {}
            None if node.is_none() && !ending => {
                if let Err(error) = bind(&shared.client, &pod).await {
                    eprintln!("scheduler: could not bind {}: {error:#}", pod.name_any());
                }
            }
            None if node.as_deref() == Some(NODE_NAME) => {
                let stop = cancel.child_token();
                if ending {
                    stop.cancel();
                }
                known.insert(uid, stop.clone());
                workers.spawn(worker::run(Arc::clone(&shared), pod, stop));
            }
            None => {}
        }
    }
    workers.shutdown().await;
}

/// Returns the registered program that a pod's first container runs, if any.
fn program_of(shared: &Shared, pod: &Pod) -> Option<PathBuf> {
    let name = program_name(pod.spec.as_ref()?.containers.first()?)?;
    let programs = shared.programs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    programs.get(name).cloned()
}

/// Returns the name of a container's program, which is the file name in its command.
fn program_name(container: &Container) -> Option<&str> {
    container.command.as_ref()?.first()?.rsplit('/').next()
}

async fn bind(client: &kube::Client, pod: &Pod) -> anyhow::Result<()> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let binding = Binding {
        metadata: kube::api::ObjectMeta { name: Some(name.clone()), ..Default::default() },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(NODE_NAME.to_owned()),
            ..Default::default()
        },
    };
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let _: serde_json::Value = pods
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await
        .context("binding")?;
    Ok(())
}
