//! `cargo xtask test`: what the machine can do, the control plane, the programs, all tests, a summary.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::control_plane::{self, debian};
use crate::{cargo, node};

/// Packages whose tests use a real node.
const NODE_PACKAGES: [&str; 2] = ["pinniped-node", "pinniped-e2e"];
/// The package whose tests use a real informer.
const INFORMER_PACKAGE: &str = "pinniped-e2e";

/// Flags of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fail where something would be skipped or done in a lesser way on this machine.
    #[arg(long)]
    require_all: bool,
    /// Use only what is on this machine; say what is missing.
    #[arg(long)]
    offline: bool,
    /// Handed on to `cargo test`, for example `-p pinniped-e2e -- --nocapture`. Without a package: all of them.
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let missing = missing_prerequisites();
    for line in &missing {
        eprintln!("note: {line}");
    }
    anyhow::ensure!(
        !args.require_all || missing.is_empty(),
        "with --require-all nothing may be missing: {}",
        missing.join("; ")
    );
    let tools = control_plane::find_or_build(args.offline)?;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--workspace", "--bins"]);
    cargo::succeed(&mut build, "building the programs")?;

    let target = cargo::target_dir()?;
    let node_tools = if args.wants(&NODE_PACKAGES) { node_tools(args, &target)? } else { None };
    // Only tests on a node use them.
    let debian_tools = if node_tools.is_some() { debian_tools(args)? } else { None };
    let skips = target.join("test-skips.txt");
    std::fs::write(&skips, "").with_context(|| format!("could not write {}", skips.display()))?;
    let mut tests = cargo::cargo(args.offline);
    tests.arg("test");
    if !args.rest.iter().any(|arg| arg == "-p" || arg.starts_with("--package")) {
        tests.arg("--workspace");
    }
    tests.arg("--no-fail-fast").args(&args.rest);
    tests.env("PINNIPED_CONTROL_PLANE", &tools).env("PINNIPED_BIN_DIR", target.join("debug"));
    tests.env("PINNIPED_SKIPS", &skips);
    if let Some(dir) = node_tools {
        tests.env("PINNIPED_NODE_TOOLS", dir);
    }
    if let Some(dir) = debian_tools {
        tests.env(debian::ENV, dir);
    }
    if args.wants(&[INFORMER_PACKAGE]) {
        tests.env("PINNIPED_INFORMER", control_plane::informer::find_or_build(args.offline)?);
    }
    if args.require_all {
        tests.env("PINNIPED_REQUIRE_ALL", "1");
    }
    let status = cargo::status(&mut tests)?;
    let left = node::left_by_tests();
    for line in &left {
        eprintln!("error: left by a test's node: {line}");
    }
    summary(&skips, status.success() && left.is_empty(), start);
    Ok(if left.is_empty() { cargo::exit_code(status) } else { ExitCode::FAILURE })
}

impl Args {
    /// Whether tests of one of these packages are among those asked for.
    fn wants(&self, packages: &[&str]) -> bool {
        let named = |arg: &String| arg == "-p" || arg.starts_with("--package");
        let one = |arg: &String| packages.iter().any(|package| arg.ends_with(package));
        !self.rest.iter().any(named) || self.rest.iter().any(one)
    }
}

/// The programs of a node, where one can run.
fn node_tools(args: &Args, target: &Path) -> anyhow::Result<Option<PathBuf>> {
    if let Some(why) = node::impossible(&target.join("debug/pinniped-node")) {
        anyhow::ensure!(!args.require_all, "with --require-all nothing may be missing: {why}");
        eprintln!("note: tests with a real node are skipped: {why}");
        return Ok(None);
    }
    control_plane::node_tools::find_or_build(args.offline).map(Some)
}

/// Debian's programs, where they are to be had.
fn debian_tools(args: &Args) -> anyhow::Result<Option<PathBuf>> {
    match debian::find_or_fetch(args.offline) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if args.require_all => Err(error.context("with --require-all nothing may be missing")),
        Err(error) => {
            eprintln!("note: tests with Debian's kubectl 1.20 and busybox are skipped: {error:#}");
            Ok(None)
        }
    }
}

/// What this machine lacks for the whole set of tests.
fn missing_prerequisites() -> Vec<String> {
    let mut missing = Vec::new();
    let mut probe = cargo::in_world(Path::new("sh"));
    probe
        .args(["-c", r#"test "$PINNIPED_WORLD" = namespace || { echo "$PINNIPED_WORLD_MISSING"; exit 1; }"#]);
    match probe.stderr(Stdio::null()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => missing.push(format!(
            "no network namespace of our own, tests with pods are skipped ({})",
            String::from_utf8_lossy(&output.stdout).trim()
        )),
        Err(error) => missing.push(format!("tools/test-runner.sh does not run: {error}")),
    }
    for (program, package) in
        [("chroot", "coreutils"), ("mount", "mount"), ("setpriv", "util-linux"), ("perl", "perl")]
    {
        if Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            missing.push(format!("the program {program} is not in PATH (package {package})"));
        }
    }
    missing
}

fn summary(skips: &Path, passed: bool, start: Instant) {
    let skipped = std::fs::read_to_string(skips).unwrap_or_default();
    let mut lines: Vec<&str> = skipped.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    println!();
    println!("tests {} in {} s", if passed { "passed" } else { "FAILED" }, start.elapsed().as_secs());
    if lines.is_empty() {
        println!("nothing was skipped");
    } else {
        println!("skipped on this machine:");
        for line in lines {
            println!("  {line}");
        }
    }
}
