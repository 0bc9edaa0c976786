//! Programs that run in the background of a test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_e2e::environment::{Environment as _, OnNode};
use pinniped_test_support::wait;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::sync::Mutex;

/// Time limit of any step on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A running program. Dropping this value terminates it.
pub(crate) struct Open {
    name: String,
    child: Mutex<Child>,
    /// The standard input of interactive programs.
    stdin: Mutex<Option<ChildStdin>>,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// The result of a program that has exited.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Open {
    /// Starts a program without standard input.
    pub(crate) fn start(environment: &OnNode<'_>, name: &str, command: Command) -> anyhow::Result<Self> {
        Self::start_with(environment, name, command, Stdio::null())
    }

    /// Starts an interactive program whose input stays open until [`Open::hang_up`].
    pub(crate) fn start_interactive(
        environment: &OnNode<'_>,
        name: &str,
        command: Command,
    ) -> anyhow::Result<Self> {
        Self::start_with(environment, name, command, Stdio::piped())
    }

    fn start_with(
        environment: &OnNode<'_>,
        name: &str,
        command: Command,
        stdin: Stdio,
    ) -> anyhow::Result<Self> {
        let file = |end: &str| environment.dir().join(format!("{name}.{end}"));
        let (stdout, stderr) = (file("out"), file("err"));
        let mut command = environment.enter(command)?;
        command.stdin(stdin).stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        let mut child =
            command.kill_on_drop(true).spawn().with_context(|| format!("could not start {name}"))?;
        let stdin = child.stdin.take().into();
        Ok(Self { name: name.to_owned(), child: child.into(), stdin, stdout, stderr })
    }

    fn output(&self) -> anyhow::Result<(String, String)> {
        let read = |file: &Path| anyhow::Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned());
        Ok((read(&self.stdout)?, read(&self.stderr)?))
    }

    /// Returns the standard error so far.
    pub(crate) fn noted(&self) -> anyhow::Result<String> {
        Ok(self.output()?.1)
    }

    /// Waits until the output contains `wanted`, and returns the output so far.
    pub(crate) async fn await_output(&self, wanted: &str) -> anyhow::Result<String> {
        let what = format!("{} to say {wanted:?}", self.name);
        let output = wait::until_ok(TIME_LIMIT, &what, async || {
            // The order matters: output before the exit counts.
            let runs = self.runs().await?;
            let (stdout, stderr) = self.output()?;
            if stdout.contains(wanted) {
                return Ok(Ok(stdout));
            }
            let why = format!("it printed {stdout:?} and {stderr:?}");
            ensure!(!runs, why);
            Ok(Err(format!("{why} and has ended")))
        });
        output.await?.map_err(|why| anyhow::anyhow!("waited for {what}: {why}"))
    }

    /// Writes to its standard input.
    pub(crate) async fn write_input(&self, text: &str) -> anyhow::Result<()> {
        let mut stdin = self.stdin.lock().await;
        let stdin = stdin.as_mut().with_context(|| format!("{} has no standard input", self.name))?;
        let written = async {
            stdin.write_all(text.as_bytes()).await?;
            stdin.flush().await
        };
        written.await.with_context(|| format!("{} does not listen", self.name))
    }

    /// Closes its standard input.
    pub(crate) async fn hang_up(&self) {
        *self.stdin.lock().await = None;
    }

    /// Whether it is still running.
    pub(crate) async fn runs(&self) -> anyhow::Result<bool> {
        Ok(self.child.lock().await.try_wait()?.is_none())
    }

    /// Waits until it exits.
    pub(crate) async fn ended(&self) -> anyhow::Result<Ended> {
        let mut child = self.child.lock().await;
        let ended = tokio::time::timeout(TIME_LIMIT, child.wait()).await;
        let status = ended.with_context(|| format!("{} does not end", self.name))??;
        let (stdout, stderr) = self.output()?;
        Ok(Ended { status, stdout, stderr })
    }

    /// Waits until it exits successfully, and returns its standard output.
    pub(crate) async fn ended_well(&self) -> anyhow::Result<String> {
        let Ended { status, stdout, stderr } = self.ended().await?;
        ensure!(status.success() && stderr.is_empty(), "{} ended with {status}: {stderr}", self.name);
        Ok(stdout)
    }
}
