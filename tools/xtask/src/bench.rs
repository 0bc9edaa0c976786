//! `cargo xtask bench`: builds all programs with optimizations and runs the benchmark program.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{cargo, control_plane};

/// Flags of `bench`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<Program>,
    #[command(flatten)]
    concierge: ConciergeArgs,
}

/// The measured program, if it is not the impersonation proxy.
#[derive(clap::Subcommand)]
enum Program {
    /// The ingress gateway, against HAProxy and nginx.
    Gateway(GatewayArgs),
    /// Logins with a webhook and with ID tokens: the CPU of the Concierge for each.
    Login(LoginArgs),
    /// The credential plugin: CPU time and memory of one run.
    Plugin(PluginArgs),
}

/// Flags of all runs.
#[derive(clap::Args)]
struct Common {
    /// Run for a short time: the same tables with less exact figures.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a requirement is not met.
    #[arg(long)]
    check: bool,
    /// Do not access the network.
    #[arg(long)]
    offline: bool,
}

impl Common {
    fn pass_on(&self, command: &mut Command) {
        for (flag, wanted) in [("--quick", self.quick), ("--check", self.check)] {
            if wanted {
                command.arg(flag);
            }
        }
    }
}

/// Flags of the runs that compare the program with other servers.
#[derive(clap::Args)]
struct ComparisonArgs {
    #[command(flatten)]
    common: Common,
    /// Run only these measures, comma separated; an invalid name lists all measures.
    #[arg(long)]
    only: Option<String>,
    /// Number of repetitions of each measure; the median is reported.
    #[arg(long)]
    rounds: Option<usize>,
    /// Peers to leave out, comma separated: `haproxy`, and for the gateway `nginx`.
    #[arg(long)]
    without: Option<String>,
}

impl ComparisonArgs {
    fn pass_on(&self, command: &mut Command) {
        self.common.pass_on(command);
        let rounds = self.rounds.map(|rounds| rounds.to_string());
        for (flag, value) in [("--only", &self.only), ("--without", &self.without), ("--rounds", &rounds)] {
            if let Some(value) = value {
                command.arg(flag).arg(value);
            }
        }
    }
}

/// Flags of the run that measures the impersonation proxy.
#[derive(clap::Args)]
struct ConciergeArgs {
    #[command(flatten)]
    comparison: ComparisonArgs,
    /// Only in front of this server: `api-server` or `stub`.
    #[arg(long)]
    behind: Option<String>,
    /// Measure this program instead of building one.
    #[arg(long)]
    concierge: Option<PathBuf>,
}

/// Flags of the run that measures logins.
#[derive(clap::Args)]
struct LoginArgs {
    #[command(flatten)]
    common: Common,
    /// Measure this program instead of building one.
    #[arg(long)]
    concierge: Option<PathBuf>,
}

/// Flags of the run that measures the credential plugin.
#[derive(clap::Args)]
struct PluginArgs {
    #[command(flatten)]
    common: Common,
    /// Measure this program instead of building one.
    #[arg(long)]
    pinniped: Option<PathBuf>,
}

/// Flags of the run that measures the gateway.
#[derive(clap::Args)]
struct GatewayArgs {
    #[command(flatten)]
    comparison: ComparisonArgs,
    /// Measure this program instead of building one.
    #[arg(long)]
    gateway: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        None => concierge(&args.concierge),
        Some(Program::Gateway(args)) => gateway(args),
        Some(Program::Login(args)) => login(args),
        Some(Program::Plugin(args)) => plugin(args),
    }
}

fn concierge(args: &ConciergeArgs) -> anyhow::Result<ExitCode> {
    let offline = args.comparison.common.offline;
    let tools = control_plane::find_or_build(offline)?;
    let concierge = server(offline, args.concierge.as_deref())?;
    let bins = build(offline, ["pinniped-cli", "pinniped-bench"])?;
    let mut command = cargo::in_world(&bins.join("pinniped-bench"));
    command.arg("run").arg("--concierge").arg(concierge);
    command.arg("--pinniped").arg(bins.join("pinniped"));
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    args.comparison.pass_on(&mut command);
    if let Some(behind) = &args.behind {
        command.arg("--behind").arg(behind);
    }
    Err(cargo::become_program(&mut command))
}

fn login(args: &LoginArgs) -> anyhow::Result<ExitCode> {
    let tools = control_plane::find_or_build(args.common.offline)?;
    let concierge = server(args.common.offline, args.concierge.as_deref())?;
    let bins = build(args.common.offline, ["pinniped-bench"])?;
    let mut command = cargo::in_world(&bins.join("pinniped-bench"));
    command.arg("login").arg("--concierge").arg(concierge);
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    args.common.pass_on(&mut command);
    Err(cargo::become_program(&mut command))
}

fn plugin(args: &PluginArgs) -> anyhow::Result<ExitCode> {
    let measured = args.pinniped.is_none().then_some("pinniped-cli");
    let bins = build(args.common.offline, measured.into_iter().chain(["pinniped-bench"]))?;
    let mut command = Command::new(bins.join("pinniped-bench"));
    let pinniped = args.pinniped.clone().unwrap_or_else(|| bins.join("pinniped"));
    command.arg("plugin").arg("--pinniped").arg(std::path::absolute(pinniped)?);
    args.common.pass_on(&mut command);
    Err(cargo::become_program(&mut command))
}

fn gateway(args: &GatewayArgs) -> anyhow::Result<ExitCode> {
    let offline = args.comparison.common.offline;
    let tools = control_plane::find_or_build(offline)?;
    let gateway = server(offline, args.gateway.as_deref())?;
    let bins = build(offline, ["pinniped-bench"])?;
    let mut command = cargo::in_world(&bins.join("pinniped-bench"));
    command.arg("gateway").arg("--gateway").arg(gateway);
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", &bins);
    args.comparison.pass_on(&mut command);
    Err(cargo::become_program(&mut command))
}

/// Builds the programs of these packages, each by itself: cargo gives all packages of one command
/// the features that any of them needs, and the measured program must not have those of the tools.
/// Returns the folder of the programs.
fn build<'a>(offline: bool, packages: impl IntoIterator<Item = &'a str>) -> anyhow::Result<PathBuf> {
    for package in packages {
        let mut build = of_package(offline, package);
        build.arg("--release");
        cargo::succeed(&mut build, &format!("building {package}"))?;
    }
    Ok(cargo::target_dir()?.join("release"))
}

/// Returns the path of the server program to measure: the given one, or that of a new build as for
/// an image of a release.
fn server(offline: bool, given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(std::path::absolute(given)?);
    }
    let mut build = of_package(offline, cargo::SERVER);
    let bins = cargo::release_of_image(&mut build)?;
    cargo::succeed(&mut build, &format!("building {}", cargo::SERVER))?;
    Ok(bins.join(cargo::SERVER))
}

fn of_package(offline: bool, package: &str) -> Command {
    let mut build = cargo::cargo(offline);
    build.args(["build", "--bins", "--package", package]);
    build
}
