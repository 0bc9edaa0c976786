//! `cargo xtask bench`: builds everything optimised and runs the measuring program.

use std::process::ExitCode;

use crate::{cargo, control_plane};

/// Flags of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A short run: less exact figures, the same table.
    #[arg(long)]
    quick: bool,
    /// Use only what is on this machine.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tools = control_plane::find_or_build(args.offline)?;
    let mut build = cargo::cargo(args.offline);
    build.args([
        "build",
        "--release",
        "--bins",
        "--package",
        "pinniped-server",
        "--package",
        "pinniped-bench",
    ]);
    cargo::succeed(&mut build, "building the measured programs")?;
    let bins = cargo::target_dir()?.join("release");
    let mut command = cargo::in_world(&bins.join("pinniped-bench"));
    command.arg("run").arg("--concierge").arg(bins.join("pinniped-concierge"));
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    if args.quick {
        command.arg("--quick");
    }
    Err(cargo::become_program(&mut command))
}
