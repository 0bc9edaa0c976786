//! `cargo xtask workflows`: checks the workflows in `.github` with `actionlint`: the syntax, the
//! expressions, and the inputs of GitHub's own actions.

use std::process::{Command, ExitCode};

use crate::cargo;
use crate::control_plane::actionlint;

/// Flags of `workflows`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(actionlint::find_or_build(args.offline)?);
    // Without the programs for scripts and Python, which this machine may or may not have.
    command.current_dir(cargo::root()).args(["-color=false", "-shellcheck=", "-pyflakes="]);
    Ok(if cargo::status(&mut command)?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
