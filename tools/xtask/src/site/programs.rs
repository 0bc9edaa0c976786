//! mdBook, and its preprocessor for diagrams, which contains the script that draws them in the
//! browser. Both are installed once from crates.io into the user's cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::cargo;
use crate::control_plane::cache_dir;

/// A program that cargo installs.
struct Program {
    name: &'static str,
    version: &'static str,
    flags: &'static [&'static str],
}

const PROGRAMS: [Program; 2] = [
    // Without the features `watch` and `serve`, which compile a web server.
    Program { name: "mdbook", version: "0.5.4", flags: &["--no-default-features", "--features", "search"] },
    Program { name: "mdbook-mermaid", version: "0.17.1", flags: &[] },
];

/// The folder with the programs.
pub(super) struct Programs(PathBuf);

impl Programs {
    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns a command for a program, which finds the other one in its `PATH`.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut path = OsString::from(&self.0);
        if let Some(rest) = std::env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        let mut command = Command::new(self.0.join(name));
        command.env("PATH", path);
        command
    }
}

/// Finds the programs in the cache, or installs them.
pub(super) fn find_or_install(offline: bool) -> anyhow::Result<Programs> {
    let tools = cache_dir()?.join("cargo-tools");
    let programs = Programs(tools.join("bin"));
    for program in &PROGRAMS {
        if programs.has(program) {
            continue;
        }
        anyhow::ensure!(
            !offline,
            "{} {} is not installed: run this once without --offline",
            program.name,
            program.version
        );
        eprintln!("installing {} {} (some minutes, once) ...", program.name, program.version);
        let mut install = cargo::install(program.name, program.version, &tools)?;
        cargo::succeed(install.args(program.flags), program.name).context("could not install a program")?;
    }
    Ok(programs)
}

impl Programs {
    /// Reports whether the folder has a program in its pinned version.
    fn has(&self, program: &Program) -> bool {
        let output = Command::new(self.0.join(program.name)).arg("--version").output();
        output
            .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim_end().ends_with(program.version))
    }
}
