//! `cargo xtask demo`: prepares and runs the demo program, in a separate world or on a node.

use std::io::{BufRead as _, BufReader, IoSlice, IsTerminal as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;

use anyhow::Context as _;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::control_plane::{
    KubernetesRelease, contour, envoy, keycloak, oidc_provider, prometheus, prometheus_ui,
};
use crate::test::{CERT_MANAGER_ENV, YQ_ENV};
use crate::{cargo, control_plane, disk, image, node};

/// The maximum number of listeners for programs outside of the demo.
const MOST_LISTENERS: usize = 3;

/// Flags of `demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The strategy of the login: `impersonation-proxy`, as in the release post, or
    /// `service-account-token`.
    #[arg(long, value_name = "STRATEGY", default_value = "impersonation-proxy",
        value_parser = ["impersonation-proxy", "service-account-token"])]
    strategy: String,
    /// Run pods instead of processes: on the node that `cargo xtask node up` started, or on a
    /// temporary node.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = node::DEFAULT)]
    node: Option<String>,
    /// Use a real cert-manager to issue the proxy's certificate, as in the release post. It is
    /// built once, which takes minutes.
    #[arg(long)]
    with_cert_manager: bool,
    /// Show the whole release post: our gateway in front of the proxy, and a real cert-manager.
    /// Runs on a node if the machine supports it, otherwise as processes.
    #[arg(long, conflicts_with_all = ["with_contour", "strategy"])]
    with_gateway: bool,
    /// Show the same with a real Contour and Envoy instead of our gateway. They are built and
    /// downloaded once (minutes, 37 MB).
    #[arg(long, conflicts_with = "strategy")]
    with_contour: bool,
    /// Log in at a real identity provider in a headless Chromium, or with --keep in your own
    /// browser. The provider is fetched once (Keycloak: 165 MB, a minute of preparation). Runs
    /// processes.
    #[arg(long, conflicts_with_all = ["with_cert_manager", "with_gateway", "with_contour", "strategy", "node"])]
    with_oidc: bool,
    /// The identity provider: `keycloak`, which needs Java 17, or `oidc-provider`, which needs
    /// Node.js 20.
    #[arg(long, value_name = "PROVIDER", default_value = "keycloak", requires = "with_oidc",
        value_parser = ["keycloak", "oidc-provider"])]
    provider: String,
    /// Start a real Prometheus that reads the metrics, and print the queries of the dashboard with
    /// their values. It is built once, which takes minutes; its pages need Node.js 20. Runs
    /// processes.
    #[arg(long, conflicts_with_all = ["node", "with_oidc", "strategy"])]
    observe: bool,
    /// Leave everything running at the end, and print how to use it: processes until Ctrl-C, pods
    /// until the next demo.
    #[arg(long)]
    keep: bool,
    /// Install into the existing cluster of this administrator's kubeconfig, log in, and print how
    /// to remove everything.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["strategy", "node", "with_cert_manager",
        "with_gateway", "with_contour", "with_oidc", "observe", "keep"])]
    kubeconfig: Option<PathBuf>,
    /// The image for the existing cluster: in a registry, or on its nodes.
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    image_name: Option<String>,
    /// Change the existing cluster without a question.
    #[arg(long, requires = "kubeconfig")]
    yes: bool,
    /// Download the published programs of etcd and Kubernetes if they are missing, instead of
    /// building them with Go. Cannot be combined with options that build other programs with Go.
    #[arg(long, conflicts_with_all = ["node", "with_cert_manager", "with_gateway", "with_contour",
        "observe", "kubeconfig"])]
    download: bool,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

/// A build by cargo in the background, whose lines are printed. Dropping it terminates cargo.
struct Build {
    child: Child,
    printer: Option<JoinHandle<()>>,
}

impl Build {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        // Cargo's own progress bar and that of the other build would overwrite each other.
        command.env("CARGO_TERM_PROGRESS_WHEN", "never").stderr(Stdio::piped());
        let terminal = std::io::stderr().is_terminal();
        if terminal {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let mut child = command.spawn().context("could not start cargo")?;
        let stderr = child.stderr.take().context("cargo has no standard error")?;
        let printer = std::thread::spawn(move || {
            // Erases the changing line of the other build.
            let clear = if terminal { "\r\x1b[K" } else { "" };
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("{clear}{line}");
            }
        });
        Ok(Self { child, printer: Some(printer) })
    }

    /// Waits until the build has finished, which must succeed.
    fn finish(mut self) -> anyhow::Result<()> {
        let status = self.child.wait().context("could not wait for cargo")?;
        if let Some(printer) = self.printer.take() {
            let _ = printer.join();
        }
        anyhow::ensure!(status.success(), "building the programs failed ({status})");
        Ok(())
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        // Both have no effect on a process that has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    disk::note_when_short();
    let ingress = args.with_gateway || args.with_contour;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--bins"]);
    for package in cargo::IMAGE_PACKAGES.iter().chain(&["pinniped-cli", "pinniped-node", "pinniped-e2e"]) {
        build.args(["--package", package]);
    }
    eprintln!("building the programs (several minutes on a new machine, seconds later) ...");
    // Concurrently: neither Go nor cargo keeps all processors busy all the time.
    let build = Build::start(build)?;
    if let Some(kubeconfig) = &args.kubeconfig {
        build.finish()?;
        return Err(existing_cluster(args, kubeconfig)?);
    }
    let tools = if args.download {
        control_plane::find_or_download(args.offline)?
    } else {
        control_plane::find_or_build(args.offline).context(
            "no control plane (with --download, published programs are downloaded instead of built)",
        )?
    };
    let certificates = if args.with_cert_manager || ingress {
        let cert_manager = control_plane::cert_manager::find_or_build(args.offline)?;
        Some((cert_manager, control_plane::yq::find_or_build(args.offline)?))
    } else {
        None
    };
    let contour = if args.with_contour {
        let envoy = envoy::find_or_fetch(args.offline)?;
        Some((contour::find_or_build(args.offline)?, envoy))
    } else {
        None
    };
    let provider = match args.provider.as_str() {
        _ if !args.with_oidc => None,
        "keycloak" => Some((keycloak::ENV, keycloak::find_or_fetch(args.offline)?)),
        _ => Some((oidc_provider::ENV, oidc_provider::find_or_fetch(args.offline)?)),
    };
    let prometheus = args.observe.then(|| prometheus::find_or_build(args.offline)).transpose()?;
    let pages = args.observe.then(|| prometheus_ui::find_or_build(args.offline));
    build.finish()?;
    let bins = cargo::target_dir()?.join("debug");
    let demo = bins.join("pinniped-demo");
    let mut name = args.node.as_deref();
    if ingress && name.is_none() && !args.observe {
        match node::impossible(&bins.join("pinniped-node")) {
            None => name = Some(node::DEFAULT),
            Some(why) => eprintln!("note: this demo runs processes instead of pods on a node: {why}"),
        }
    }
    let mut command = match name {
        None => cargo::in_world(&demo),
        Some(name) => {
            let built = image::of_dev_profile().context("could not create the image")?;
            let mut command = Command::new(demo);
            command.args(["--node", name]).arg("--image").arg(built.path);
            if !node::runs(&bins.join("pinniped-node"), name) {
                let tools =
                    control_plane::node_tools::find_or_build(KubernetesRelease::default(), args.offline)?;
                command.arg("--node-tools").arg(tools);
            }
            command
        }
    };
    if let Some((cert_manager, yq)) = certificates {
        command.arg("--with-cert-manager").env(CERT_MANAGER_ENV, cert_manager).env(YQ_ENV, yq);
    }
    if args.with_gateway {
        command.arg("--with-gateway");
    }
    if let Some((contour, envoy)) = contour {
        command.arg("--with-contour").env(contour::ENV, contour).env(envoy::ENV, envoy);
    }
    if let Some((name, dir)) = provider {
        command.args(["--with-oidc", "--provider", &args.provider]).env(name, dir);
    }
    if let Some(dir) = prometheus {
        command.arg("--observe").env(prometheus::ENV, dir);
    }
    match pages {
        Some(Ok(dir)) => _ = command.env(prometheus_ui::ENV, dir),
        Some(Err(error)) => eprintln!("note: Prometheus runs without its pages: {error:#}"),
        None => {}
    }
    let for_browser = if args.with_oidc && args.keep { 2 } else { 0 };
    let listeners = for_browser + usize::from(args.observe);
    if listeners > 0 {
        command.stdin(self::listeners(listeners)?);
    }
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    command.args(["--strategy", &args.strategy]);
    if args.keep {
        command.arg("--keep");
    }
    Err(cargo::become_program(&mut command))
}

/// Runs the demo in an existing cluster. Returns only on an error.
fn existing_cluster(args: &Args, kubeconfig: &Path) -> anyhow::Result<anyhow::Error> {
    let bins = cargo::target_dir()?.join("debug");
    let mut command = Command::new(bins.join("pinniped-demo"));
    command.arg("--kubeconfig").arg(kubeconfig).env("PINNIPED_BIN_DIR", &bins);
    if let Some(name) = &args.image_name {
        command.args(["--image-name", name]);
    }
    if args.yes {
        command.arg("--yes");
    }
    Ok(cargo::become_program(&mut command))
}

/// Creates listeners on the machine's loopback interface: for the provider and for `pinniped`, and
/// for Prometheus. Returns the socket from which the demo receives them: the user's own browser is
/// not in the network namespace that the demo enters.
fn listeners(count: usize) -> anyhow::Result<Stdio> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("could not listen on loopback");
    let listeners = (0..count).map(|_| bind()).collect::<anyhow::Result<Vec<_>>>()?;
    let (sender, receiver) = UnixStream::pair().context("could not create a socket")?;
    let descriptors: Vec<_> = listeners.iter().map(|listener| listener.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_LISTENERS))];
    let mut buffer = SendAncillaryBuffer::new(&mut space);
    anyhow::ensure!(
        buffer.push(SendAncillaryMessage::ScmRights(&descriptors)),
        "{count} listeners do not fit"
    );
    sendmsg(&sender, &[IoSlice::new(&[0])], &mut buffer, SendFlags::empty())
        .context("could not send the listeners")?;
    Ok(Stdio::from(OwnedFd::from(receiver)))
}
