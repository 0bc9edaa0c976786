//! etcd, kube-apiserver and kube-controller-manager as processes, with a PKI and a folder of their
//! own.
//!
//! A control plane is ready in a few seconds. The aggregation layer is configured as kubeadm does
//! it. The controllers that act on nodes that do not report are disabled, because there is no
//! kubelet. The [`Guardian`] terminates the processes and removes the folder, also when the owner
//! is killed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::KeyPair;
use rustix::process::Signal;

use crate::certs::{Authority, Pair};
use crate::guardian::{Ending, Guardian, Process, signal_group};
use crate::kubectl::Kubectl;
use crate::prepared::{self, Prepared};
use crate::{audit_log, tools, wait};

/// The range of ClusterIPs.
pub const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The ClusterIP of `kubernetes.default`.
pub const KUBERNETES_SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The common name of the cluster's CA.
const CA_NAME: &str = "kubernetes-ca";
const API_SERVER: &str = "kube-apiserver";
/// The file of [`AnonymousAccess::Paths`].
const AUTHENTICATION_CONFIG: &str = "authentication-config.json";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// Time limit until the control plane is ready. It usually takes five seconds; a machine that
/// compiles at the same time needs more.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// The requests without credentials that an API server accepts, as user `system:anonymous`. Others
/// get 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// All, as by default.
    Everywhere,
    /// None: `--anonymous-auth=false`.
    Nowhere,
    /// Those for these paths, by an `AuthenticationConfiguration`.
    Paths(Vec<&'static str>),
}

/// Parameters of a control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneParams {
    /// Cluster and context name in the kubeconfigs.
    pub cluster_name: String,
    /// The requests without credentials that are accepted.
    pub anonymous_access: AnonymousAccess,
    /// The address that the API server advertises and that its certificate contains besides
    /// 127.0.0.1. Loopback means: advertise nothing and listen on loopback only.
    pub address: IpAddr,
    /// Additional flags of kube-apiserver, appended to the default ones.
    pub extra_apiserver_args: Vec<String>,
    /// Additional flags of kube-controller-manager, appended to the default ones.
    pub extra_controller_manager_args: Vec<String>,
}

impl Default for ControlPlaneParams {
    fn default() -> Self {
        Self {
            cluster_name: "pinniped-test".to_owned(),
            anonymous_access: AnonymousAccess::Everywhere,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            extra_apiserver_args: Vec::new(),
            extra_controller_manager_args: Vec::new(),
        }
    }
}

impl ControlPlaneParams {
    /// Whether a control plane that was started in advance is suitable. Its API server also accepts
    /// connections to the loopback address.
    fn are_usual(&self) -> bool {
        let usual = Self::default();
        self.cluster_name == usual.cluster_name
            && self.anonymous_access == usual.anonymous_access
            && self.extra_apiserver_args.is_empty()
            && self.extra_controller_manager_args.is_empty()
    }
}

/// A running control plane. Dropping it terminates the processes and removes the folder.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    tools: PathBuf,
    port: u16,
    etcd_port: u16,
    params: ControlPlaneParams,
    ca: Authority,
    guardian: Guardian,
    processes: Mutex<Vec<(&'static str, Process)>>,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready: `/readyz` succeeds and the controllers
    /// have created the default ServiceAccount.
    ///
    /// # Errors
    /// Returns an error when the programs are missing or one of them exits. The message contains
    /// the end of its log.
    pub async fn start(params: ControlPlaneParams) -> anyhow::Result<Self> {
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
        if params.are_usual()
            && let Some(dir) = prepared::take()
        {
            return Self::attach(dir, params);
        }
        let tools = tools::control_plane()?;
        let dir = tempfile::Builder::new()
            .prefix("pinniped-world-")
            .tempdir()
            .context("could not create a temporary folder")?
            // From here on the guardian removes the folder; a killed process could not.
            .keep();
        let guardian = Guardian::start(Some(&dir))?;
        for sub in ["pki", "logs", "etcd", "pods"] {
            std::fs::create_dir(dir.join(sub)).with_context(|| format!("could not create {sub}"))?;
        }
        let ca = write_pki(&dir.join("pki"), &params)?;
        let (port, etcd_port, processes) = (free_port()?, free_port()?, Mutex::new(Vec::new()));
        let this = Self { port, etcd_port, dir, tools, params, ca, guardian, processes };
        this.write_kubeconfig("admin", &this.ca.client("kubernetes-admin", Some("system:masters"))?)?;
        this.write_kubeconfig("kcm", &this.ca.client("system:kube-controller-manager", None)?)?;
        this.start_processes()?;
        this.await_ready().await?;
        Ok(this)
    }

    /// Uses a control plane that another process started and terminates.
    fn attach(dir: PathBuf, params: ControlPlaneParams) -> anyhow::Result<Self> {
        let Prepared { port, etcd_port, tools } = Prepared::read(&dir)?;
        let read = |name: &str| {
            let file = dir.join("pki").join(name);
            std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))
        };
        let ca = Authority::load(CA_NAME, read("ca.crt")?, read("ca.key")?)?;
        let (guardian, processes) = (Guardian::start(None)?, Mutex::default());
        Ok(Self { dir, tools, port, etcd_port, params, ca, guardian, processes })
    }

    /// Writes the data that [`ControlPlane::start`] needs in another process.
    ///
    /// # Errors
    /// Returns an error when the file cannot be written.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let Self { port, etcd_port, tools, .. } = self;
        Prepared { port: *port, etcd_port: *etcd_port, tools: tools.clone() }.write(&self.dir)
    }

    fn start_processes(&self) -> anyhow::Result<()> {
        let etcd = format!("http://{}", self.etcd());
        let etcd_peer = format!("http://127.0.0.1:{}", free_port()?);
        let mut command = Command::new(self.tools.join("etcd"));
        command.args([
            "--data-dir=etcd".to_owned(),
            format!("--listen-client-urls={etcd}"),
            format!("--advertise-client-urls={etcd}"),
            format!("--listen-peer-urls={etcd_peer}"),
            format!("--initial-advertise-peer-urls={etcd_peer}"),
            format!("--initial-cluster=default={etcd_peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ]);
        self.launch("etcd", command)?;

        std::fs::write(self.dir.join("audit-policy.yaml"), AUDIT_POLICY)?;
        if let AnonymousAccess::Paths(paths) = &self.params.anonymous_access {
            let conditions: Vec<_> = paths.iter().map(|path| serde_json::json!({"path": path})).collect();
            let configuration = serde_json::json!({
                "apiVersion": "apiserver.config.k8s.io/v1beta1",
                "kind": "AuthenticationConfiguration",
                "anonymous": {"enabled": true, "conditions": conditions},
            });
            std::fs::write(self.dir.join(AUTHENTICATION_CONFIG), configuration.to_string())?;
        }
        self.start_api_server()?;
        self.start_controller_manager()
    }

    fn start_api_server(&self) -> anyhow::Result<()> {
        let mut command = Command::new(self.tools.join(API_SERVER));
        command.args(self.apiserver_args(&format!("http://{}", self.etcd())));
        self.launch(API_SERVER, command)
    }

    /// Kills kube-apiserver, which drops its connections without notice, starts it again, and waits
    /// until it is ready.
    ///
    /// # Errors
    /// Returns an error when it is not running, or does not become ready.
    pub async fn restart_api_server(&self) -> anyhow::Result<()> {
        let mut killed = {
            let mut processes = self.lock_processes();
            let at = processes.iter().position(|(name, _)| *name == API_SERVER);
            processes.remove(at.context("kube-apiserver does not run")?).1
        };
        signal_group(killed.id(), Signal::KILL);
        killed.wait().context("could not wait for kube-apiserver")?;
        self.guardian.forget(killed.id());
        self.start_api_server()?;
        self.await_ready().await
    }

    fn start_controller_manager(&self) -> anyhow::Result<()> {
        let mut command = Command::new(self.tools.join("kube-controller-manager"));
        command.args(CONTROLLER_MANAGER_ARGS).arg(format!("--secure-port={}", free_port()?));
        command.args(&self.params.extra_controller_manager_args);
        self.launch(CONTROLLER_MANAGER, command)
    }

    /// Restarts kube-controller-manager if it has exited: it gives up when the API server is not
    /// healthy within ten seconds, and a busy machine may need longer.
    fn start_controller_manager_again_if_it_gave_up(&self) -> anyhow::Result<()> {
        let gave_up = {
            let mut processes = self.lock_processes();
            let before = processes.len();
            processes.retain_mut(|(name, process)| *name != CONTROLLER_MANAGER || process.ended().is_none());
            processes.len() < before
        };
        if gave_up { self.start_controller_manager() } else { Ok(()) }
    }

    fn apiserver_args(&self, etcd: &str) -> Vec<String> {
        let mut args = APISERVER_ARGS.map(str::to_owned).to_vec();
        args.push(format!("--etcd-servers={etcd}"));
        args.push(format!("--secure-port={}", self.port));
        match &self.params.anonymous_access {
            AnonymousAccess::Everywhere => args.push("--anonymous-auth=true".to_owned()),
            AnonymousAccess::Nowhere => args.push("--anonymous-auth=false".to_owned()),
            AnonymousAccess::Paths(_) => {
                args.push(format!("--authentication-config={AUTHENTICATION_CONFIG}"));
            }
        }
        args.push(format!("--service-cluster-ip-range={SERVICE_RANGE}"));
        if self.params.address.is_loopback() {
            args.push("--bind-address=127.0.0.1".to_owned());
            args.push("--advertise-address=127.0.0.1".to_owned());
            args.push("--endpoint-reconciler-type=none".to_owned());
        } else {
            args.push("--bind-address=0.0.0.0".to_owned());
            args.push(format!("--advertise-address={}", self.params.address));
        }
        args.extend(self.params.extra_apiserver_args.iter().cloned());
        args
    }

    fn launch(&self, name: &'static str, mut command: Command) -> anyhow::Result<()> {
        command.current_dir(&self.dir);
        let process = self.guardian.spawn(&command, Ending::Kill, &self.log_file(name))?;
        self.lock_processes().push((name, process));
        Ok(())
    }

    fn lock_processes(&self) -> std::sync::MutexGuard<'_, Vec<(&'static str, Process)>> {
        self.processes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn await_ready(&self) -> anyhow::Result<()> {
        let client = self.client().await?;
        let accounts =
            kube::Api::<k8s_openapi::api::core::v1::ServiceAccount>::default_namespaced(client.clone());
        wait::until_ok(READY_WITHIN, "the control plane to be ready", async || {
            self.start_controller_manager_again_if_it_gave_up()?;
            if let Err(dead) = self.check_alive() {
                return Ok(Err(dead));
            }
            let request = http::Request::get("/readyz").body(Vec::new())?;
            anyhow::ensure!(client.request_text(request).await? == "ok", "/readyz is not ok");
            accounts.get("default").await?;
            Ok(Ok(()))
        })
        .await
        .map_err(|err| {
            err.context(format!("kube-apiserver's log ends:\n{}", self.log_tail("kube-apiserver", 15)))
        })?
    }

    /// Checks that all three programs are running.
    ///
    /// # Errors
    /// Names the program that exited and contains the end of its log.
    pub fn check_alive(&self) -> anyhow::Result<()> {
        let ended =
            self.lock_processes().iter_mut().find_map(|(name, p)| p.ended().map(|status| (*name, status)));
        match ended {
            Some((name, status)) => {
                anyhow::bail!("{name} ended ({status}); its log ends:\n{}", self.log_tail(name, 15))
            }
            None => Ok(()),
        }
    }

    /// Creates a client with all permissions for the calling runtime. Clients must not be shared
    /// between runtimes: each client has a task in the runtime that created it.
    ///
    /// # Errors
    /// Returns an error when the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        client_of(&self.admin_kubeconfig()).await
    }

    /// Creates a client with all permissions that impersonates `user` with `groups`.
    ///
    /// # Errors
    /// Returns an error when the kubeconfig cannot be read.
    pub async fn client_as(&self, user: &str, groups: &[&str]) -> anyhow::Result<kube::Client> {
        let mut config = config_of(&self.admin_kubeconfig()).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|g| (*g).to_owned()).collect());
        kube::Client::try_from(config).context("could not create a client")
    }

    /// Returns whether a feature gate of the API server is on, according to its metrics. False if
    /// the release does not have the gate: it does not have the feature yet, or has it always.
    ///
    /// # Errors
    /// Returns an error when the metrics cannot be read.
    pub async fn has_feature(&self, name: &str) -> anyhow::Result<bool> {
        let metrics = self.kubectl().output(&["get", "--raw", "/metrics"]).await?;
        let gate = format!("kubernetes_feature_enabled{{name=\"{name}\"");
        Ok(metrics.lines().any(|line| line.starts_with(&gate) && line.ends_with(" 1")))
    }

    /// Returns whether the API server is Kubernetes 1.`minor` or newer. If not, records a skip of
    /// `test` that is permitted also where everything is required.
    ///
    /// # Errors
    /// Returns an error when the version cannot be read.
    pub async fn is_since(&self, minor: u32, test: &str, why: &str) -> anyhow::Result<bool> {
        let version = self.client().await?.apiserver_version().await?;
        let found: u32 = version.minor.trim_end_matches('+').parse().context("no minor version")?;
        if found < minor {
            tools::permitted_skip(test, &format!("this API server is older than 1.{minor}: {why}"));
        }
        Ok(found >= minor)
    }

    /// The path of an administrator's kubeconfig with embedded certificate and key.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// kubectl with the administrator's kubeconfig.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.tools.join("kubectl"), &self.admin_kubeconfig())
    }

    /// The cluster's CA. It signs client certificates that the API server accepts.
    #[must_use]
    pub fn ca(&self) -> &Authority {
        &self.ca
    }

    /// `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The address of etcd, which accepts plain connections from every process on this machine.
    /// Tests use it for objects that the API server would reject.
    #[must_use]
    pub fn etcd(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.etcd_port))
    }

    /// The temporary folder of this control plane. It is removed when the control plane stops.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder with etcd, kubectl and the other programs.
    #[must_use]
    pub fn tools(&self) -> &Path {
        &self.tools
    }

    /// The guardian, for further processes that must terminate with this control plane.
    #[must_use]
    pub fn guardian(&self) -> &Guardian {
        &self.guardian
    }

    /// The process ids of the control plane's programs.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        self.lock_processes().iter().map(|(_, process)| process.id()).collect()
    }

    /// The path of a program's log; `name` is for example `kube-apiserver`.
    #[must_use]
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    /// Returns the last lines of a program's log.
    #[must_use]
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        tail(&self.log_file(name), lines)
    }

    /// Returns the events of the API server's audit log so far that contain `text` in a name or
    /// value, oldest first. The level is Metadata, and RequestResponse for the reviews of
    /// `authorization.k8s.io`.
    ///
    /// # Errors
    /// Returns an error when the log cannot be read.
    pub fn audit_events(&self, text: &str) -> anyhow::Result<Vec<serde_json::Value>> {
        audit_log::events(&self.dir.join("audit.log"), text)
    }

    /// Waits for an audit event that contains `text` and for which `fits` returns true.
    ///
    /// # Errors
    /// Returns an error after 10 s.
    pub async fn await_audit_event(
        &self,
        what: &str,
        text: &str,
        fits: impl Fn(&serde_json::Value) -> bool,
    ) -> anyhow::Result<serde_json::Value> {
        wait::until(Duration::from_secs(10), what, async || {
            self.audit_events(text).ok()?.into_iter().find(|e| fits(e))
        })
        .await
    }

    fn write_kubeconfig(&self, name: &str, pair: &Pair) -> anyhow::Result<()> {
        let cluster = &self.params.cluster_name;
        let user = format!("{cluster}-{name}");
        let text = kubeconfig(cluster, &user, cluster, &self.server(), &self.ca, pair);
        std::fs::write(self.dir.join(format!("{name}.kubeconfig")), text)
            .context("could not write a kubeconfig")
    }
}

/// Returns the text of a kubeconfig with one cluster, one user with a client certificate, and one
/// context, with all data embedded.
#[must_use]
pub fn kubeconfig(
    cluster: &str,
    user: &str,
    context: &str,
    server: &str,
    ca: &Authority,
    pair: &Pair,
) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: {context}\n\
         clusters:\n- name: {cluster}\n  cluster:\n    server: {server}\n    certificate-authority-data: {}\n\
         contexts:\n- name: {context}\n  context:\n    cluster: {cluster}\n    user: {user}\n\
         users:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n",
        STANDARD.encode(&ca.certificate_pem),
        STANDARD.encode(&pair.certificate_pem),
        STANDARD.encode(&pair.private_key_pem),
    )
}

/// Creates a client from a kubeconfig file.
///
/// # Errors
/// Returns an error when the file cannot be read or is not a kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> anyhow::Result<kube::Client> {
    kube::Client::try_from(config_of(kubeconfig).await?).context("could not create a client")
}

async fn config_of(kubeconfig: &Path) -> anyhow::Result<kube::Config> {
    let read = kube::config::Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("could not read {}", kubeconfig.display()))?;
    kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default())
        .await
        .context("could not use the kubeconfig")
}

/// Returns the last `lines` lines of a file, or the reason why it cannot be read.
#[must_use]
pub fn tail(file: &Path, lines: usize) -> String {
    match std::fs::read(file) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(err) => format!("(no log: {err})"),
    }
}

/// Returns a TCP port that is currently free and that no process gets unless it requests it: the
/// ports that the kernel assigns, also to outgoing connections, start at 32768 on Linux.
///
/// # Errors
/// Returns an error when no port is free.
pub fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that share a network start at different ports.
    let begin = (std::process::id() % 1_000) as u16 * 10;
    for _ in 0..PORTS.len() {
        let next = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + next % PORTS.len() as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no port from {} to {} is free", PORTS.start, PORTS.end)
}

/// See [`free_port`].
const PORTS: std::ops::Range<u16> = 20_000..30_000;

fn write_pki(dir: &Path, params: &ControlPlaneParams) -> anyhow::Result<Authority> {
    let write = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).with_context(|| format!("could not write pki/{name}"))
    };
    let write_pair = |name: &str, certificate: &str, key: &str| {
        write(&format!("{name}.crt"), certificate).and_then(|()| write(&format!("{name}.key"), key))
    };
    let ca = Authority::new(CA_NAME)?;
    write_pair("ca", &ca.certificate_pem, &ca.private_key_pem)?;
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let ips = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(KUBERNETES_SERVICE_IP), params.address];
    let pair = ca.server("kube-apiserver", &names, &ips)?;
    write_pair("apiserver", &pair.certificate_pem, &pair.private_key_pem)?;
    let front_proxy = Authority::new("front-proxy-ca")?;
    write_pair("front-proxy-ca", &front_proxy.certificate_pem, &front_proxy.private_key_pem)?;
    let pair = front_proxy.client("front-proxy-client", None)?;
    write_pair("front-proxy-client", &pair.certificate_pem, &pair.private_key_pem)?;
    let accounts = KeyPair::generate().context("could not create the service-account key")?;
    write("sa.key", &accounts.serialize_pem())?;
    write("sa.pub", &accounts.public_key_pem())?;
    Ok(ca)
}

const APISERVER_ARGS: [&str; 25] = [
    "--tls-cert-file=pki/apiserver.crt",
    "--tls-private-key-file=pki/apiserver.key",
    "--client-ca-file=pki/ca.crt",
    "--service-account-key-file=pki/sa.pub",
    "--service-account-signing-key-file=pki/sa.key",
    "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
    "--authorization-mode=Node,RBAC",
    "--enable-admission-plugins=NodeRestriction",
    "--allow-privileged=true",
    "--requestheader-client-ca-file=pki/front-proxy-ca.crt",
    "--requestheader-allowed-names=front-proxy-client",
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-uid-headers=X-Remote-Uid",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    "--proxy-client-cert-file=pki/front-proxy-client.crt",
    "--proxy-client-key-file=pki/front-proxy-client.key",
    // The API server connects to the endpoints of aggregated servers directly, because there is no
    // kube-proxy.
    "--enable-aggregator-routing=true",
    "--audit-policy-file=audit-policy.yaml",
    "--audit-log-path=audit.log",
    "--audit-log-format=json",
    "--audit-log-maxsize=1000",
    "--profiling=false",
    "--kubelet-preferred-address-types=InternalIP,Hostname",
    "--shutdown-delay-duration=0s",
];

const CONTROLLER_MANAGER_ARGS: [&str; 16] = [
    "--kubeconfig=kcm.kubeconfig",
    "--authentication-kubeconfig=kcm.kubeconfig",
    "--authorization-kubeconfig=kcm.kubeconfig",
    "--service-account-private-key-file=pki/sa.key",
    "--root-ca-file=pki/ca.crt",
    "--cluster-signing-cert-file=pki/ca.crt",
    "--cluster-signing-key-file=pki/ca.key",
    "--requestheader-client-ca-file=pki/front-proxy-ca.crt",
    "--use-service-account-credentials=true",
    // No kubelet reports. With these two controllers, nodes would be tainted and their pods
    // evicted.
    "--controllers=*,bootstrapsigner,tokencleaner,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller",
    "--bind-address=127.0.0.1",
    "--leader-elect=false",
    "--kube-api-qps=500",
    "--kube-api-burst=1000",
    "--concurrent-deployment-syncs=2",
    "--profiling=false",
];

/// The audit policy; see [`ControlPlane::audit_events`].
pub const AUDIT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/readyz*", "/livez*", "/healthz*"]
- level: RequestResponse
  resources: [{group: authorization.k8s.io}]
- level: Metadata
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ_each_time_and_are_outside_the_ephemeral_range() {
        let ports: std::collections::BTreeSet<u16> = (0..100).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 100);
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }
}
