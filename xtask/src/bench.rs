//! `cargo xtask bench`: builds everything optimised and runs the measuring program.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{cargo, control_plane};

/// Flags of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A short run: less exact figures, the same tables.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 when something that must hold does not.
    #[arg(long)]
    check: bool,
    /// Only these measures, comma separated; a wrong one lists them all.
    #[arg(long)]
    only: Option<String>,
    /// Only in front of this server: `api-server` or `stub`.
    #[arg(long)]
    behind: Option<String>,
    /// How often each measure is taken; the median counts.
    #[arg(long)]
    rounds: Option<usize>,
    /// Peers to leave out: `haproxy`.
    #[arg(long)]
    without: Option<String>,
    /// Measure this program instead of building one.
    #[arg(long)]
    concierge: Option<PathBuf>,
    /// Use only what is on this machine.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tools = control_plane::find_or_build(args.offline)?;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--release", "--bins", "--package", "pinniped-bench", "--package", "pinniped-cli"]);
    if args.concierge.is_none() {
        build.args(["--package", "pinniped-server"]);
    }
    cargo::succeed(&mut build, "building the measured programs")?;
    let bins = cargo::target_dir()?.join("release");
    let mut command = cargo::in_world(&bins.join("pinniped-bench"));
    let concierge = args.concierge.clone().unwrap_or_else(|| bins.join("pinniped-concierge"));
    command.arg("run").arg("--concierge").arg(std::path::absolute(concierge)?);
    command.arg("--pinniped").arg(bins.join("pinniped"));
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    for (flag, wanted) in [("--quick", args.quick), ("--check", args.check)] {
        if wanted {
            command.arg(flag);
        }
    }
    let rounds = args.rounds.map(|rounds| rounds.to_string());
    for (flag, value) in [
        ("--only", &args.only),
        ("--behind", &args.behind),
        ("--without", &args.without),
        ("--rounds", &rounds),
    ] {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    }
    Err(cargo::become_program(&mut command))
}
