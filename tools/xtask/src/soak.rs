//! `cargo xtask soak`: builds all programs with optimizations and runs the soak program. The
//! nightly workflow runs it, because it takes too long for every change.

use std::process::ExitCode;

use crate::{cargo, control_plane};

/// Flags of `soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run mixed load and check memory, descriptors and threads, instead of a controller under
    /// restarts.
    #[arg(long)]
    mixed: bool,
    /// Rotate the serving certificate this number of times under load instead.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["mixed", "minutes"])]
    rotations: Option<u32>,
    /// Run attacks beside watches of another user instead; none of the watches may be closed.
    #[arg(long, conflicts_with_all = ["mixed", "rotations"], group = "seeded")]
    bystanders: bool,
    /// Send logins to three replicas of the Concierge instead, of which one is killed every ten
    /// seconds; no credential may have a wrong identity.
    #[arg(long, conflicts_with_all = ["mixed", "rotations", "minutes"], group = "seeded")]
    logins: bool,
    /// Number of logins of `--logins` [default: 20000].
    #[arg(long, requires = "logins")]
    count: Option<u32>,
    /// The seed of `--logins`, or of the first round of `--bystanders`, to repeat a run.
    #[arg(long, requires = "seeded")]
    seed: Option<u64>,
    /// Duration [default: 10 minutes for the controller, 30 for the mixed load and the bystanders].
    #[arg(long)]
    minutes: Option<u32>,
    /// Use the programs of the dev profile, to test the run itself and not the product.
    #[arg(long)]
    dev: bool,
    /// Do not access the network.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tools = control_plane::find_or_build(args.offline)?;
    let mut build = cargo::cargo(args.offline);
    build.args(["build", "--bins"]);
    for package in cargo::IMAGE_PACKAGES.iter().chain(&["pinniped-cli", "pinniped-soak"]) {
        build.args(["--package", package]);
    }
    let bins =
        if args.dev { cargo::target_dir()?.join("debug") } else { cargo::release_of_image(&mut build)? };
    cargo::succeed(&mut build, "building the programs")?;
    let mut command = cargo::in_world(&bins.join("pinniped-soak"));
    if let Some(count) = args.rotations {
        command.arg("rotations").arg("--count").arg(count.to_string());
    } else if args.bystanders {
        command.arg("bystanders");
    } else if args.logins {
        command.arg("logins");
    } else {
        command.arg(if args.mixed { "mixed" } else { "controller" });
    }
    let numbers = [
        ("--minutes", args.minutes.map(u64::from)),
        ("--count", args.count.map(u64::from)),
        ("--seed", args.seed),
    ];
    for (flag, number) in numbers {
        if let Some(number) = number {
            command.arg(flag).arg(number.to_string());
        }
    }
    command.env("PINNIPED_CONTROL_PLANE", tools).env("PINNIPED_BIN_DIR", bins);
    Err(cargo::become_program(&mut command))
}
