//! The node's programs as children of `run`.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use anyhow::Context as _;
use pinniped_test_support::control_plane::tail;
use tokio::process::{Child, Command};

use super::{LOGS, TOOLS};
use crate::prerequisites::PATH;

/// Environment variables that would route requests to a proxy outside the node's network.
const PROXIES: [&str; 8] = [
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// A program that must run as long as the node.
#[derive(Debug)]
pub(super) struct Component {
    pub(super) name: &'static str,
    child: Child,
}

impl Component {
    /// Starts a program from the tools folder or from the system.
    pub(super) fn start(name: &'static str, args: &[String]) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log_file(name))
            .with_context(|| format!("could not create {name}'s log"))?;
        let mut command = command(name);
        command.args(args).stdin(Stdio::null());
        command.stdout(log.try_clone().context("could not share the log")?).stderr(log).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("could not start {name}"))?;
        Ok(Self { name, child })
    }

    /// Waits until the program exits, which is always an error.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => self.died(status),
            Err(error) => anyhow::Error::new(error).context(format!("could not wait for {}", self.name)),
        }
    }

    /// Returns an error if the program has exited.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(self.died(status)),
            _ => Ok(()),
        }
    }

    fn died(&self, status: ExitStatus) -> anyhow::Error {
        anyhow::anyhow!("{} ended ({status}); its log ends:\n{}", self.name, tail(&log_file(self.name), 15))
    }
}

/// Creates a command with the node's PATH and without the machine's proxy variables.
pub(super) fn command(name: &str) -> Command {
    let own = Path::new(TOOLS).join(name);
    let mut command = if own.is_file() { Command::new(own) } else { Command::new(name) };
    command.env("PATH", format!("{TOOLS}:{PATH}")).current_dir("/").env("HOME", "/root");
    for name in PROXIES {
        command.env_remove(name);
    }
    command
}

pub(super) fn log_file(name: &str) -> std::path::PathBuf {
    Path::new(LOGS).join(format!("{name}.log"))
}
