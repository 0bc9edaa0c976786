//! A test world: control plane, Services, names and pods in one network namespace of its own.

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

/// Set by `tools/test-runner.sh` inside the namespace.
const WORLD_ENV: &str = "PINNIPED_WORLD";
/// Set by it, with the reason, where there is none.
const WORLD_MISSING_ENV: &str = "PINNIPED_WORLD_MISSING";

/// What may differ between worlds.
#[derive(Clone, Debug)]
pub struct WorldParams {
    /// Of the control plane; the address is set by the world.
    pub control_plane: ControlPlaneParams,
    /// Whether the Node has the label of control plane nodes: then the Concierge in mode `auto` leaves its
    /// impersonation proxy off, as on a cluster whose control plane it can see.
    pub control_plane_node: bool,
}

impl Default for WorldParams {
    fn default() -> Self {
        Self { control_plane: ControlPlaneParams::default(), control_plane_node: true }
    }
}

/// Whether this process runs in a network namespace of its own; if not, why.
///
/// # Errors
/// The reason, for messages.
pub fn in_namespace() -> Result<(), String> {
    if std::env::var_os(WORLD_ENV).is_some_and(|v| v == "namespace") {
        return Ok(());
    }
    Err(std::env::var(WORLD_MISSING_ENV)
        .unwrap_or_else(|_| "not started by cargo or tools/test-runner.sh".to_owned()))
}

/// Whether pods reach each other by their own addresses, as a gateway does its backends; if not, why. ClusterIPs work
/// without.
///
/// # Errors
/// The reason, for messages.
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

/// A running world. Dropping it ends everything in it.
///
/// At most one world with pods at a time in a process: Service addresses and `/etc/hosts` are the process's.
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
    /// The world that all tests of this executable share, started by the first that asks. It ends with the
    /// process. Use a namespace (and, for cluster-wide things, an API group suffix) per test.
    ///
    /// # Errors
    /// When it could not be started; every caller gets the same text.
    pub fn shared() -> anyhow::Result<&'static World> {
        SHARED
            .get_or_init(|| World::start(WorldParams::default()).map_err(|err| format!("{err:#}")))
            .as_ref()
            .map_err(|err| anyhow::anyhow!("{err}"))
    }

    /// Starts a world and waits until its control plane is ready. Blocks the calling thread, and has its own
    /// runtime, so that tests with runtimes of their own may share it.
    ///
    /// Without namespaces ([`in_namespace`]) it starts on the host's loopback with a control plane only, and
    /// says so.
    ///
    /// # Errors
    /// When programs are missing or something cannot be started.
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
            .context("could not make the world's runtime")?;
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

    /// kubectl as administrator.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        self.control_plane.kubectl()
    }

    /// A new client as administrator for the calling runtime.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        self.control_plane.client().await
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.control_plane.admin_kubeconfig()
    }

    /// The world's temporary folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.control_plane.dir()
    }

    /// The pods, where this machine allows them. A test that needs them and gets `None` returns: the skip is
    /// noted (and fails where everything is required).
    #[must_use]
    pub fn pods(&self, test: &str) -> Option<&Pods> {
        if self.inside.is_none() {
            tools::skip(test, "pods need a network namespace of their own");
        }
        self.inside.as_ref().map(|inside| &inside.pods)
    }

    /// Lets `name` resolve to `ip` for every program of the world.
    ///
    /// # Errors
    /// Without namespaces, or when the hosts file cannot be written.
    pub fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        self.inside.as_ref().context("names need a mount namespace of our own")?.hosts.set(name, ip)
    }

    /// Gives a Service of type LoadBalancer an address: its own ClusterIP, which works inside the world.
    ///
    /// # Errors
    /// When the Service is not there.
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
        // Both end with the runtime, which the world owns and shuts down.
        tokio::spawn(service_proxy::run(client, Arc::clone(&hosts), cancel.clone()));
        let (pods, work) =
            Pods::start(Arc::clone(control_plane), Arc::clone(&hosts), control_plane_node, cancel.clone())
                .await?;
        tokio::spawn(work);
        for program in [
            "pinniped-concierge",
            "local-user-authenticator",
            "pinniped-concierge-kube-cert-agent",
            "pinniped-gateway",
        ] {
            // A program that is not built leaves its pods Pending; tests that need it ask `tools::binary` first.
            if let Ok(file) = tools::binary(program) {
                pods.register(program, file);
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
            // A runtime may not be waited for within another one; a plain thread may.
            std::thread::scope(|scope| {
                scope.spawn(|| runtime.shutdown_timeout(Duration::from_secs(1)));
            });
        }
        if self.inside.is_some() {
            // The file under it is gone; leave the machine's own names to whoever runs next in this process.
            let _ = std::process::Command::new("umount").arg("/etc/hosts").output();
            TAKEN.store(false, Ordering::SeqCst);
        }
    }
}
