//! One kubectl on one route, with its own namespace, so that four of them run concurrently.

use std::path::{Path, PathBuf};
use std::process::Command;

use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::walkthrough::Walk;
use pinniped_node::Node;
use pinniped_test_support::kubectl::Kubectl;

use crate::background::{Ended, Open};

/// The version of kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The version of the cluster's release, which uses WebSocket.
    Today,
    /// Debian 12's version, which uses SPDY and the oldest plug-in interface.
    Old,
}

/// The route and the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The administrator, directly to the API server.
    Direct,
    /// The user, with plug-in and impersonation proxy.
    Proxy,
    /// The user, with `pinniped proxy` and a service account's token.
    LocalProxy,
}

impl Version {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Today => "1.36",
            Self::Old => "1.20",
        }
    }
}

/// The output of a command, without the parts that differ between sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// One kubectl on one route.
pub(super) struct Session<'p> {
    pub(super) version: Version,
    pub(super) route: Route,
    pub(super) namespace: String,
    pub(super) node: &'static Node,
    environment: &'p OnNode<'p>,
    home: &'p Path,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
}

impl<'p> Session<'p> {
    pub(super) fn new(
        node: &'static Node,
        environment: &'p OnNode<'p>,
        walk: &'p Walk<'_>,
        debian: &Path,
        version: Version,
        route: Route,
        kubeconfig: &Path,
    ) -> Self {
        let way = match route {
            Route::Direct => "direct",
            Route::Proxy => "proxy",
            Route::LocalProxy => "local",
        };
        let kubeconfig = kubeconfig.to_owned();
        let kubectl = match version {
            Version::Today => node.tools().join("kubectl"),
            Version::Old => debian.join("kubectl"),
        };
        let namespace = format!("kubectl-{}-{way}", version.name().replace('.', "-"));
        Self { version, route, namespace, node, environment, home: walk.home(), kubectl, kubeconfig }
    }

    /// Returns kubectl in the session's namespace. `NAMESPACE` in an argument is replaced by its
    /// name.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let args: Vec<String> = args.iter().map(|arg| arg.replace("NAMESPACE", &self.namespace)).collect();
        let mut all = vec!["-n", self.namespace.as_str()];
        all.extend(args.iter().map(String::as_str));
        self.at_home(Kubectl::new(&self.kubectl, &self.kubeconfig).command(&all))
    }

    /// Returns `script`, which runs a command line in a terminal. In the command line `$KUBECTL` is
    /// kubectl in the session's namespace.
    pub(super) fn in_terminal(&self, line: &str) -> Command {
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", line, "/dev/null"]).env("SHELL", "/bin/sh");
        let kubectl = format!("{} -n {}", self.kubectl.display(), self.namespace);
        command.env("KUBECTL", kubectl).env("KUBECONFIG", &self.kubeconfig);
        self.at_home(command)
    }

    fn at_home(&self, mut command: Command) -> Command {
        command.env("HOME", self.home).env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        command
    }

    /// Returns the path of a file or folder of this session.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.environment.dir().join(format!("{}-{name}", self.namespace))
    }

    /// Runs kubectl until it exits.
    pub(super) async fn run(&self, args: &[&str], input: Option<&str>) -> anyhow::Result<Shown> {
        let output = Step::inside(self.environment, self.command(args)).run(input).await?;
        Ok(self.shown(output.code, &output.stdout, &output.stderr))
    }

    /// Starts an interactive kubectl.
    pub(super) fn open(&self, name: &str, args: &[&str]) -> anyhow::Result<Open> {
        Open::start_interactive(self.environment, &format!("{}-{name}", self.namespace), self.command(args))
    }

    /// Starts the command of [`Session::in_terminal`].
    pub(super) fn open_terminal(&self, name: &str, line: &str) -> anyhow::Result<Open> {
        Open::start_interactive(
            self.environment,
            &format!("{}-{name}", self.namespace),
            self.in_terminal(line),
        )
    }

    /// Waits until an interactive kubectl exits and returns its output.
    pub(super) async fn end_of(&self, open: &Open) -> anyhow::Result<Shown> {
        let Ended { status, stdout, stderr } = open.ended().await?;
        Ok(self.shown(status.code().unwrap_or(-1), &stdout, &stderr))
    }

    fn shown(&self, code: i32, stdout: &str, stderr: &str) -> Shown {
        let stdout = ageless(&stdout.replace(&self.namespace, "NAMESPACE"));
        Shown { code, stdout, stderr: stderr.replace(&self.namespace, "NAMESPACE") }
    }
}

/// Removes ages at the end of lines, which differ between runs.
fn ageless(text: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((before, last)) if is_age(last) => format!("{before} AGE\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Whether the word is an age, such as `7s` or `1m2s`.
fn is_age(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h'])
        && word.chars().all(|c| c.is_ascii_digit() || "smh".contains(c))
}

#[test]
fn ages_are_replaced_and_other_text_is_kept() {
    let text = "NAME READY AGE\ntarget 2/2 7s\ntarget 2/2 1m12s\nsome pods\n12 s\n";
    assert_eq!(ageless(text), "NAME READY AGE\ntarget 2/2 AGE\ntarget 2/2 AGE\nsome pods\n12 s\n");
}
