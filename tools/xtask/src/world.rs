//! `cargo xtask world`: keeps a control plane ready for the tests of a developer.
//!
//! A test executable takes it when it starts (see `tools/test-runner.sh`), and the next one is
//! started at once. Each test executable thus gets a new control plane without waiting for it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ExitCode, Stdio};

use anyhow::Context as _;

use crate::{cargo, control_plane};

/// Environment variable with the folder in which the control planes are announced.
const ENV: &str = "PINNIPED_PREPARED_WORLDS";
/// The program that starts one control plane.
const PROGRAM: &str = "pinniped-prepared-world";

/// Flags of `world`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tools = control_plane::find_or_build(args.offline)?;
    // All programs, as for the tests: some of the tests need them.
    let mut build = cargo::cargo(args.offline);
    cargo::succeed(build.args(["build", "--workspace", "--bins"]), "building the programs")?;
    let target = cargo::target_dir()?;
    let folder = target.join("prepared-worlds");
    std::fs::remove_dir_all(&folder).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error).with_context(|| format!("could not empty {}", folder.display())),
    })?;
    std::fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    let program = target.join("debug").join(PROGRAM);
    let mut used: Vec<Child> = Vec::new();
    for count in 1.. {
        let mut command = cargo::in_world(&program);
        // The pipe closes when this process ends, and then the program ends.
        command
            .arg(&folder)
            .env("PINNIPED_CONTROL_PLANE", &tools)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("could not start a control plane")?;
        let stdout = child.stdout.take().context("the control plane has no standard output")?;
        let mut news = BufReader::new(stdout).lines();
        await_line(&mut news, &mut child, "ready")?;
        if count == 1 {
            println!("A control plane is ready. In another terminal:\n");
            println!("  export {ENV}={}", folder.display());
            println!("  export PINNIPED_CONTROL_PLANE={}", tools.display());
            println!("  export PINNIPED_BIN_DIR={}", target.join("debug").display());
            println!("  cargo test --package pinniped-concierge-controllers --test it NAME\n");
            println!(
                "Each test executable uses one, and the next one starts. Press Ctrl-C to stop all of them."
            );
        } else {
            println!("control plane {count} is ready");
        }
        await_line(&mut news, &mut child, "in use")?;
        println!("control plane {count} is in use");
        used.push(child);
        // Those whose test executable has finished.
        used.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for a line of the program that starts a control plane.
fn await_line(
    news: &mut impl Iterator<Item = std::io::Result<String>>,
    child: &mut Child,
    wanted: &str,
) -> anyhow::Result<()> {
    for line in news {
        if line.context("could not read from a control plane")? == wanted {
            return Ok(());
        }
    }
    let status = child.wait().context("could not wait for a control plane")?;
    anyhow::bail!("a control plane that should be {wanted} has ended ({status})")
}
