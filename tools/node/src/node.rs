//! A node as its users see it.

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

/// What a node needs beside the machine's packages.
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
/// How long a node may take to be ready. Usually fifteen seconds; a machine that compiles beside it needs more.
const READY_WITHIN: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(50);

/// How to bring a node up.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// Tells nodes apart that run side by side.
    pub name: String,
    /// The folder of all nodes; `None`: see [`Layout::new`].
    pub state: Option<PathBuf>,
    /// The folder of the node's programs, as `cargo xtask node` makes it; `None`: [`TOOLS_ENV`].
    pub tools: Option<PathBuf>,
    /// Image archives (docker's or OCI's) to import when the node is ready.
    pub images: Vec<PathBuf>,
    /// The program `pinniped-node`; `None`: where cargo builds it.
    pub program: Option<PathBuf>,
    /// Called with every step that is done.
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

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// There is none.
    Absent,
    /// `up` has not come to its end.
    Starting,
    /// All its programs run.
    Running,
    /// It ended by itself, or `up` was broken off; why, as far as is known. `up` repairs, `down` removes.
    Broken(String),
}

/// What can be said of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where its files are.
    pub layout: Layout,
    /// How it is.
    pub health: Health,
    /// The process to signal, or to look at with nsenter(1): process 1 of the node.
    pub init: Option<u32>,
}

/// A running node. Dropping this value leaves the node running.
#[derive(Debug)]
pub struct Node {
    layout: Layout,
    record: Record,
    /// When it was this process that started it: somebody has to wait for it.
    child: Mutex<Option<Child>>,
}

impl Node {
    /// Brings a node up and waits until its first ordinary pod is ready. A node of this name that runs is taken as
    /// it is; what a broken-off `up` left is removed first. When this fails, or is dropped, nothing is left.
    ///
    /// # Errors
    /// When the machine lacks something (see [`crate::missing`]), or a program of the node fails; the end of its log
    /// is part of the message.
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
                (options.report)("it runs already");
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
            (options.report)("removing what a broken-off `up` or a crashed node left");
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

    /// A node that runs.
    ///
    /// # Errors
    /// When it does not, with the command that starts it.
    pub fn attach(name: &str) -> anyhow::Result<Self> {
        Self::attach_in(&Layout::new(name, None)?)
    }

    /// A node that runs, by the place of its files.
    ///
    /// # Errors
    /// As [`Node::attach`].
    pub fn attach_in(layout: &Layout) -> anyhow::Result<Self> {
        let name = layout.name();
        let record = running(layout).with_context(|| {
            format!("node `{name}` does not run: `cargo xtask node up --name {name}` starts it")
        })?;
        Ok(Self { layout: layout.clone(), record, child: Mutex::new(None) })
    }

    /// Where its files are.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The administrator's kubeconfig, on the machine. Its server is reached from inside only: [`Node::enter`].
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// `/etc/kubernetes/pki` of the node, on the machine.
    #[must_use]
    pub fn pki_dir(&self) -> PathBuf {
        self.layout.pki()
    }

    /// The folder of kubectl and the others.
    #[must_use]
    pub fn tools(&self) -> &Path {
        &self.record.tools
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.layout)
    }

    /// A command for a program of the machine that runs in the node's network and resolves names by its cluster DNS;
    /// `KUBECONFIG` is the administrator's and kubectl is in its PATH. It sees the machine's files. It is ended by
    /// [`Node::down`], if not before.
    ///
    /// # Errors
    /// When the node has ended.
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

    /// Runs a future on a thread of its own whose sockets, and those of the threads it starts, are in the node's
    /// network. Names are those of the machine: use addresses, or [`Node::client`].
    ///
    /// # Errors
    /// When the node has ended or no thread can be made.
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
                    .context("could not make a runtime")?;
                Ok(runtime.block_on(make()))
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A client with all rights, for code that runs inside ([`Node::block_on_inside`], or a program of
    /// [`Node::enter`]).
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        client_of(&self.kubeconfig()).await
    }

    /// Imports an image archive for pods with `imagePullPolicy: Never` or `IfNotPresent`.
    ///
    /// # Errors
    /// When the file is missing or is no archive of images.
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

    /// Ends the node and looks whether the machine is as it was.
    ///
    /// # Errors
    /// Names what is left.
    pub async fn down(self) -> anyhow::Result<()> {
        let child = self.child.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let layout = self.layout;
        tokio::task::spawn_blocking(move || down(&layout, child))
            .await
            .context("ending the node panicked")?
            .map(drop)
    }

    /// Ends a node, whatever state it is in. Whether there was one.
    ///
    /// # Errors
    /// Names what is left.
    pub fn remove(layout: &Layout) -> anyhow::Result<bool> {
        if let Some(missing) = prerequisites::missing() {
            anyhow::bail!(missing);
        }
        down(layout, None)
    }

    /// Process 1 of the node.
    fn init(&self) -> anyhow::Result<u32> {
        init_of(&self.record)
            .with_context(|| format!("node `{}` has ended: {}", self.layout.name(), failure(&self.layout)))
    }
}

impl Status {
    /// Of a node that may or may not be there.
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

    /// Of all nodes with a folder in `state`.
    ///
    /// # Errors
    /// When a name or the folder is not usable.
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

/// Takes back a node that did not come up, also when the future is dropped.
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
            Err(error) => eprintln!("could not take back the failed node: {error:#}"),
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
        // A line without its end is still being written.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in complete.lines().skip(seen) {
            seen += 1;
            match line.strip_prefix(FAILED) {
                Some(why) => anyhow::bail!(unescape(why)),
                None if line == READY => return Ok(()),
                None => report(line),
            }
        }
        anyhow::ensure!(alive, "the node ended before it was ready: {}", failure(layout));
        anyhow::ensure!(
            start.elapsed() < READY_WITHIN,
            "the node is not ready after {} s; the last step was: {}",
            READY_WITHIN.as_secs(),
            complete.lines().last().unwrap_or("none")
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// Why a node is not there any more, as far as is known.
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
