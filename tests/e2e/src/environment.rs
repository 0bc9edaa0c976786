//! Where a walk goes: a cluster, and the network in which the commands of its administrator and users run.

use std::fmt::Debug;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::control_plane::tail;
use pinniped_test_support::guardian::{Ending, Process};
use pinniped_test_support::kubectl::{Kubectl, Outcome, as_typed, run_as};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use rustix::process::{Pid, Signal, kill_process};

mod node;

pub use node::OnNode;

/// A cluster to walk in.
pub trait Place: Debug + Sync {
    /// kubectl as administrator; [`Place::enter`] brings it inside.
    fn kubectl(&self) -> Kubectl;

    /// The administrator's kubeconfig.
    fn admin_kubeconfig(&self) -> PathBuf;

    /// A folder for the walk's files.
    fn dir(&self) -> PathBuf;

    /// The same command inside the cluster's network, where Services answer and names resolve.
    ///
    /// # Errors
    /// When the cluster has ended.
    fn enter(&self, command: Command) -> anyhow::Result<tokio::process::Command>;

    /// Starts a program inside that stays. It ends with the place, and may end with the handle.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&self, name: &str, command: Command) -> anyhow::Result<Running>;

    /// The last lines that such a program said.
    fn log_tail(&self, name: &str) -> String {
        tail(&log_file(&self.dir(), name), 15)
    }

    /// Lets `name` resolve to `ip` for commands inside.
    ///
    /// # Errors
    /// When that cannot be arranged.
    fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()>;

    /// What the API server wrote about requests, oldest first.
    ///
    /// # Errors
    /// When it writes nothing, or that cannot be read.
    fn audit_events(&self) -> anyhow::Result<Vec<serde_json::Value>>;

    /// An image for containers that do nothing, if there are nodes that run containers.
    fn idle_image(&self) -> Option<String>;
}

/// A program that stays.
#[derive(Debug)]
pub enum Running {
    /// It ends with the world that guards it.
    Guarded(Process),
    /// It ends with this.
    Child(tokio::process::Child),
}

impl Running {
    /// Interrupts it as Ctrl-C would, and waits for its end.
    ///
    /// # Errors
    /// When it does not end within `deadline`, or not with 0.
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

/// Where a program that stays writes to.
fn log_file(dir: &Path, name: &str) -> PathBuf {
    dir.join("logs").join(format!("{name}.log"))
}

/// A command that runs in a place.
#[derive(Debug)]
pub struct Step {
    shown: String,
    /// Or why there is none: told when it is to be run.
    command: anyhow::Result<tokio::process::Command>,
}

impl Step {
    /// A command of a place, shown as one would type it there.
    pub fn inside(place: &dyn Place, command: Command) -> Self {
        Self { shown: as_typed(&command), command: place.enter(command) }
    }

    /// The same, shown in other words.
    #[must_use]
    pub fn shown_as(self, shown: &str) -> Self {
        Self { shown: shown.to_owned(), ..self }
    }

    /// As one would type it.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// When it cannot be started or does not end, or the place has ended.
    pub async fn run(self, input: Option<&str>) -> anyhow::Result<Outcome> {
        run_as(self.shown, self.command?, input).await
    }
}

/// Processes instead of pods, in the network of this process.
impl Place for World {
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

    fn audit_events(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        self.control_plane().audit_events()
    }

    fn idle_image(&self) -> Option<String> {
        None
    }
}
