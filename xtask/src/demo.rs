//! `cargo xtask demo`: gets everything ready and runs the demo program in a world of its own.

use std::process::ExitCode;

use crate::{cargo, control_plane};

/// Flags of `demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave everything running at the end, until Ctrl-C, and say how to use it.
    #[arg(long)]
    keep: bool,
    /// Use only what is on this machine; say what is missing.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tools = control_plane::find_or_build(args.offline)?;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--quiet", "--bins"]);
    for package in ["pinniped-server", "pinniped-cli", "pinniped-e2e"] {
        build.args(["--package", package]);
    }
    eprintln!("building the programs (minutes on a fresh machine, a moment later) ...");
    cargo::succeed(&mut build, "building the programs")?;
    let bins = cargo::target_dir()?.join("debug");
    let mut command = cargo::in_world(&bins.join("pinniped-demo"));
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    if args.keep {
        command.arg("--keep");
    }
    Err(cargo::become_program(&mut command))
}
