//! `cargo xtask fuzz`: runs the fuzz targets against the parsers of client input. CI only replays
//! the seeds (`--replay`).
//!
//! The targets are a separate workspace, `tools/fuzz/`, because they need a nightly compiler. Each
//! starts with the committed seeds and stores new inputs in `tools/fuzz/corpus/`, which is not
//! committed. A replay calls the same functions with the seeds, in a test; it needs neither the
//! fuzzer nor a sanitizer, and thus runs with the compiler of this project.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::cargo;

/// The toolchain: stable compilers do not support sanitizers.
const TOOLCHAIN: &str = "nightly";
/// The version of the program that runs the targets.
const CARGO_FUZZ: &str = "0.13.2";

/// Flags of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The targets to run, one after the other; without a name, all targets.
    targets: Vec<String>,
    /// Duration of each target. With 0, only the seeds and the corpus are run.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Only replay the seeds, with the compiler of this project: no fuzzer, no sanitizer.
    #[arg(long, conflicts_with_all = ["targets", "seconds"])]
    replay: bool,
    /// Do not access the network.
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.replay {
        replay(args.offline)?;
        return Ok(ExitCode::SUCCESS);
    }
    let known = targets()?;
    if let Some(unknown) = args.targets.iter().find(|target| !known.contains(target)) {
        anyhow::bail!("there is no fuzz target {unknown:?}; there are {}", known.join(", "));
    }
    let tools = cargo_fuzz(args.offline)?;
    let chosen = if args.targets.is_empty() { &known } else { &args.targets };
    // All targets in one build, because they share almost all code.
    let mut build = cargo_fuzz_command("build", &tools, args.offline);
    cargo::succeed(&mut build, "building the fuzz targets")?;
    for target in chosen {
        run_target(target, args, &tools)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Compiles the checks and calls them with all seeds.
fn replay(offline: bool) -> anyhow::Result<()> {
    let mut test = cargo::cargo(offline);
    test.args(["test", "--locked", "--lib", "--no-default-features", "--manifest-path"]);
    test.arg(folder().join("Cargo.toml"));
    // Most dependencies are already compiled there.
    test.arg("--target-dir").arg(cargo::target_dir()?);
    cargo::succeed(&mut test, "the replay of the seeds")
}

/// Returns the names of all files in `tools/fuzz/fuzz_targets`.
fn targets() -> anyhow::Result<Vec<String>> {
    let dir = folder().join("fuzz_targets");
    let entries = std::fs::read_dir(&dir).with_context(|| format!("could not list {}", dir.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> =
        files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
    names.sort_unstable();
    Ok(names)
}

fn folder() -> PathBuf {
    cargo::root().join("tools/fuzz")
}

/// Returns the folder with `cargo-fuzz`, which is installed once into the user's cache.
fn cargo_fuzz(offline: bool) -> anyhow::Result<PathBuf> {
    let root = crate::control_plane::cache_dir()?.join("cargo-tools");
    let bin = root.join("bin");
    let version = Command::new(bin.join("cargo-fuzz")).arg("--version").output();
    if version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(CARGO_FUZZ)) {
        return Ok(bin);
    }
    anyhow::ensure!(!offline, "cargo-fuzz {CARGO_FUZZ} is not installed; run this once with network");
    cargo::succeed(&mut cargo::install("cargo-fuzz", CARGO_FUZZ, &root)?, "installing cargo-fuzz")?;
    Ok(bin)
}

fn cargo_fuzz_command(subcommand: &str, tools: &Path, offline: bool) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(cargo::root()).args(["run", TOOLCHAIN, "cargo", "fuzz", subcommand]);
    command.arg("--fuzz-dir").arg(folder());
    // Variables that refer to the compiler and folders of this program's build do not apply to the
    // other toolchain.
    for variable in ["CARGO", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR", "RUSTC", "RUSTDOC", "RUSTFLAGS"] {
        command.env_remove(variable);
    }
    let mut path = tools.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path);
    if offline {
        command.env("CARGO_NET_OFFLINE", "true");
    }
    command
}

fn run_target(target: &str, args: &Args, tools: &Path) -> anyhow::Result<()> {
    let (corpus, seeds) = (folder().join("corpus").join(target), folder().join("seeds").join(target));
    std::fs::create_dir_all(&corpus).with_context(|| format!("could not create {}", corpus.display()))?;
    let mut command = cargo_fuzz_command("run", tools, args.offline);
    // The fuzzer writes new inputs to the first folder.
    command.arg(target).arg(&corpus).arg(&seeds).arg("--");
    let dictionary = folder().join("dict").join(format!("{target}.dict"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    // Long inputs find the same errors as short ones, only later.
    command.args(["-max_len=4096", "-timeout=10", "-print_final_stats=1"]);
    if args.seconds == 0 {
        command.arg("-runs=0");
    } else {
        command.arg(format!("-max_total_time={}", args.seconds));
    }
    cargo::succeed(&mut command, &format!("fuzz target {target}"))?;
    let kept = std::fs::read_dir(&corpus).map_or(0, Iterator::count);
    println!("{target}: nothing found, {kept} inputs in the corpus");
    Ok(())
}
