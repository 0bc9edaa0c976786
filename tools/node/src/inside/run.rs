//! Starts the node's programs in an order that minimizes waiting, reports the progress, and
//! terminates when one of them exits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, ListParams, Patch, PatchParams};
use pinniped_test_support::control_plane::{client_of, tail};
use pinniped_test_support::wait;

use super::component::{self, Component};
use super::configuration::{self, MANIFESTS};
use super::progress::Progress;
use super::{KUBERNETES, LOGS, RUN, TOOLS, addons, containerd, control_plane, pki};
use crate::layout::Layout;
use crate::{images, prerequisites};

/// Time limit of each step. The machine may be compiling at the same time.
const DEADLINE: Duration = Duration::from_secs(120);
/// The label of control plane nodes, which the Concierge searches for.
const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// Runs the node until one of its programs exits.
///
/// # Errors
/// Returns an error that contains the end of the program's log when a program cannot be started,
/// does not become ready, or exits.
pub(crate) async fn run(layout: &Layout) -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let progress = Progress::append(&layout.progress())?;
    let mut components = Vec::new();
    let result = match start(layout, &progress, &mut components).await {
        Ok(()) => {
            progress.ready();
            Err(first_ended(&mut components).await)
        }
        Err(error) => Err(name_the_dead(&mut components, error)),
    };
    if let Err(error) = &result {
        progress.failed(error);
    }
    result
}

/// Replaces the error by that of an exited program, which explains more than the timeout of another
/// one.
fn name_the_dead(components: &mut [Component], error: anyhow::Error) -> anyhow::Error {
    match components.iter_mut().find_map(|component| component.check().err()) {
        Some(dead) => dead.context(error.to_string()),
        None => error,
    }
}

async fn first_ended(components: &mut [Component]) -> anyhow::Error {
    let all: Vec<_> = components.iter_mut().map(|component| Box::pin(component.ended())).collect();
    futures::future::select_all(all).await.0
}

async fn start(layout: &Layout, progress: &Progress, components: &mut Vec<Component>) -> anyhow::Result<()> {
    let node_name = layout.node_name();
    pki::write(&node_name)?;
    write_files(layout)?;
    progress.step("certificates and kubeconfigs as kubeadm's");
    components.push(Component::start("etcd", &control_plane::etcd_args())?);
    components.push(Component::start("kube-apiserver", &control_plane::apiserver_args())?);
    let config = vec!["--config".to_owned(), format!("{RUN}/containerd.toml")];
    components.push(Component::start("containerd", &config)?);

    let containers = async {
        wait::until(DEADLINE, "containerd to respond", async || containerd::is_ready().await.then_some(()))
            .await?;
        progress.step("containerd answers");
        for archive in images::archives(Path::new(TOOLS))? {
            containerd::import(&archive).await?;
        }
        progress.step("images of pause, kube-controller-manager and CoreDNS are imported");
        Component::start("kubelet", &configuration::kubelet_args(&node_name))
    };
    let is_ready = async {
        let client = client_of(&kubeconfig("admin")).await?;
        wait::until_ok(DEADLINE, "kube-apiserver to be ready", async || {
            let text = client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
            anyhow::ensure!(text == "ok", "/readyz returned {text}");
            Ok(())
        })
        .await?;
        bind_administrators().await?;
        progress.step("kube-apiserver is ready");
        let scheduler = Component::start("kube-scheduler", &control_plane::scheduler_args())?;
        let config = format!("--config={RUN}/kube-proxy.yaml");
        let proxy = Component::start("kube-proxy", &[config, "--v=2".to_owned()])?;
        apply_addons().await?;
        progress.step("cluster DNS and cluster-info are applied");
        anyhow::Ok((client, [scheduler, proxy]))
    };
    let both = async { tokio::try_join!(is_ready, containers) };
    let ((client, others), kubelet) = watched(components, both).await?;
    components.extend(others);
    components.push(kubelet);
    watched(components, await_cluster(&client, &node_name, progress)).await
}

/// Waits for `work`, or for a program to exit.
async fn watched<T>(
    components: &mut [Component],
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        dead = first_ended(components) => Err(dead),
    }
}

async fn await_cluster(client: &kube::Client, node_name: &str, progress: &Progress) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let label = serde_json::json!({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}});
    wait::until_ok(DEADLINE, "kubelet to register the node", async || {
        Ok(nodes.patch(node_name, &PatchParams::default(), &Patch::Merge(&label)).await?)
    })
    .await?;
    wait::until_ok(DEADLINE, "the node to be Ready", async || {
        let conditions = nodes.get(node_name).await?.status.and_then(|s| s.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|c| c.type_ == "Ready").context("it reports nothing yet")?;
        anyhow::ensure!(ready.status == "True", "{}", ready.message.clone().unwrap_or_default());
        Ok(())
    })
    .await?;
    progress.step(&format!("node {node_name} is Ready"));
    let system = Api::<Pod>::namespaced(client.clone(), "kube-system");
    pod_ready(&system, "component=kube-controller-manager").await?;
    progress.step("static pod kube-controller-manager is Ready");
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    wait::until_ok(DEADLINE, "the default ServiceAccount", async || Ok(accounts.get("default").await?))
        .await?;
    pod_ready(&system, "k8s-app=kube-dns").await?;
    progress.step("first ordinary pod is Ready: cluster DNS");
    let resolves = async || {
        let found = tokio::net::lookup_host(("kubernetes.default.svc.cluster.local", 443)).await?;
        anyhow::Ok(found.count())
    };
    wait::until_ok(DEADLINE, "cluster DNS to respond through kube-proxy", resolves).await?;
    progress.step("names of Services resolve");
    Ok(())
}

async fn pod_ready(pods: &Api<Pod>, labels: &str) -> anyhow::Result<()> {
    let ready = wait::until_ok(DEADLINE, format!("a pod with {labels} to be Ready"), async || {
        let found = pods.list(&ListParams::default().labels(labels)).await?;
        let pod = found.items.first().context("there is none")?;
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let state = status.container_statuses.unwrap_or_default().into_iter().find_map(|c| c.state?.waiting);
        let phase = status.phase.unwrap_or_default();
        let why = state.and_then(|waiting| waiting.message.or(waiting.reason)).unwrap_or_default();
        anyhow::ensure!(ready, "it is {phase} {why}");
        Ok(())
    });
    ready.await.map_err(|error| error.context(format!("pods' logs end:\n{}", pod_log_tails(5))))
}

/// Returns the ends of all pods' logs.
fn pod_log_tails(lines: usize) -> String {
    let mut logs = Vec::new();
    find_logs(&Path::new(LOGS).join("pods"), &mut logs);
    logs.iter().map(|log| format!("{}\n{}\n", log.display(), tail(log, lines))).collect()
}

fn find_logs(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            find_logs(&path, found);
        } else {
            found.push(path);
        }
    }
}

async fn apply_addons() -> anyhow::Result<()> {
    let ca = std::fs::read(Path::new(KUBERNETES).join("pki/ca.crt")).context("could not read ca.crt")?;
    let file = Path::new(RUN).join("addons.yaml");
    std::fs::write(&file, addons::manifests(&STANDARD.encode(ca))?).context("could not write the addons")?;
    let mut command = component::command("kubectl");
    command.arg("--kubeconfig").arg(kubeconfig("admin")).args(["apply", "--server-side", "-f"]).arg(&file);
    wait::until_ok(Duration::from_secs(30), "the addons to be applied", async || {
        let output = command.output().await.context("could not run kubectl")?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    })
    .await
}

/// Binds the group of `admin.conf` to the role `cluster-admin`, as kubeadm does.
async fn bind_administrators() -> anyhow::Result<()> {
    let bindings = Api::<ClusterRoleBinding>::all(client_of(&kubeconfig("super-admin")).await?);
    let group = "rbac.authorization.k8s.io";
    let binding = serde_json::json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": pki::ADMINS},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": pki::ADMINS}],
    });
    let params = PatchParams::apply("kubeadm");
    wait::until_ok(DEADLINE, "the administrators' role binding", async || {
        Ok(bindings.patch(pki::ADMINS, &params, &Patch::Apply(&binding)).await.map(drop)?)
    })
    .await
}

fn kubeconfig(name: &str) -> PathBuf {
    Path::new(KUBERNETES).join(format!("{name}.conf"))
}

fn write_files(layout: &Layout) -> anyhow::Result<()> {
    let cni = prerequisites::cni_dir().context("the CNI plugins are missing")?;
    let overlay = !crate::instance::on_overlay(Path::new("/var/lib/containerd"))?;
    let (policy_file, policy) = control_plane::audit_policy();
    let files = BTreeMap::from([
        (policy_file, policy.to_owned()),
        (format!("{RUN}/containerd.toml"), containerd::configuration(&cni, overlay)),
        (format!("{RUN}/cni/10-pods.conflist"), containerd::network()),
        (format!("{RUN}/kubelet.yaml"), configuration::kubelet(&layout.cgroup())),
        (format!("{RUN}/kube-proxy.yaml"), configuration::kube_proxy(&layout.node_name())),
        (format!("{MANIFESTS}/kube-controller-manager.yaml"), control_plane::controller_manager_pod()),
    ]);
    for (path, text) in files {
        let path = PathBuf::from(path);
        let dir = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(())
}
