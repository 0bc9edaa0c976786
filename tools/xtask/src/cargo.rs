//! Runs cargo and the programs that it built.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use anyhow::Context as _;

/// The root of the source tree.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The packages of the programs in an image.
pub(crate) const IMAGE_PACKAGES: [&str; 2] = [SERVER, "pinniped-kube-cert-agent"];

/// The program of the Concierge, the gateway and the local-user-authenticator, and its package.
pub(crate) const SERVER: &str = "pinniped-server";

/// Returns cargo's target folder, which contains this program.
pub(crate) fn target_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("CARGO_TARGET_DIR") {
        return Ok(root().join(dir));
    }
    let executable = std::env::current_exe().context("could not find this executable")?;
    let dir = executable.ancestors().nth(2).context("this executable is not in a target folder")?;
    Ok(dir.to_owned())
}

/// Returns a command for the cargo that runs this program, in the source tree.
pub(crate) fn cargo(offline: bool) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    if offline {
        command.env("CARGO_NET_OFFLINE", "true");
    }
    command
}

/// Returns a command that installs a program from crates.io below a folder. All programs share the
/// folder for intermediate files, because they share dependencies; `.ci/run` uses the same one.
pub(crate) fn install(name: &str, version: &str, root: &Path) -> anyhow::Result<Command> {
    let mut install = cargo(false);
    install.args(["install", name, "--version", version, "--locked", "--root"]).arg(root);
    install.arg("--target-dir").arg(target_dir()?.join("cargo-tools"));
    Ok(install)
}

/// Runs a command with this process's terminal until it exits.
pub(crate) fn status(command: &mut Command) -> anyhow::Result<ExitStatus> {
    command.status().with_context(|| format!("could not start {}", command.get_program().display()))
}

/// Runs a command, which must succeed.
pub(crate) fn succeed(command: &mut Command, what: &str) -> anyhow::Result<()> {
    let status = status(command)?;
    anyhow::ensure!(status.success(), "{what} failed ({status})");
    Ok(())
}

/// Runs a command that must succeed and returns its output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("could not start {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program} failed ({}): {}", output.status, errors.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed text that is not UTF-8"))
}

/// The target of this machine, on the systems where this program runs.
pub(crate) const HOST_TARGET: &str = match (cfg!(target_os = "macos"), cfg!(target_arch = "aarch64")) {
    (false, false) => "x86_64-unknown-linux-gnu",
    (false, true) => "aarch64-unknown-linux-gnu",
    (true, false) => "x86_64-apple-darwin",
    (true, true) => "aarch64-apple-darwin",
};

/// Returns the target with a static C library, if the toolchain has it and this machine has a C
/// compiler for it.
pub(crate) fn static_target() -> Option<&'static str> {
    let target = match HOST_TARGET {
        "aarch64-unknown-linux-gnu" => "aarch64-unknown-linux-musl",
        "x86_64-unknown-linux-gnu" => "x86_64-unknown-linux-musl",
        _ => return None,
    };
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let folder =
        output(rustc.current_dir(root()).args(["--print=target-libdir", "--target", target])).ok()?;
    let compiler = Command::new("musl-gcc").arg("--version").output();
    (Path::new(folder.trim()).is_dir() && compiler.is_ok()).then_some(target)
}

/// Makes a command build release programs of the image, statically linked with glibc if `libc.a` is
/// installed, which reduces their resident memory. Returns the folder of the programs.
pub(crate) fn release_of_image(build: &mut Command) -> anyhow::Result<PathBuf> {
    build.arg("--release");
    let mut folder = target_dir()?;
    if is_static_glibc_installed() {
        build.args(["--config", "build/static.toml", "--target", HOST_TARGET]);
        folder.push(HOST_TARGET);
    }
    folder.push("release");
    Ok(folder)
}

fn is_static_glibc_installed() -> bool {
    let output = Command::new("cc").arg("-print-file-name=libc.a").output();
    // Without the file, the output is the name only.
    let is_installed = |output: Output| String::from_utf8_lossy(&output.stdout).contains('/');
    HOST_TARGET.ends_with("-linux-gnu") && output.is_ok_and(is_installed)
}

/// Replaces this process by another program, so that Ctrl-C and the exit status are the program's.
/// Returns only on an error.
pub(crate) fn become_program(command: &mut Command) -> anyhow::Error {
    let error = command.exec();
    anyhow::Error::new(error).context(format!("could not start {}", command.get_program().display()))
}

/// Returns a command that runs a program in its own network namespace where the machine allows
/// that.
pub(crate) fn in_world(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg(root().join("tools/test-runner.sh")).arg("--world").arg(program);
    command
}
