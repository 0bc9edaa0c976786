//! Runs a real Contour and its Envoy in place of our gateway: two programs next to the API server.
//!
//! ```text
//! contour        as an administrator: reads objects, writes statuses, configures Envoy (loopback)
//! envoy          listens on 127.0.0.1, ports 80 and 443, as in the release post's kind cluster
//! ```
//!
//! The release post installs 1.25.2 in pods; for its objects 1.33 behaves the same.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::wait;
use serde_json::json;

use crate::environment::{Environment, Running, Step};
use crate::third_party::{MADE_BY_WALK, define, kubectl, refuse_another};

/// Environment variable with the folder of Contour and its definitions; `cargo xtask test` and
/// `cargo xtask demo --with-contour` set it.
pub const CONTOUR_ENV: &str = "PINNIPED_CONTOUR";
/// Environment variable with the folder of Envoy; the same commands set it.
pub const ENVOY_ENV: &str = "PINNIPED_ENVOY";
/// Contour's namespace.
const NAMESPACE: &str = "projectcontour";
/// A definition that every Contour, and our gateway, installs.
pub(crate) const HTTP_PROXIES: &str = "customresourcedefinition/httpproxies.projectcontour.io";
/// The address of Envoy's listeners.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The locations of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Folder of `contour` and `crds.yaml`.
    contour: PathBuf,
    /// Folder of `envoy`.
    envoy: PathBuf,
}

impl Programs {
    /// Returns both locations if both are set.
    #[must_use]
    pub fn find() -> Option<Self> {
        let folder = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        Some(Self { contour: folder(CONTOUR_ENV)?, envoy: folder(ENVOY_ENV)? })
    }
}

/// A running Contour.
#[derive(Debug)]
pub struct Contour {
    _programs: [Running; 2],
}

impl Contour {
    /// The address of Envoy's listeners.
    pub const ADDRESS: IpAddr = ADDRESS;

    /// Installs the definitions, starts both programs and waits until Envoy has its configuration
    /// from Contour.
    ///
    /// # Errors
    /// Returns an error that contains the end of the logs when a program is missing or does not
    /// work in time, and an error when the cluster already has the kinds of another Contour.
    pub async fn start(environment: &dyn Environment, programs: &Programs) -> anyhow::Result<Self> {
        for object in [HTTP_PROXIES, &format!("namespace/{NAMESPACE}")] {
            refuse_another(environment, object, "--with-contour").await?;
        }
        define(environment, &programs.contour.join("crds.yaml")).await?;
        let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {key: value}}});
        kubectl(environment, &["apply", "--filename", "-"], Some(&namespace.to_string())).await?;

        let dir = environment.dir().join("contour");
        std::fs::create_dir_all(&dir).context("could not create a folder for Contour")?;
        let ports = Ports::free()?;
        let contour = programs.contour.join("contour");
        anyhow::ensure!(contour.is_file(), "{} is missing: run `cargo xtask test`", contour.display());
        let envoy = programs.envoy.join("envoy");
        anyhow::ensure!(envoy.is_file(), "{} is missing: run `cargo xtask test`", envoy.display());
        bootstrap(environment, &contour, &dir, &ports).await?;
        let mut serve = Command::new(contour);
        serve
            .args(serve_flags(&ports))
            .arg("--kubeconfig")
            .arg(environment.admin_kubeconfig())
            .current_dir(&dir);
        let contour = environment.start("contour", serve)?;
        let mut proxy = Command::new(envoy);
        proxy.args([
            "--config-path",
            "envoy.json",
            "--service-cluster",
            NAMESPACE,
            "--service-node",
            "envoy",
        ]);
        proxy
            .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"])
            .current_dir(&dir);
        let envoy = environment.start("envoy", proxy)?;
        await_ready(environment, &ports).await?;
        Ok(Self { _programs: [contour, envoy] })
    }
}

/// Ports of Contour, and of Envoy's statistics, all on loopback.
struct Ports {
    xds: u16,
    metrics: u16,
    health: u16,
    statistics: u16,
}

impl Ports {
    fn free() -> anyhow::Result<Self> {
        Ok(Self { xds: free_port()?, metrics: free_port()?, health: free_port()?, statistics: free_port()? })
    }
}

/// Lets Contour write Envoy's bootstrap configuration, which contains the address of Contour's xDS
/// server.
async fn bootstrap(
    environment: &dyn Environment,
    contour: &Path,
    dir: &Path,
    ports: &Ports,
) -> anyhow::Result<()> {
    let mut command = Command::new(contour);
    command.args(["bootstrap", "envoy.json", "--xds-address=127.0.0.1"]).current_dir(dir);
    command.arg(format!("--xds-port={}", ports.xds));
    // A Unix domain socket.
    command.arg("--admin-address").arg(dir.join("admin.sock"));
    Step::inside(environment, command).run(None).await?.success().map(drop)
}

fn serve_flags(ports: &Ports) -> Vec<String> {
    let Ports { xds, metrics, health, statistics } = ports;
    vec![
        "serve".to_owned(),
        // Both programs are on the loopback interface of this machine.
        "--insecure".to_owned(),
        format!("--xds-address={ADDRESS}"),
        format!("--xds-port={xds}"),
        // There is one replica.
        "--disable-leader-election".to_owned(),
        format!("--http-address={ADDRESS}"),
        format!("--http-port={metrics}"),
        format!("--health-address={ADDRESS}"),
        format!("--health-port={health}"),
        format!("--stats-address={ADDRESS}"),
        format!("--stats-port={statistics}"),
        format!("--envoy-service-http-address={ADDRESS}"),
        "--envoy-service-http-port=80".to_owned(),
        format!("--envoy-service-https-address={ADDRESS}"),
        "--envoy-service-https-port=443".to_owned(),
    ]
}

/// Waits for Envoy's listener for statistics, which is part of Contour's configuration.
async fn await_ready(environment: &dyn Environment, ports: &Ports) -> anyhow::Result<()> {
    let server = format!("http://{ADDRESS}:{}", ports.statistics);
    let args = ["get", "--raw", "/ready", "--server", &server, "--kubeconfig", "/dev/null"];
    wait::until_ok(TIME_LIMIT, "Envoy to be ready", async || kubectl(environment, &args, None).await)
        .await
        .map(drop)
        .map_err(|error| error.context(log_tails(environment)))
}

/// Returns the end of both logs, for messages.
pub(crate) fn log_tails(environment: &dyn Environment) -> String {
    ["contour", "envoy"].map(|name| format!("\n{name}'s log ends:\n{}", environment.log_tail(name))).concat()
}
