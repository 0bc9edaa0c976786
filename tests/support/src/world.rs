//! A test world: control plane, Services, names and pods in one network namespace.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::control_plane::{ControlPlane, ControlPlaneParams};
use crate::hosts::Hosts;
use crate::kubectl::Kubectl;
use crate::pods::{NODE_IP, Pods};
use crate::{service_proxy, tools};

/// Environment variable that `tools/test-runner.sh` sets inside the namespace.
const WORLD_ENV: &str = "PINNIPED_WORLD";
/// Environment variable that the script sets, with the reason, where there is no namespace.
const WORLD_MISSING_ENV: &str = "PINNIPED_WORLD_MISSING";

/// Parameters of a world.
#[derive(Clone, Debug)]
pub struct WorldParams {
    /// Parameters of the control plane; the world sets the address.
    pub control_plane: ControlPlaneParams,
    /// Whether the Node has the label of control plane nodes. If so, the Concierge in mode `auto`
    /// leaves its impersonation proxy off, as on a cluster with a visible control plane.
    pub control_plane_node: bool,
}

impl Default for WorldParams {
    fn default() -> Self {
        Self { control_plane: ControlPlaneParams::default(), control_plane_node: true }
    }
}

/// Checks whether this process runs in its own network namespace.
///
/// # Errors
/// Returns the reason why it does not, for messages.
pub fn in_namespace() -> Result<(), String> {
    if std::env::var_os(WORLD_ENV).is_some_and(|v| v == "namespace") {
        return Ok(());
    }
    Err(std::env::var(WORLD_MISSING_ENV)
        .unwrap_or_else(|_| "not started by cargo or tools/test-runner.sh".to_owned()))
}

/// Checks whether pods reach each other by their own addresses, as a gateway reaches its backends.
/// ClusterIPs work without that.
///
/// # Errors
/// Returns the reason why they do not, for messages.
pub fn pods_reach_pods() -> Result<(), String> {
    in_namespace()?;
    match std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward") {
        Ok(text) if text.trim() == "1" => Ok(()),
        _ => {
            Err("net.ipv4.ip_forward cannot be set in a network namespace of our own: /proc/sys is read-only"
                .to_owned())
        }
    }
}

/// A running world. Dropping it terminates everything in it.
///
/// A process can have at most one world with pods at a time, because Service addresses and
/// `/etc/hosts` belong to the process.
#[derive(Debug)]
pub struct World {
    control_plane: Arc<ControlPlane>,
    inside: Option<Inside>,
    cancel: CancellationToken,
    runtime: Option<tokio::runtime::Runtime>,
}

/// The parts that need namespaces.
#[derive(Debug)]
struct Inside {
    hosts: Arc<Hosts>,
    pods: Pods,
}

static SHARED: OnceLock<Result<World, String>> = OnceLock::new();
static TAKEN: AtomicBool = AtomicBool::new(false);

impl World {
    /// Returns the world that all tests of this executable share; the first caller starts it. It
    /// terminates with the process. Use one namespace (and, for cluster-wide objects, one API group
    /// suffix) per test.
    ///
    /// # Errors
    /// Returns an error when the world could not be started; every caller gets the same text.
    pub fn shared() -> anyhow::Result<&'static World> {
        SHARED
            .get_or_init(|| World::start(WorldParams::default()).map_err(|err| format!("{err:#}")))
            .as_ref()
            .map_err(|err| anyhow::anyhow!("{err}"))
    }

    /// Starts a world and waits until its control plane is ready. Blocks the calling thread and has
    /// its own runtime, so that tests with different runtimes can share it.
    ///
    /// Without namespaces ([`in_namespace`]) it starts only a control plane on the host's loopback
    /// interface, and prints that.
    ///
    /// # Errors
    /// Returns an error when programs are missing or cannot be started.
    pub fn start(params: WorldParams) -> anyhow::Result<Self> {
        std::thread::scope(|scope| {
            let starter = scope.spawn(|| Self::start_here(params));
            starter.join().map_err(|_| anyhow::anyhow!("starting the world panicked"))?
        })
    }

    fn start_here(mut params: WorldParams) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("world")
            .enable_all()
            .build()
            .context("could not create the world's runtime")?;
        let namespace = in_namespace();
        match &namespace {
            Ok(()) => params.control_plane.address = IpAddr::V4(NODE_IP),
            Err(why) => {
                tools::skip("network namespace (Services, names and pods of the world)", why);
            }
        }
        let control_plane = Arc::new(runtime.block_on(ControlPlane::start(params.control_plane))?);
        let cancel = CancellationToken::new();
        let inside = if namespace.is_ok() && !TAKEN.swap(true, Ordering::SeqCst) {
            Some(runtime.block_on(Inside::start(&control_plane, params.control_plane_node, &cancel))?)
        } else {
            None
        };
        Ok(Self { control_plane, inside, cancel, runtime: Some(runtime) })
    }

    /// etcd, kube-apiserver and kube-controller-manager.
    #[must_use]
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// kubectl with the administrator's kubeconfig.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        self.control_plane.kubectl()
    }

    /// Creates an administrator's client for the calling runtime.
    ///
    /// # Errors
    /// Returns an error when the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        self.control_plane.client().await
    }

    /// The path of the administrator's kubeconfig.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.control_plane.admin_kubeconfig()
    }

    /// The world's temporary folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.control_plane.dir()
    }

    /// Returns the pods, where this machine supports them. A test that needs pods and gets `None`
    /// returns early: the skip is recorded (and fails where everything is required).
    #[must_use]
    pub fn pods(&self, test: &str) -> Option<&Pods> {
        if self.inside.is_none() {
            tools::skip(test, "pods need a network namespace of their own");
        }
        self.inside.as_ref().map(|inside| &inside.pods)
    }

    /// Makes `name` resolve to `ip` for every program of the world.
    ///
    /// # Errors
    /// Returns an error without namespaces, or when the hosts file cannot be written.
    pub fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        self.inside.as_ref().context("names need a mount namespace of our own")?.hosts.set(name, ip)
    }

    /// Assigns an address to a Service of type LoadBalancer: its own ClusterIP, which works inside
    /// the world.
    ///
    /// # Errors
    /// Returns an error when the Service does not exist.
    pub async fn assign_load_balancer(&self, namespace: &str, name: &str) -> anyhow::Result<IpAddr> {
        use k8s_openapi::api::core::v1::Service;
        let services = kube::Api::<Service>::namespaced(self.client().await?, namespace);
        let service = services.get(name).await.context("could not read the Service")?;
        let ip = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no ClusterIP")?;
        let status = serde_json::json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        services
            .patch_status(name, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&status))
            .await
            .context("could not set the Service's status")?;
        ip.parse().context("the ClusterIP is no address")
    }
}

impl Inside {
    async fn start(
        control_plane: &Arc<ControlPlane>,
        control_plane_node: bool,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let hosts = Arc::new(Hosts::mount(&control_plane.dir().join("hosts"))?);
        let client = control_plane.client().await?;
        // Both tasks stop with the runtime, which the world owns and shuts down.
        tokio::spawn(service_proxy::run(client, Arc::clone(&hosts), cancel.clone()));
        let (pods, work) =
            Pods::start(Arc::clone(control_plane), Arc::clone(&hosts), control_plane_node, cancel.clone())
                .await?;
        tokio::spawn(work);
        for (command, program) in tools::COMMANDS {
            // The pods of a program that is not built stay Pending; tests that need it call
            // `tools::binary` first.
            if let Ok(file) = tools::binary(program) {
                pods.register(command, file);
            }
        }
        Ok(Self { hosts, pods })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.control_plane.guardian().end();
        if let Some(runtime) = self.runtime.take() {
            // A runtime cannot block inside another runtime; a plain thread can.
            std::thread::scope(|scope| {
                scope.spawn(|| runtime.shutdown_timeout(Duration::from_secs(1)));
            });
        }
        if self.inside.is_some() {
            // The mounted file is gone. Restore the machine's own names for the next user in this
            // process.
            let _ = std::process::Command::new("umount").arg("/etc/hosts").output();
            TAKEN.store(false, Ordering::SeqCst);
        }
    }
}
