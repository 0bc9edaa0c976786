//! A node with pods. Each command is moved into its network separately.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use pinniped_node::{Node, PAUSE};
use pinniped_test_support::audit_log;
use pinniped_test_support::kubectl::Kubectl;

use super::{Environment, Running, log_file};

/// The environment of a walk on a node.
#[derive(Debug)]
pub struct OnNode<'n> {
    node: &'n Node,
    dir: PathBuf,
}

impl<'n> OnNode<'n> {
    /// Creates the environment with a folder for the files of the walk.
    #[must_use]
    pub fn new(node: &'n Node, dir: &Path) -> Self {
        Self { node, dir: dir.to_owned() }
    }
}

impl Environment for OnNode<'_> {
    fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.node.tools().join("kubectl"), &self.node.kubeconfig())
    }

    fn admin_kubeconfig(&self) -> PathBuf {
        self.node.kubeconfig()
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    fn enter(&self, command: Command) -> anyhow::Result<tokio::process::Command> {
        let mut entered = self.node.enter(command.get_program())?;
        entered.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entered.env(name, value),
                None => entered.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            entered.current_dir(dir);
        }
        // Discovery caches belong to the walk, not to the node.
        entered.env("KUBECACHEDIR", self.dir.join("kubectl-cache"));
        Ok(entered)
    }

    fn start(&self, name: &str, command: Command) -> anyhow::Result<Running> {
        let file = log_file(&self.dir, name);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).context("could not create a folder for logs")?;
        }
        let log = File::options().create(true).append(true).open(&file);
        let log = log.with_context(|| format!("could not open {}", file.display()))?;
        let mut entered = self.enter(command)?;
        entered.stdin(Stdio::null()).stdout(log.try_clone().context("could not share the log")?).stderr(log);
        // In its own process group, out of reach of the terminal's Ctrl-C: the program is needed
        // while the walk cleans up.
        entered.kill_on_drop(true).process_group(0);
        let child = entered.spawn().with_context(|| format!("could not start {name}"))?;
        Ok(Running::Child(child))
    }

    fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        self.node.set_host(name, ip)
    }

    fn audit_events(&self, text: &str) -> anyhow::Result<Vec<serde_json::Value>> {
        audit_log::events(&self.node.layout().logs().join("audit.log"), text)
    }

    fn idle_image(&self) -> Option<String> {
        Some(PAUSE.to_owned())
    }
}
