//! The public interface of a node.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_test_support::control_plane::{client_of, tail};
use pinniped_test_support::tools;
use rustix::thread::LinkNameSpaceType;
use tokio::process::Command;

use crate::inside::{CONTAINERD_SOCKET, FAILED, READY};
use crate::instance::{self, Lock};
use crate::layout::{DEFAULT_NAME, Layout, TOOLS_ENV};
use crate::record::Record;
use crate::{prerequisites, process};

/// The programs that a node needs besides the machine's packages.
const TOOLS: [&str; 9] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
    "coredns",
    "pause",
];
/// Time limit until a node is ready. It usually takes fifteen seconds; a machine that compiles at
/// the same time needs more.
const READY_WITHIN: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(50);

/// Parameters of a new node.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The name, which distinguishes concurrent nodes.
    pub name: String,
    /// The folder of all nodes; `None` selects the default of [`Layout::new`].
    pub state: Option<PathBuf>,
    /// The folder of the node's programs, as created by `cargo xtask node`; `None` selects
    /// [`TOOLS_ENV`].
    pub tools: Option<PathBuf>,
    /// Image archives (in Docker's or OCI's format) to import when the node is ready.
    pub images: Vec<PathBuf>,
    /// The path of the program `pinniped-node`; `None` selects cargo's output.
    pub program: Option<PathBuf>,
    /// A function that is called with every completed step.
    pub report: fn(&str),
}

impl Default for UpOptions {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            state: None,
            tools: None,
            images: Vec::new(),
            program: None,
            report: |_| {},
        }
    }
}

/// The health of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The node does not exist.
    Absent,
    /// `up` has not finished.
    Starting,
    /// All its programs are running.
    Running,
    /// The node terminated unexpectedly, or `up` was interrupted. Contains the reason as far as it
    /// is known. `up` repairs the node, `down` removes it.
    Broken(String),
}

/// The observed state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The locations of its files.
    pub layout: Layout,
    /// Its health.
    pub health: Health,
    /// Process 1 of the node, which accepts signals and is a target for nsenter(1).
    pub init: Option<u32>,
}

/// A running node. Dropping this value leaves the node running.
#[derive(Debug)]
pub struct Node {
    layout: Layout,
    record: Record,
    /// The child process if this process started it and must reap it.
    child: Mutex<Option<Child>>,
}

impl Node {
    /// Starts a node and waits until its first ordinary pod is ready. A running node with this name
    /// is reused; the remains of an interrupted `up` are removed first. If this function fails, or
    /// its future is dropped, it removes everything.
    ///
    /// # Errors
    /// Returns an error when the machine lacks a prerequisite (see [`crate::missing`]), or when a
    /// program of the node fails; the message contains the end of its log.
    pub async fn up(options: UpOptions) -> anyhow::Result<Self> {
        let layout = Layout::new(&options.name, options.state.as_deref())?;
        if let Some(missing) = prerequisites::missing() {
            anyhow::bail!(missing);
        }
        let tools = usable_tools(options.tools.as_deref())?;
        for image in &options.images {
            anyhow::ensure!(image.is_file(), "there is no image archive {}", image.display());
        }
        let lock = Lock::take(&layout)?;
        let node = match running(&layout) {
            Some(record) => {
                (options.report)("it is already running");
                Self { layout, record, child: Mutex::new(None) }
            }
            None => Self::start(layout, &tools, &options).await?,
        };
        for image in &options.images {
            node.import_image(image).await?;
            (options.report)(&format!("image {}", image.display()));
        }
        drop(lock);
        Ok(node)
    }

    async fn start(layout: Layout, tools: &Path, options: &UpOptions) -> anyhow::Result<Self> {
        if layout.dir().exists() {
            (options.report)("removing the remains of an interrupted `up` or a crashed node");
            let left = instance::end(&layout, None)?;
            anyhow::ensure!(left.is_empty(), "could not remove: {}", left.join(", "));
        }
        let program = match &options.program {
            Some(program) => program.clone(),
            None => tools::binary("pinniped-node")?,
        };
        let mut undo = Undo { layout: &layout, child: None, armed: true };
        instance::prepare(&layout)?;
        let (child, mut record) = instance::start(&layout, tools, &program)?;
        undo.child = Some(child);
        await_ready(&layout, &record, options.report).await?;
        record.ready = true;
        record.write(&layout)?;
        undo.armed = false;
        let child = Mutex::new(undo.child.take());
        drop(undo);
        Ok(Self { layout, record, child })
    }

    /// Returns a running node.
    ///
    /// # Errors
    /// Returns an error with the command that starts the node when it is not running.
    pub fn attach(name: &str) -> anyhow::Result<Self> {
        Self::attach_in(&Layout::new(name, None)?)
    }

    /// Returns a running node, given by the location of its files.
    ///
    /// # Errors
    /// As [`Node::attach`].
    pub fn attach_in(layout: &Layout) -> anyhow::Result<Self> {
        let name = layout.name();
        let record = running(layout).with_context(|| {
            format!("node `{name}` is not running: start it with `cargo xtask node up --name {name}`")
        })?;
        Ok(Self { layout: layout.clone(), record, child: Mutex::new(None) })
    }

    /// The locations of its files.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The path of the administrator's kubeconfig on the machine. Its server is reachable only from
    /// inside: [`Node::enter`].
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// `/etc/kubernetes/pki` of the node, on the machine.
    #[must_use]
    pub fn pki_dir(&self) -> PathBuf {
        self.layout.pki()
    }

    /// The folder with kubectl and the other programs.
    #[must_use]
    pub fn tools(&self) -> &Path {
        &self.record.tools
    }

    /// Returns its current state.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.layout)
    }

    /// Returns a command for a program of the machine that runs in the node's network and resolves
    /// names with its cluster DNS; `KUBECONFIG` is the administrator's and kubectl is in its PATH.
    /// The program can access the machine's files. [`Node::down`] terminates it at the latest.
    ///
    /// # Errors
    /// Returns an error when the node has terminated.
    pub fn enter(&self, program: impl AsRef<OsStr>) -> anyhow::Result<Command> {
        let init = self.init()?;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{init}/ns/net"))
            .args(["--", "unshare", "--mount", "--", "sh", "-c"]);
        command.arg(
            r#"mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/hosts && shift 2 && exec "$@""#,
        );
        command.arg("sh").arg(self.layout.resolv_conf()).arg(self.layout.hosts()).arg(program.as_ref());
        let mut path = self.record.tools.clone().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_else(|| prerequisites::PATH.into()));
        path.push(":");
        path.push(prerequisites::PATH);
        command.env("PATH", path).env("KUBECONFIG", self.kubeconfig());
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(name);
        }
        Ok(command)
    }

    /// Runs a future on a new thread whose sockets, and those of the threads it starts, are in the
    /// node's network. Name resolution is the machine's: use addresses, or [`Node::client`].
    ///
    /// # Errors
    /// Returns an error when the node has terminated or no thread can be created.
    pub fn block_on_inside<T: Send, F: Future<Output = T>>(
        &self,
        make: impl FnOnce() -> F + Send,
    ) -> anyhow::Result<T> {
        let network = std::fs::File::open(format!("/proc/{}/ns/net", self.init()?))
            .context("could not open the node's network")?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                use std::os::fd::AsFd as _;
                rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("could not enter the node's network")?;
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .context("could not create a runtime")?;
                Ok(runtime.block_on(make()))
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Creates a client with all permissions, for code that runs inside ([`Node::block_on_inside`],
    /// or a program of [`Node::enter`]).
    ///
    /// # Errors
    /// Returns an error when the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        client_of(&self.kubeconfig()).await
    }

    /// Imports an image archive for pods with `imagePullPolicy: Never` or `IfNotPresent`.
    ///
    /// # Errors
    /// Returns an error when the file is missing or is not an archive of images.
    pub async fn import_image(&self, archive: &Path) -> anyhow::Result<()> {
        anyhow::ensure!(archive.is_file(), "there is no image archive {}", archive.display());
        let socket = format!("/proc/{}/root{CONTAINERD_SOCKET}", self.init()?);
        let mut command = Command::new("ctr");
        command.args(["--address", &socket, "--namespace", "k8s.io", "images", "import"]).arg(archive);
        let output =
            command.env("PATH", prerequisites::PATH).output().await.context("could not run `ctr`")?;
        anyhow::ensure!(
            output.status.success(),
            "could not import {}: {}",
            archive.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// Stops the node and checks that the machine is unchanged.
    ///
    /// # Errors
    /// Returns an error that lists what remains.
    pub async fn down(self) -> anyhow::Result<()> {
        let child = self.child.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let layout = self.layout;
        tokio::task::spawn_blocking(move || down(&layout, child))
            .await
            .context("stopping the node panicked")?
            .map(drop)
    }

    /// Stops a node in any state. Returns whether it existed.
    ///
    /// # Errors
    /// Returns an error that lists what remains.
    pub fn remove(layout: &Layout) -> anyhow::Result<bool> {
        if let Some(missing) = prerequisites::missing() {
            anyhow::bail!(missing);
        }
        down(layout, None)
    }

    /// Returns the process id of process 1 of the node.
    fn init(&self) -> anyhow::Result<u32> {
        init_of(&self.record)
            .with_context(|| format!("node `{}` has ended: {}", self.layout.name(), failure(&self.layout)))
    }
}

impl Status {
    /// Returns the state of a node, which need not exist.
    #[must_use]
    pub fn of(layout: &Layout) -> Self {
        let record = Record::read(layout).ok().flatten();
        let init = record.as_ref().and_then(init_of);
        let health = match (&record, init) {
            _ if !layout.dir().exists() => Health::Absent,
            (Some(record), Some(_)) if record.ready => Health::Running,
            (Some(_), Some(_)) => Health::Starting,
            _ => Health::Broken(failure(layout)),
        };
        Self { layout: layout.clone(), health, init }
    }

    /// Returns the states of all nodes with a folder in `state`.
    ///
    /// # Errors
    /// Returns an error when a name or the folder is unusable.
    pub fn all(state: Option<&Path>) -> anyhow::Result<Vec<Self>> {
        let state = Layout::new(DEFAULT_NAME, state)?.state().to_owned();
        let entries = std::fs::read_dir(&state).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut names: Vec<String> =
            folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names.iter().map(|name| Ok(Self::of(&Layout::new(name, Some(&state))?))).collect()
    }
}

/// Removes a node whose start failed, also when the future is dropped.
struct Undo<'a> {
    layout: &'a Layout,
    child: Option<Child>,
    armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        match instance::end(self.layout, self.child.as_mut()) {
            Ok(left) if left.is_empty() => {}
            Ok(left) => eprintln!("left by the failed node: {}", left.join(", ")),
            Err(error) => eprintln!("could not remove the failed node: {error:#}"),
        }
    }
}

fn down(layout: &Layout, mut child: Option<Child>) -> anyhow::Result<bool> {
    if !layout.dir().exists() {
        return Ok(false);
    }
    let lock = Lock::take(layout)?;
    let left = instance::end(layout, child.as_mut())?;
    drop(lock);
    anyhow::ensure!(
        left.is_empty(),
        "node `{}` is down, but this is left on the machine that was not there before `up`: {}",
        layout.name(),
        left.join(", ")
    );
    Ok(true)
}

fn running(layout: &Layout) -> Option<Record> {
    let record = Record::read(layout).ok().flatten()?;
    (record.ready && init_of(&record).is_some()).then_some(record)
}

fn init_of(record: &Record) -> Option<u32> {
    if !record.supervisor.alive() {
        return None;
    }
    process::children(record.supervisor.pid).first().copied()
}

fn usable_tools(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let from_env = || std::env::var_os(TOOLS_ENV).map(PathBuf::from);
    let dir = named.map(Path::to_owned).or_else(from_env).with_context(|| {
        format!("the node's programs are not known: use `cargo xtask node up`, or name their folder in {TOOLS_ENV}")
    })?;
    let dir = std::path::absolute(&dir).context("the folder of programs has no absolute path")?;
    let missing: Vec<&str> = TOOLS.into_iter().filter(|tool| !dir.join(tool).is_file()).collect();
    anyhow::ensure!(
        missing.is_empty(),
        "{} has no {}: use `cargo xtask node up`, which makes it complete",
        dir.display(),
        missing.join(", ")
    );
    Ok(dir)
}

async fn await_ready(layout: &Layout, record: &Record, report: fn(&str)) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut seen = 0;
    loop {
        let alive = record.supervisor.alive();
        let text = std::fs::read_to_string(layout.progress()).unwrap_or_default();
        // A line without a line feed is still being written.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in complete.lines().skip(seen) {
            seen += 1;
            match line.strip_prefix(FAILED) {
                Some(why) => anyhow::bail!(unescape(why)),
                None if line == READY => return Ok(()),
                None => report(line),
            }
        }
        anyhow::ensure!(alive, "the node terminated before it was ready: {}", failure(layout));
        anyhow::ensure!(
            start.elapsed() < READY_WITHIN,
            "the node is not ready after {} s; the last step was: {}",
            READY_WITHIN.as_secs(),
            complete.lines().last().unwrap_or("none")
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns why a node no longer exists, as far as it is known.
fn failure(layout: &Layout) -> String {
    let text = std::fs::read_to_string(layout.progress()).unwrap_or_default();
    match text.lines().find_map(|line| line.strip_prefix(FAILED)) {
        Some(why) => unescape(why),
        None => {
            let log = tail(&layout.logs().join("supervisor.log"), 5);
            if log.is_empty() {
                "it was killed from outside, or the machine was restarted".to_owned()
            } else {
                log
            }
        }
    }
}

fn unescape(line: &str) -> String {
    line.replace("\\n", "\n")
}
