//! The real kubectl, with its output caught.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;

use crate::wait;

/// What a program printed and how it ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The command as one would type it, for messages.
    pub command: String,
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Outcome {
    /// The outcome itself when the exit code is 0.
    ///
    /// # Errors
    /// Otherwise, with the command and both outputs.
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

/// How long a program may take whose deadline nobody named.
const LONGEST: Duration = Duration::from_secs(120);

/// Runs any program to its end, with `input` on its standard input.
///
/// # Errors
/// When it cannot be started or has not ended after two minutes.
pub async fn run(command: std::process::Command, input: Option<&str>) -> anyhow::Result<Outcome> {
    run_within(LONGEST, command, input).await
}

/// The same with a deadline of the caller's own, for a script of many steps.
///
/// # Errors
/// When it cannot be started or has not ended within `limit`.
pub async fn run_within(
    limit: Duration,
    command: std::process::Command,
    input: Option<&str>,
) -> anyhow::Result<Outcome> {
    let shown = as_typed(&command);
    let ended = tokio::time::timeout(limit, to_end(&shown, tokio::process::Command::from(command), input));
    ended.await.with_context(|| format!("`{shown}` has not ended within {limit:?}"))?
}

/// The same, for a command that one would type in another way than it is started.
///
/// # Errors
/// When it cannot be started or has not ended after two minutes.
pub async fn run_as(
    shown: String,
    command: tokio::process::Command,
    input: Option<&str>,
) -> anyhow::Result<Outcome> {
    let ended = tokio::time::timeout(LONGEST, to_end(&shown, command, input)).await;
    ended.with_context(|| format!("`{shown}` has not ended after two minutes"))?
}

async fn to_end(
    shown: &str,
    mut command: tokio::process::Command,
    input: Option<&str>,
) -> anyhow::Result<Outcome> {
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
            // A program that does not want all of its input may close the pipe.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let output = tokio::join!(feed, child.wait_with_output()).1;
    let output = output.with_context(|| format!("could not wait for `{shown}`"))?;
    Ok(Outcome {
        command: shown.to_owned(),
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: start.elapsed(),
    })
}

/// A command as one would type it: the program without its folder, words quoted where a shell needs it.
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

/// Variables that would send requests to a proxy which the test world does not reach.
pub(crate) const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// kubectl bound to one kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
    path: Option<std::ffi::OsString>,
}

impl Kubectl {
    /// `binary` with `kubeconfig`.
    #[must_use]
    pub fn new(binary: &Path, kubeconfig: &Path) -> Self {
        Self { binary: binary.to_owned(), kubeconfig: kubeconfig.to_owned(), path: None }
    }

    /// The program itself.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.binary
    }

    /// The kubeconfig, for other programs.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The same kubectl with another kubeconfig.
    #[must_use]
    pub fn with_kubeconfig(&self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), ..self.clone() }
    }

    /// The same kubectl with `dir` in front of its PATH: exec plugins are found there.
    #[must_use]
    pub fn with_path(&self, dir: &Path) -> Self {
        let mut path = dir.as_os_str().to_owned();
        if let Some(rest) = std::env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        Self { path: Some(path), ..self.clone() }
    }

    /// The command, not yet started.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(&self.binary);
        command.args(args).env("KUBECONFIG", &self.kubeconfig);
        for name in PROXY_VARIABLES {
            command.env_remove(name);
        }
        // Discovery caches of other clusters must not leak into this one, nor ours into the user's home.
        if let Some(dir) = self.kubeconfig.parent() {
            command.env("KUBECACHEDIR", dir.join("kubectl-cache"));
        }
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        command
    }

    /// Runs it, whatever the exit code.
    ///
    /// # Errors
    /// When kubectl cannot be started or does not end.
    pub async fn run(&self, args: &[&str]) -> anyhow::Result<Outcome> {
        run(self.command(args), None).await
    }

    /// Runs it and returns standard output.
    ///
    /// # Errors
    /// Also when the exit code is not 0.
    pub async fn output(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(self.run(args).await?.success()?.stdout)
    }

    /// Waits until definitions (`crd/NAME`, or flags that name files) are accepted. `kubectl wait` alone gives up at once
    /// on one that is so new that it has no status.
    ///
    /// # Errors
    /// When they are not within half a minute.
    pub async fn await_established(&self, definitions: &[&str]) -> anyhow::Result<()> {
        let args = [&["wait", "--for=condition=Established", "--timeout=30s"][..], definitions].concat();
        let established = async || self.output(&args).await.map(drop);
        wait::until_ok(Duration::from_secs(30), format!("{definitions:?} to be established"), established)
            .await
    }

    /// `kubectl apply -f -` of a YAML text.
    ///
    /// # Errors
    /// Also when the exit code is not 0.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<String> {
        Ok(run(self.command(&["apply", "-f", "-"]), Some(yaml)).await?.success()?.stdout)
    }
}
