//! An existing cluster, in the network of the machine, with the user's own kubectl and home.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinniped_test_support::kubectl::Kubectl;

use super::{Environment, Running};

/// The environment of a walk on a cluster that is not the demo's own.
#[derive(Debug)]
pub struct ExistingCluster {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    dir: PathBuf,
}

impl ExistingCluster {
    /// Creates the environment from a kubectl, the kubeconfig of an administrator, and a folder for
    /// the files of the walk.
    #[must_use]
    pub fn new(kubectl: &Path, kubeconfig: &Path, dir: &Path) -> Self {
        Self { kubectl: kubectl.to_owned(), kubeconfig: kubeconfig.to_owned(), dir: dir.to_owned() }
    }
}

impl Environment for ExistingCluster {
    fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubectl, &self.kubeconfig)
    }

    fn admin_kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    // The credential plugins of an administrator read files of the user.
    fn has_own_home(&self) -> bool {
        false
    }

    fn enter(&self, command: Command) -> anyhow::Result<tokio::process::Command> {
        Ok(command.into())
    }

    fn start(&self, name: &str, _: Command) -> anyhow::Result<Running> {
        anyhow::bail!("{name} does not run beside an existing cluster")
    }

    fn set_host(&self, name: &str, _: IpAddr) -> anyhow::Result<()> {
        anyhow::bail!("the name {name} cannot be set on this machine")
    }

    fn audit_events(&self, _: &str) -> anyhow::Result<Vec<serde_json::Value>> {
        anyhow::bail!("the audit log of an existing cluster is not known")
    }

    fn idle_image(&self) -> Option<String> {
        None
    }
}
