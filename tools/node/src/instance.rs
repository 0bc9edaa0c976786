//! Starts and stops one node, from outside of its namespaces.

use std::convert::Infallible;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::FlockOperation;

use crate::layout::Layout;
use crate::process::{self, Identity};
use crate::record::{self, Record};
use crate::snapshot::{self, Snapshot};
use crate::{cgroups, inside, prerequisites};

/// The line that releases the supervisor once it is on record.
const GO: &[u8] = b"go\n";
/// `f_type` of an overlay (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAY: i128 = 0x794c_7630;

/// The lock for starting or stopping a node. One process holds it at a time; the kernel releases it
/// when the process exits.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    layout: Layout,
}

impl Lock {
    /// Waits for the lock.
    pub(crate) fn take(layout: &Layout) -> anyhow::Result<Self> {
        let state = layout.state();
        let remedy = || {
            format!(
                "could not write to the state folder {}; name a writable one in {} or with --state",
                state.display(),
                crate::STATE_ENV
            )
        };
        let path = layout.lock();
        loop {
            std::fs::create_dir_all(state).with_context(remedy)?;
            let file = match File::options().create(true).truncate(false).write(true).open(&path) {
                // The previous holder has removed the folder in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.with_context(remedy)?,
            };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                eprintln!("another command is using node `{}`, waiting for it ...", layout.name());
                rustix::fs::flock(&file, FlockOperation::LockExclusive)
                    .context("could not wait for the lock")?;
            }
            // The previous holder may have removed the file; a lock on a removed file is
            // ineffective.
            let same = std::fs::metadata(&path)
                .is_ok_and(|now| file.metadata().is_ok_and(|had| had.ino() == now.ino()));
            if same {
                return Ok(Self { file, layout: layout.clone() });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.layout.dir().exists() {
            let _ = std::fs::remove_file(self.layout.lock());
            // The removal fails while another node exists.
            let _ = std::fs::remove_dir(self.layout.state());
        }
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Creates the node's folders and records a snapshot of the machine in them.
pub(crate) fn prepare(layout: &Layout) -> anyhow::Result<()> {
    let before = Snapshot::take();
    let dirs = [layout.logs(), layout.kubernetes(), layout.scratch()];
    let data = ["containerd", "kubelet", "etcd"].map(|name| layout.data(name));
    for dir in dirs.iter().chain(&data) {
        std::fs::create_dir_all(dir).with_context(|| format!("could not create {}", dir.display()))?;
    }
    use std::os::unix::fs::PermissionsExt as _;
    for private in [layout.dir(), layout.data("etcd")] {
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700))
            .with_context(|| format!("could not restrict access to {}", private.display()))?;
    }
    let search = "default.svc.cluster.local svc.cluster.local cluster.local";
    let resolv = format!("nameserver 10.96.0.10\nsearch {search}\noptions ndots:5 timeout:2\n");
    for (file, text) in [(layout.resolv_conf(), resolv), (layout.hosts(), inside::hosts(layout))] {
        std::fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))?;
    }
    record::write(&layout.before(), &before)
}

/// Starts the node's supervisor. It is on record before it acts, so that later processes can find
/// it.
pub(crate) fn start(layout: &Layout, tools: &Path, program: &Path) -> anyhow::Result<(Child, Record)> {
    let marker = Record::new_marker();
    let log = File::create(layout.logs().join("supervisor.log"))
        .context("could not create the supervisor's log")?;
    let mut child = Command::new(program)
        .args(["supervise", "--name", layout.name(), "--marker", &marker])
        .arg("--state")
        .arg(layout.state())
        .arg("--tools")
        .arg(tools)
        .stdin(Stdio::piped())
        .stdout(log.try_clone().context("could not share the log")?)
        .stderr(log)
        .current_dir("/")
        .spawn()
        .with_context(|| format!("could not start {}", program.display()))?;
    let supervisor = Identity::of(child.id()).context("the supervisor exited immediately")?;
    let record = Record { supervisor, marker, tools: tools.to_owned(), ready: false };
    let released = record.write(layout).and_then(|()| {
        let mut stdin = child.stdin.take().context("the supervisor has no standard input")?;
        stdin.write_all(GO).context("could not release the supervisor")
    });
    if let Err(error) = released {
        supervisor.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok((child, record))
}

/// Runs as the supervisor: leaves the caller's session, enters the node's cgroups and executes
/// unshare(1).
///
/// # Errors
/// Returns an error when it was not released, or when one of these steps fails.
pub(crate) fn supervise(layout: &Layout, tools: &Path, marker: &str) -> anyhow::Result<Infallible> {
    let mut line = Vec::new();
    std::io::stdin().take(GO.len() as u64).read_to_end(&mut line).context("could not read standard input")?;
    anyhow::ensure!(line == GO, "not released: the process that started this step has exited");
    rustix::process::setsid().context("could not create a session")?;
    cgroups::create(&layout.cgroup())?;
    cgroups::join(&layout.cgroup())?;
    let own = std::env::current_exe().context("could not find this executable")?;
    let mut command = Command::new(prerequisites::find("unshare").context("`unshare` is missing")?);
    // When unshare is killed, the node is killed too.
    command.args(["--pid", "--fork", "--kill-child=KILL", "--mount", "--net", "--uts", "--ipc", "--"]);
    command.arg(own).args(["init", "--name", layout.name(), "--marker", marker]);
    command.arg("--state").arg(layout.state()).arg("--tools").arg(tools);
    command.stdin(Stdio::null()).env("PATH", prerequisites::PATH);
    Err(command.exec()).context("could not execute `unshare`")
}

/// Stops all processes of a node, and removes its cgroups and files. Returns what remains on the
/// machine.
pub(crate) fn end(layout: &Layout, child: Option<&mut Child>) -> anyhow::Result<Vec<String>> {
    // If the record is incomplete, its supervisor was never released.
    let record = Record::read(layout).ok().flatten();
    let before = record::read::<Snapshot>(&layout.before()).ok().flatten();
    if let Some(supervisor) = record.as_ref().map(|record| record.supervisor).filter(|s| s.alive()) {
        for init in process::children(supervisor.pid) {
            process::kill(init);
        }
        supervisor.kill();
    }
    // All processes of the PID namespace exit with its first one. The remaining ones entered the
    // network from outside, or were started without reaching the namespace.
    process::wait_until(Duration::from_secs(20), || {
        let left = snapshot::processes(layout, record.as_ref());
        left.iter().for_each(|pid| process::kill(*pid));
        left.is_empty()
    });
    if let Some(child) = child {
        let _ = child.wait();
    }
    cgroups::remove(&layout.cgroup());
    let mut left: Vec<String> = snapshot::processes(layout, record.as_ref())
        .into_iter()
        .map(|pid| format!("process {}", process::describe(pid)))
        .collect();
    let dir = layout.dir();
    if mounted_below(&dir) {
        left.push(format!("mounts below {}", dir.display()));
    } else if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("could not remove {}", dir.display()))?;
    }
    if let Some(before) = before {
        left.extend(before.left(&Snapshot::take_after(), layout));
    } else {
        left.extend(
            cgroups::exists(&layout.cgroup()).into_iter().map(|dir| format!("cgroup {}", dir.display())),
        );
    }
    Ok(left)
}

fn mounted_below(dir: &Path) -> bool {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(1)).any(|at| Path::new(at).starts_with(dir))
}

/// Whether a folder is on an overlay, on which containers cannot use another overlay.
pub(crate) fn on_overlay(dir: &Path) -> anyhow::Result<bool> {
    let found = rustix::fs::statfs(dir)
        .with_context(|| format!("could not read the file system of {}", dir.display()))?;
    Ok(i128::from(found.f_type) == OVERLAY)
}
