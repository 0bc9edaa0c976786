//! Runs the real kubectl and captures its output.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;

use crate::wait;

/// The output and exit code of a program.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// The command as a user would type it, for messages.
    pub command: String,
    /// Exit code; -1 when a signal terminated the program.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The running time.
    pub took: Duration,
}

impl CommandOutput {
    /// Returns `self` if the exit code is 0.
    ///
    /// # Errors
    /// Returns an error with the command and both outputs for any other exit code.
    pub fn success(self) -> anyhow::Result<Self> {
        anyhow::ensure!(
            self.code == 0,
            "`{}` ended with exit code {}\n{}{}",
            self.command,
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }
}

/// Time limit of a program when the caller gives none.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Runs any program until it exits, with `input` on its standard input.
///
/// # Errors
/// Returns an error when the program cannot be started or has not exited after two minutes.
pub async fn run(command: std::process::Command, input: Option<&str>) -> anyhow::Result<CommandOutput> {
    run_within(LONGEST, command, input).await
}

/// Does the same with a time limit chosen by the caller, for a script of many steps.
///
/// # Errors
/// Returns an error when the program cannot be started or has not exited within `limit`.
pub async fn run_within(
    limit: Duration,
    command: std::process::Command,
    input: Option<&str>,
) -> anyhow::Result<CommandOutput> {
    run_as(limit, as_typed(&command), command.into(), input).await
}

/// Does the same for a command that messages show in another form than it is started.
///
/// # Errors
/// Returns an error when the program cannot be started or has not exited within `limit`.
pub async fn run_as(
    limit: Duration,
    shown: String,
    command: tokio::process::Command,
    input: Option<&str>,
) -> anyhow::Result<CommandOutput> {
    let ended = tokio::time::timeout(limit, to_end(&shown, command, input)).await;
    ended.with_context(|| format!("`{shown}` has not ended within {limit:?}"))?
}

async fn to_end(
    shown: &str,
    mut command: tokio::process::Command,
    input: Option<&str>,
) -> anyhow::Result<CommandOutput> {
    let start = Instant::now();
    command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("could not start `{shown}`"))?;
    let stdin = child.stdin.take();
    let feed = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A program that does not need all of its input may close the pipe.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let output = tokio::join!(feed, child.wait_with_output()).1;
    let output = output.with_context(|| format!("could not wait for `{shown}`"))?;
    Ok(CommandOutput {
        command: shown.to_owned(),
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: start.elapsed(),
    })
}

/// Returns a command as a user would type it: the program without its folder, words quoted where a
/// shell needs it.
#[must_use]
pub fn as_typed(command: &std::process::Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    std::iter::once(program)
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
            if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { format!("'{word}'") }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Environment variables that would route requests through a proxy that is not reachable from the
/// test world.
pub(crate) const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// kubectl with a fixed kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    path: Option<std::ffi::OsString>,
}

impl Kubectl {
    /// Creates a kubectl from `binary` and `kubeconfig`.
    #[must_use]
    pub fn new(binary: &Path, kubeconfig: &Path) -> Self {
        Self { binary: binary.to_owned(), kubeconfig: kubeconfig.to_owned(), path: None }
    }

    /// The path of the program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.binary
    }

    /// The path of the kubeconfig, for other programs.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the same kubectl with another kubeconfig.
    #[must_use]
    pub fn with_kubeconfig(&self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), ..self.clone() }
    }

    /// Returns the same kubectl with `dir` in front of its PATH, where it finds exec plugins.
    #[must_use]
    pub fn with_path(&self, dir: &Path) -> Self {
        let mut path = dir.as_os_str().to_owned();
        if let Some(rest) = std::env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        Self { path: Some(path), ..self.clone() }
    }

    /// Returns the command without starting it.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(&self.binary);
        command.args(args).env("KUBECONFIG", &self.kubeconfig);
        for name in PROXY_VARIABLES {
            command.env_remove(name);
        }
        // Discovery caches must be separate per cluster, and must not be written to the user's
        // home.
        if let Some(dir) = self.kubeconfig.parent() {
            command.env("KUBECACHEDIR", dir.join("kubectl-cache"));
        }
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        command
    }

    /// Runs kubectl and accepts any exit code.
    ///
    /// # Errors
    /// Returns an error when kubectl cannot be started or does not exit in time.
    pub async fn run(&self, args: &[&str]) -> anyhow::Result<CommandOutput> {
        run(self.command(args), None).await
    }

    /// Runs kubectl and returns its standard output.
    ///
    /// # Errors
    /// Also returns an error when the exit code is not 0.
    pub async fn output(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(self.run(args).await?.success()?.stdout)
    }

    /// Waits until definitions (`crd/NAME`, or flags that name files) are established. `kubectl
    /// wait` alone fails at once for a definition that is so new that it has no status.
    ///
    /// # Errors
    /// Returns an error when they are not established within half a minute.
    pub async fn await_established(&self, definitions: &[&str]) -> anyhow::Result<()> {
        let args = [&["wait", "--for=condition=Established", "--timeout=30s"][..], definitions].concat();
        let established = async || self.output(&args).await.map(drop);
        wait::until_ok(Duration::from_secs(30), format!("{definitions:?} to be established"), established)
            .await
    }

    /// Runs `kubectl apply -f -` with a YAML text.
    ///
    /// # Errors
    /// Also returns an error when the exit code is not 0.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<String> {
        Ok(run(self.command(&["apply", "-f", "-"]), Some(yaml)).await?.success()?.stdout)
    }
}
