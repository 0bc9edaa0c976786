//! `cargo xtask node`: a real one-node cluster on this machine, without a container daemon.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::control_plane::KubernetesRelease;
use crate::{cargo, control_plane};

/// The default folder of the nodes' state.
const STATE: &str = "/var/lib/pinniped-node";

/// The default name of a node.
pub(crate) const DEFAULT: &str = "default";

/// Flags of `node`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(clap::Subcommand)]
enum NodeCommand {
    /// Starts the node: builds missing programs once, and waits until pods run.
    Up {
        #[command(flatten)]
        which: Which,
        /// An image archive to import (docker's or OCI's); may be repeated.
        #[arg(long = "image", value_name = "ARCHIVE")]
        images: Vec<PathBuf>,
    },
    /// Stops the node, and checks that nothing of it is left on the machine.
    Down(Which),
    /// Prints the status of the node; without a name, of all nodes.
    Status(Which),
    /// Runs a program of this machine in the node's network, with its names: `exec -- kubectl get
    /// pods -A`.
    Exec {
        #[command(flatten)]
        which: Which,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct Which {
    /// The name of the node, to run several nodes at the same time [default: default].
    #[arg(long)]
    name: Option<String>,
    /// The folder of all nodes' state [default: /var/lib/pinniped-node].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (verb, which) = match &args.command {
        NodeCommand::Up { which, .. } => ("up", which),
        NodeCommand::Down(which) => ("down", which),
        NodeCommand::Status(which) => ("status", which),
        NodeCommand::Exec { which, .. } => ("exec", which),
    };
    anyhow::ensure!(cfg!(target_os = "linux"), "a node consists of Linux namespaces and runs on Linux only");
    let program = match &args.command {
        NodeCommand::Up { .. } => build_program(which.offline)?,
        // The program that started a node also stops it, without a wait for other builds.
        _ => built_program(which.offline)?,
    };
    let mut command = Command::new(&program);
    command.arg(verb);
    if let Some(name) = &which.name {
        command.arg("--name").arg(name);
    }
    if let Some(state) = &which.state {
        command.arg("--state").arg(std::path::absolute(state)?);
    }
    match &args.command {
        NodeCommand::Up { images, .. } => {
            // Checks before minutes of building whether the machine can run a node.
            cargo::succeed(Command::new(&program).arg("check"), "checking the machine's programs")?;
            command
                .arg("--tools")
                .arg(control_plane::node_tools::find_or_build(KubernetesRelease::default(), which.offline)?);
            for image in images {
                command.arg("--image").arg(image);
            }
        }
        NodeCommand::Exec { command: words, .. } => {
            command.arg("--").args(words);
        }
        NodeCommand::Down(_) | NodeCommand::Status(_) => {}
    }
    Err(cargo::become_program(&mut command))
}

/// Returns the path of the last build of `pinniped-node`.
fn built_program(offline: bool) -> anyhow::Result<PathBuf> {
    let program = cargo::target_dir()?.join("debug/pinniped-node");
    if program.is_file() { Ok(program) } else { build_program(offline) }
}

/// Builds `pinniped-node`.
fn build_program(offline: bool) -> anyhow::Result<PathBuf> {
    let mut build = cargo::cargo(offline);
    build.args(["build", "--quiet", "--package", "pinniped-node", "--bins"]);
    cargo::succeed(&mut build, "building pinniped-node")?;
    Ok(cargo::target_dir()?.join("debug/pinniped-node"))
}

/// Returns the reason why no node can run on this machine, or `None` when one can. `program` is
/// `pinniped-node`.
pub(crate) fn impossible(program: &std::path::Path) -> Option<String> {
    match Command::new(program).arg("check").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Some(text.trim().trim_start_matches("error: ").to_owned())
        }
        Err(error) => Some(format!("{} does not run: {error}", program.display())),
    }
}

/// Whether a node is running. `program` is `pinniped-node`.
pub(crate) fn runs(program: &std::path::Path, name: &str) -> bool {
    let mut command = Command::new(program);
    command.args(["status", "--name", name]).output().is_ok_and(|output| output.status.success())
}

/// Waits until the nodes of tests have stopped, which happens after the test executables exit, and
/// returns what they left on the machine.
pub(crate) fn left_by_tests() -> Vec<String> {
    let state = std::env::var_os("PINNIPED_NODE_STATE").map_or_else(|| STATE.into(), PathBuf::from);
    let found = |end: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&state).into_iter().flatten().flatten().map(|entry| entry.path());
        let fits = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("it-") && name.ends_with(end)
        };
        entries.filter(fits).collect()
    };
    let start = Instant::now();
    while !found("-shared").is_empty() && start.elapsed() < Duration::from_secs(60) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let mut left: Vec<String> =
        found("-shared").iter().map(|dir| format!("the node in {}", dir.display())).collect();
    for file in found(".left") {
        left.push(std::fs::read_to_string(&file).unwrap_or_default().trim().to_owned());
        let _ = std::fs::remove_file(file);
    }
    let _ = std::fs::remove_dir(&state);
    left
}
