//! Process 1 of the node: creates file systems and network, starts `run`, and reaps orphaned
//! processes.
//!
//! It is separate from `run`, because waiting for any child would consume the exit status of
//! children for which other code waits.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use super::{mounts, network, progress::Progress};
use crate::layout::Layout;

/// Runs until `run` exits. When this process exits, the kernel kills all others of the namespace.
///
/// # Errors
/// Returns an error when the file systems or the network cannot be created, or when `run` failed.
pub(crate) fn init(layout: &Layout, tools: &Path, marker: &str) -> anyhow::Result<()> {
    anyhow::ensure!(std::process::id() == 1, "this step must run in a PID namespace of its own");
    let progress = Progress::append(&layout.progress())?;
    let child = prepare(layout, tools, marker, &progress);
    match child.and_then(reap_until) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => anyhow::bail!("`run` ended ({status})"),
        Err(error) => {
            progress.failed(&error);
            Err(error)
        }
    }
}

fn prepare(layout: &Layout, tools: &Path, marker: &str, progress: &Progress) -> anyhow::Result<Pid> {
    mounts::enter(layout, tools)?;
    progress.step("root file system: an overlay over the machine's own");
    rustix::system::sethostname(layout.node_name().as_bytes()).context("could not set the host name")?;
    network::set_up(marker)?;
    progress.step("network: eth0 with 10.123.0.1, no external access");
    let mut command = Command::new("/proc/self/exe");
    command.args(["run", "--name", layout.name()]).arg("--state").arg(layout.state());
    let child = command.spawn().context("could not start `run`")?;
    Ok(Pid::from_child(&child))
}

fn reap_until(child: Pid) -> anyhow::Result<ExitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("could not wait for `run`"),
        }
    }
}
