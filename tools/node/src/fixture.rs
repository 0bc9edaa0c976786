//! One node for all tests of an executable.
//!
//! A separate process (`pinniped-node hold`) owns the node and stops it when its standard input
//! closes: at the end of this executable, also after a panic, Ctrl-C or SIGKILL.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use anyhow::Context as _;
use pinniped_test_support::tools;

use crate::layout::{Layout, TOOLS_ENV};
use crate::node::{Node, Status};
use crate::prerequisites;
use crate::process::Identity;

/// Prefix of the names of test nodes; the process id of the test executable follows.
const PREFIX: &str = "it-";
/// The line that `hold` prints when the node is ready.
pub const HELD: &str = "HELD";

/// A node and the process that owns it.
#[derive(Debug)]
struct SharedNode {
    node: Node,
    /// The kernel closes this pipe when this process exits for any reason.
    _lifeline: ChildStdin,
}

static SHARED: OnceLock<Result<SharedNode, String>> = OnceLock::new();

/// Whether a node can run here. If not, records that `test` is skipped (and fails where everything
/// is required).
#[must_use]
pub fn possible(test: &str) -> bool {
    let missing = prerequisites::missing().or_else(|| {
        std::env::var_os(TOOLS_ENV)
            .is_none()
            .then(|| "the node's programs are not known: run the tests by `cargo xtask test`".to_owned())
    });
    if let Some(why) = &missing {
        // The summary of skips has one line per test.
        tools::skip(test, &why.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    missing.is_none()
}

/// Returns the node that all tests of this executable share; the first caller starts it. Returns
/// `None` and records a skip where no node can run. Use one namespace (and, for cluster-wide
/// objects, one API group suffix) per test.
///
/// # Errors
/// Returns an error when the node could not be started; every caller gets the same text.
pub fn shared(test: &str) -> anyhow::Result<Option<&'static Node>> {
    if !possible(test) {
        return Ok(None);
    }
    let held = SHARED.get_or_init(|| hold(&name("shared")).map_err(|error| format!("{error:#}")));
    held.as_ref().map(|held| Some(&held.node)).map_err(|error| anyhow::anyhow!("{error}"))
}

/// Returns a name for a node of this test executable, for tests that need a separate one.
#[must_use]
pub fn name(purpose: &str) -> String {
    format!("{PREFIX}{}-{purpose}", std::process::id())
}

/// Removes nodes of test executables that have exited, and whose owners were killed, too.
fn sweep() -> anyhow::Result<()> {
    for status in Status::all(None)? {
        let pid =
            status.layout.name().strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid| Identity::of(pid).is_none()) {
            Node::remove(&status.layout)?;
        }
    }
    Ok(())
}

fn hold(name: &str) -> anyhow::Result<SharedNode> {
    sweep()?;
    let mut child = Command::new(tools::binary("pinniped-node")?)
        .args(["hold", "--name", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        // Ctrl-C is meant for the tests; the owner stops after them.
        .process_group(0)
        .spawn()
        .context("could not start `pinniped-node hold`")?;
    let lifeline = child.stdin.take().context("`hold` has no standard input")?;
    let stdout = child.stdout.take().context("`hold` has no standard output")?;
    let mut printed = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("could not read the output of `hold`")?;
        if line == HELD {
            let node = Node::attach_in(&Layout::new(name, None)?)?;
            return Ok(SharedNode { node, _lifeline: lifeline });
        }
        printed.push(line);
    }
    let status = child.wait().context("could not wait for `hold`")?;
    anyhow::bail!("no node for the tests ({status}):\n{}", printed.join("\n"))
}
