//! A control plane on which the tests create kube-controller-manager pods, nodes and
//! `cluster-info`.
//!
//! There is no kubelet: the tests write the status of pods. All installations share kube-system, so
//! these tests have a control plane of their own and run one after another on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyType};
use pinniped_concierge_controllers::kube_cert_agent::exec::{AgentExec, ExecError};
use pinniped_concierge_domain::strategy::kube_cert_agent::AgentPod;
use pinniped_pki::{CertificateAuthority, Validity};
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::wait;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use crate::install::{Install, PATIENCE};

/// Name of the agent's Deployment.
pub(crate) const DEPLOYMENT: &str = "concierge-kube-cert-agent";

/// The label of control plane nodes.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

static PLANE: OnceLock<Result<(Runtime, ControlPlane), String>> = OnceLock::new();
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Exclusive access to the cluster as long as the value lives.
pub(crate) struct Cluster {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) client: kube::Client,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Cluster {
    /// Waits for exclusive access and returns an empty cluster: two nodes, no
    /// kube-controller-manager, no `cluster-info`.
    pub(crate) async fn turn() -> anyhow::Result<Self> {
        let turn = TURN.lock().await;
        let plane = tokio::task::spawn_blocking(plane).await??;
        let client = plane.client().await?;
        let cluster = Self { plane, client, _turn: turn };
        cluster.remove_controller_managers().await?;
        cluster.config_maps().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        for node in ["node-1", "node-2"] {
            let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            cluster.plane.kubectl().apply(&made.to_string()).await?;
            cluster.cordon(node, false).await?;
            cluster.patch_node(node, &json!({"metadata": {"labels": {CONTROL_PLANE: null}}})).await?;
            // An address without a listener.
            let status = json!({"status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
            }});
            let nodes: Api<Node> = Api::all(cluster.client.clone());
            nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        Ok(cluster)
    }

    /// Returns an installation without an impersonation proxy.
    pub(crate) async fn install(&self, name: &str) -> anyhow::Result<Install> {
        Install::on(self.plane, name, json!({"mode": "disabled", "service": {"type": "None"}})).await
    }

    pub(crate) fn controller_managers(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "kube-system")
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "kube-public")
    }

    /// Creates a pod as kubeadm does, which is not running yet.
    pub(crate) async fn controller_manager(&self, name: &str, node: &str) -> anyhow::Result<Pod> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"component": "kube-controller-manager", "tier": "control-plane"}},
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "kube-controller-manager", "image": "kcm:1",
                    "command": [
                        "kube-controller-manager", "--leader-elect=true",
                        "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
                        "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
                    ],
                    "volumeMounts": [
                        {"mountPath": "/etc/kubernetes/pki", "name": "k8s-certs", "readOnly": true},
                        {"mountPath": "/flexvolume", "name": "flexvolume-dir"},
                    ],
                }],
                "hostNetwork": true, "nodeName": node, "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
                "volumes": [
                    {"hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}, "name": "k8s-certs"},
                    {"hostPath": {"path": "/flexvolume", "type": ""}, "name": "flexvolume-dir"},
                ],
            },
        });
        // The ServiceAccount of the namespace is created in the background.
        wait::until_ok(PATIENCE, "a pod in kube-system", async || {
            let pod: Pod = serde_json::from_value(pod.clone())?;
            Ok(self.controller_managers().create(&PostParams::default(), &pod).await?)
        })
        .await
    }

    pub(crate) async fn remove_controller_managers(&self) -> anyhow::Result<()> {
        let all = ListParams::default().labels("component=kube-controller-manager");
        let now = DeleteParams::default().grace_period(0);
        self.controller_managers().delete_collection(&now, &all).await?;
        Ok(())
    }

    pub(crate) async fn cordon(&self, node: &str, unschedulable: bool) -> anyhow::Result<()> {
        self.patch_node(node, &json!({"spec": {"unschedulable": unschedulable}})).await
    }

    /// Gives this node the labels and annotations of a k3s server, until the next test.
    pub(crate) async fn k3s_server(&self, node: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let arguments = serde_json::to_string(arguments)?;
        let annotations = json!({"k3s.io/node-args": arguments});
        let metadata = json!({"labels": {CONTROL_PLANE: "true"}, "annotations": annotations});
        self.patch_node(node, &json!({"metadata": metadata})).await?;
        let status = json!({"status": {"nodeInfo": {
            "kubeletVersion": "v1.36.3+k3s1", "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "c",
            "kernelVersion": "k", "kubeProxyVersion": "v1.36.3+k3s1", "machineID": "m", "operatingSystem": "linux",
            "osImage": "o", "systemUUID": "s",
        }}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }

    async fn patch_node(&self, node: &str, patch: &Value) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Writes `kube-public/cluster-info`.
    pub(crate) async fn cluster_info(&self, data: Value) -> anyhow::Result<()> {
        let config_map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": data,
        });
        self.plane.kubectl().apply(&config_map.to_string()).await?;
        Ok(())
    }

    /// Writes `kube-public/cluster-info` as kubeadm does.
    pub(crate) async fn cluster_info_of(&self, server: &str) -> anyhow::Result<()> {
        let cluster = json!({"server": server, "certificate-authority-data": "Y2E="});
        let kubeconfig =
            json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]});
        self.cluster_info(json!({"kubeconfig": kubeconfig.to_string()})).await
    }
}

fn plane() -> anyhow::Result<&'static ControlPlane> {
    let started = PLANE.get_or_init(|| {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        match runtime.block_on(ControlPlane::start(ControlPlaneParams::default())) {
            Ok(plane) => Ok((runtime, plane)),
            Err(error) => {
                // Does not block: the runtime of the test waits for this thread.
                runtime.shutdown_background();
                Err(format!("{error:#}"))
            }
        }
    });
    started.as_ref().map(|(_, plane)| plane).map_err(|error| anyhow::anyhow!("{error}"))
}

/// Sets the phase of a pod, as its kubelet would.
pub(crate) async fn set_phase(api: &Api<Pod>, name: &str, phase: &str) -> anyhow::Result<()> {
    let status = json!({"status": {"phase": phase}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

impl Install {
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits for a Deployment of the agent that passes `is_so`.
    pub(crate) async fn agent_deployment(
        &self,
        what: &str,
        is_so: impl Fn(&Deployment) -> bool,
    ) -> anyhow::Result<Deployment> {
        wait::until_ok(PATIENCE, what, async || {
            let deployment = self.deployments().get(DEPLOYMENT).await?;
            anyhow::ensure!(is_so(&deployment), "still {:?}", deployment.spec);
            Ok(deployment)
        })
        .await
    }

    /// Waits for an agent pod, which the Deployment controller creates, and marks it as running.
    pub(crate) async fn run_agent(&self) -> anyhow::Result<String> {
        let of_agent = ListParams::default().labels("kube-cert-agent.pinniped.dev=v3");
        let name = wait::until_ok(PATIENCE, "an agent's pod", async || {
            let pods = self.pods().list(&of_agent).await?;
            let living = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
            Ok(pods.items.iter().find(living).context("no pod")?.name_any())
        })
        .await?;
        set_phase(&self.pods(), &name, "Running").await?;
        Ok(name)
    }

    /// Waits until the strategy has this message.
    pub(crate) async fn await_message(&self, message: &str) -> anyhow::Result<CredentialIssuerStrategy> {
        self.agent_strategy(message, |strategy| strategy.message == message).await
    }

    /// Waits until the strategy has this message and advertises this address of the API server.
    pub(crate) async fn await_log_at(
        &self,
        message: &str,
        server: &str,
    ) -> anyhow::Result<CredentialIssuerStrategy> {
        let at = |strategy: &CredentialIssuerStrategy| {
            serde_json::to_value(&strategy.frontend)
                .is_ok_and(|frontend| frontend["tokenCredentialRequestInfo"]["server"] == server)
        };
        let what = format!("{message} at {server}");
        self.agent_strategy(&what, |strategy| strategy.message == message && at(strategy)).await
    }

    pub(crate) async fn agent_strategy(
        &self,
        what: &str,
        is_so: impl Fn(&CredentialIssuerStrategy) -> bool,
    ) -> anyhow::Result<CredentialIssuerStrategy> {
        self.strategy_of(&StrategyType::KubeClusterSigningCertificate, what, is_so).await
    }
}

/// Simulates an agent.
#[derive(Default)]
pub(crate) struct Agent {
    output: Mutex<Vec<u8>>,
    calls: Mutex<BTreeMap<String, usize>>,
}

impl Agent {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn set_output(&self, output: impl Into<Vec<u8>>) {
        *self.output.lock().unwrap() = output.into();
    }

    /// Returns the number of reads from each pod.
    pub(crate) fn calls(&self) -> BTreeMap<String, usize> {
        self.calls.lock().unwrap().clone()
    }
}

impl AgentExec for Agent {
    fn print<'a>(&'a self, agent: &'a AgentPod) -> BoxFuture<'a, Result<Zeroizing<Vec<u8>>, ExecError>> {
        *self.calls.lock().unwrap().entry(agent.name.clone()).or_default() += 1;
        let output = self.output.lock().unwrap().clone();
        Box::pin(async { Ok(Zeroizing::new(output)) })
    }
}

/// Returns a CA for the output of an agent.
pub(crate) fn authority(name: &str) -> CertificateAuthority {
    let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(3600));
    CertificateAuthority::generate(name, &validity).unwrap()
}

/// Returns the output of an agent for a certificate and a key.
pub(crate) fn printed(certificate: &CertificateAuthority, key: &CertificateAuthority) -> Vec<u8> {
    use base64::Engine as _;
    let encode = |pem: &[u8]| base64::engine::general_purpose::STANDARD.encode(pem);
    json!({"tls.crt": encode(certificate.certificate_pem().as_bytes()), "tls.key": encode(key.private_key_pem().as_bytes())})
        .to_string()
        .into_bytes()
}
