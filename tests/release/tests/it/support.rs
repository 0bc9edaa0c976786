//! Runs programs and waits for servers.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pinniped_test_support::tools;

/// The variable that makes artifacts reproducible, and the time that tests set.
const EPOCH: (&str, &str) = ("SOURCE_DATE_EPOCH", "1700000000");
/// Variables of GitHub's runners that end up in provenance.
const GITHUB: [&str; 4] = ["GITHUB_SERVER_URL", "GITHUB_WORKFLOW_REF", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"];

/// Environment variable with the path of the registry; `cargo xtask test` sets it.
pub(crate) const REGISTRY: &str = "PINNIPED_REGISTRY";

/// The version of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The processor of this machine in the names of packages and images.
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Runs `cargo xtask` without network.
pub(crate) fn xtask(args: &[&str]) -> Output {
    let mut command = Command::new(tools::binary("xtask").unwrap());
    command.args(args).arg("--offline").env(EPOCH.0, EPOCH.1);
    for name in GITHUB {
        command.env_remove(name);
    }
    command.output().unwrap()
}

/// Whether the tools that Go builds are in the cache, where `cargo xtask` finds them. Records a
/// skip otherwise.
pub(crate) fn tools_are_built(test: &str) -> bool {
    // `cargo xtask test` sets it after it has built all of them.
    let built = std::env::var_os(REGISTRY).is_some();
    if !built {
        tools::skip(test, "no Helm, crane and registry: `cargo xtask test` builds them");
    }
    built
}

/// Whether this machine has the programs that build a Debian package. Records a skip otherwise.
pub(crate) fn can_package(test: &str) -> bool {
    let missing = ["dpkg-deb", "dpkg-shlibdeps"].into_iter().find(|name| tools::in_path(name).is_none());
    if let Some(name) = missing {
        tools::skip(test, &format!("{name} is not in PATH (package dpkg-dev)"));
    }
    missing.is_none()
}

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    text(&output, &format!("{command:?}"))
}

/// Returns the standard output of a command that succeeded.
pub(crate) fn text(output: &Output, what: &str) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {errors}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns a program of this machine, or records a skip.
pub(crate) fn program(name: &str, test: &str) -> Option<PathBuf> {
    let found = tools::in_path(name);
    if found.is_none() {
        tools::permitted_skip(test, &format!("{name} is not in PATH"));
    }
    found
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
