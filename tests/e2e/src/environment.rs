//! The environment of a walk: a cluster, and the network in which the commands of its administrator
//! and users run.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::control_plane::tail;
use pinniped_test_support::guardian::{Ending, Process};
use pinniped_test_support::kubectl::{CommandOutput, Kubectl, LONGEST, as_typed, run_as};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use rustix::process::{Pid, Signal, kill_process};

mod existing;
mod node;

pub use existing::ExistingCluster;
pub use node::OnNode;

/// A cluster with a network for commands.
pub trait Environment: Debug + Sync {
    /// kubectl as administrator. [`Environment::enter`] moves it into the network.
    fn kubectl(&self) -> Kubectl;

    /// The path of the administrator's kubeconfig.
    fn admin_kubeconfig(&self) -> PathBuf;

    /// A folder for the files of the walk.
    fn dir(&self) -> PathBuf;

    /// Whether commands have the home folder of the walk instead of the user's own.
    fn has_own_home(&self) -> bool {
        true
    }

    /// Returns the same command inside the cluster's network, in which Services respond and names
    /// resolve.
    ///
    /// # Errors
    /// Returns an error when the cluster has terminated.
    fn enter(&self, command: Command) -> anyhow::Result<tokio::process::Command>;

    /// Starts a long-running program inside. It terminates with the environment at the latest, and
    /// possibly when the handle is dropped.
    ///
    /// # Errors
    /// Returns an error when it cannot be started.
    fn start(&self, name: &str, command: Command) -> anyhow::Result<Running>;

    /// Returns the last lines of the log of such a program.
    fn log_tail(&self, name: &str) -> String {
        tail(&log_file(&self.dir(), name), 15)
    }

    /// Makes `name` resolve to `ip` for commands inside.
    ///
    /// # Errors
    /// Returns an error when the name cannot be set.
    fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()>;

    /// Returns the API server's audit events that contain `text`, oldest first.
    ///
    /// # Errors
    /// Returns an error when there is no audit log, or when it cannot be read.
    fn audit_events(&self, text: &str) -> anyhow::Result<Vec<serde_json::Value>>;

    /// An image for containers that do nothing, if there are nodes that run containers.
    fn idle_image(&self) -> Option<String>;
}

/// A long-running program.
#[derive(Debug)]
pub enum Running {
    /// Terminates with the world that guards it.
    Guarded(Process),
    /// Terminates when this value is dropped.
    Child(tokio::process::Child),
}

impl Running {
    /// Interrupts the program as Ctrl-C does, and waits until it exits.
    ///
    /// # Errors
    /// Returns an error when it does not exit within `deadline`, or not with 0.
    pub async fn interrupt(&mut self, deadline: Duration) -> anyhow::Result<()> {
        let pid = match self {
            Self::Guarded(process) => Some(process.id()),
            Self::Child(child) => child.id(),
        };
        let pid =
            pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).context("it has ended already")?;
        kill_process(pid, Signal::INT).context("could not interrupt it")?;
        let status = wait::until(deadline, "the interrupted program to end", async || match self {
            Self::Guarded(process) => process.ended(),
            Self::Child(child) => child.try_wait().ok().flatten(),
        })
        .await?;
        anyhow::ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

/// Returns the log file of a long-running program.
fn log_file(dir: &Path, name: &str) -> PathBuf {
    dir.join("logs").join(format!("{name}.log"))
}

/// A command that runs in an environment.
#[derive(Debug)]
pub struct Step {
    shown: String,
    /// The error is reported when the command is run.
    command: anyhow::Result<tokio::process::Command>,
    limit: Duration,
}

impl Step {
    /// Creates a command of an environment, shown as a user would type it there.
    pub fn inside(environment: &dyn Environment, command: Command) -> Self {
        Self { shown: as_typed(&command), command: environment.enter(command), limit: LONGEST }
    }

    /// Returns the same command, shown as another text.
    #[must_use]
    pub fn shown_as(self, shown: &str) -> Self {
        Self { shown: shown.to_owned(), ..self }
    }

    /// Returns the same command with another time limit, for one that waits for a person.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The text as which the command is shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Runs the command until it exits.
    ///
    /// # Errors
    /// Returns an error when it cannot be started or does not exit, or when the environment has
    /// terminated.
    pub async fn run(self, input: Option<&str>) -> anyhow::Result<CommandOutput> {
        run_as(self.limit, self.shown, self.command?, input).await
    }
}

/// Uses processes instead of pods, in the network of this process.
impl Environment for World {
    fn kubectl(&self) -> Kubectl {
        World::kubectl(self)
    }

    fn admin_kubeconfig(&self) -> PathBuf {
        World::admin_kubeconfig(self)
    }

    fn dir(&self) -> PathBuf {
        World::dir(self).to_owned()
    }

    fn enter(&self, command: Command) -> anyhow::Result<tokio::process::Command> {
        Ok(command.into())
    }

    fn start(&self, name: &str, command: Command) -> anyhow::Result<Running> {
        let guardian = self.control_plane().guardian();
        let process = guardian.spawn(&command, Ending::Kill, &log_file(self.dir(), name))?;
        Ok(Running::Guarded(process))
    }

    fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        World::set_host(self, name, ip)
    }

    fn audit_events(&self, text: &str) -> anyhow::Result<Vec<serde_json::Value>> {
        self.control_plane().audit_events(text)
    }

    fn idle_image(&self) -> Option<String> {
        None
    }
}
