//! Locates the control plane's programs, and the product's programs as cargo built them.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Environment variable with the folder of the control plane's programs; `cargo xtask test` and
/// `cargo xtask demo` set it.
pub const CONTROL_PLANE_ENV: &str = "PINNIPED_CONTROL_PLANE";
/// Environment variable with the folder of the product's programs, if it is not next to the test
/// executable.
pub const BIN_DIR_ENV: &str = "PINNIPED_BIN_DIR";
/// Environment variable with the folder of the programs of images, if it is not [`bin_dir`]: a node
/// can run the programs of a release.
pub const IMAGE_BIN_DIR_ENV: &str = "PINNIPED_IMAGE_BIN_DIR";
/// Environment variable. With `1`, a test that would be skipped or restricted on this machine fails
/// instead.
pub const REQUIRE_ALL_ENV: &str = "PINNIPED_REQUIRE_ALL";
/// Environment variable with a file to which every skip is written, one line each.
pub const SKIPS_ENV: &str = "PINNIPED_SKIPS";
/// Environment variable with the folder of `prometheus` and `promtool`; `cargo xtask test` and
/// `cargo xtask demo --observe` set it.
pub const PROMETHEUS_ENV: &str = "PINNIPED_PROMETHEUS";
/// Environment variable with the minor release of Kubernetes that `cargo xtask test --kube`
/// selects.
const RELEASE_ENV: &str = "PINNIPED_KUBERNETES_RELEASE";
/// The pinned minor release.
const PINNED_RELEASE: &str = "1.36";
/// File in the target folder in which `cargo xtask control-plane` stores the folder that it found.
const POINTER: &str = "control-plane.path";
/// The programs that the folder must contain.
const PROGRAMS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"];
/// The file of the Concierge, the gateway and the local-user-authenticator.
pub const SERVER: &str = "pinniped-server";
/// The commands of the product's containers, and for each the file of the program that an image has
/// under this name.
pub const COMMANDS: [(&str, &str); 4] = [
    ("pinniped-concierge", SERVER),
    ("local-user-authenticator", SERVER),
    ("pinniped-concierge-kube-cert-agent", "pinniped-concierge-kube-cert-agent"),
    ("pinniped-gateway", SERVER),
];

/// Returns the folder with etcd, kube-apiserver, kube-controller-manager and kubectl.
///
/// # Errors
/// Returns an error with the command that creates the folder when there is none.
pub fn control_plane() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(CONTROL_PLANE_ENV).map(PathBuf::from);
    let pointed = || {
        let executable = std::env::current_exe().ok()?;
        let pointer = executable.ancestors().map(|dir| dir.join(POINTER)).find(|file| file.is_file())?;
        Some(PathBuf::from(std::fs::read_to_string(pointer).ok()?.trim()))
    };
    let assets = || std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let dir = named
        .or_else(pointed)
        .or_else(assets)
        .context("no control plane is known: run `cargo xtask control-plane` once")?;
    for program in PROGRAMS {
        anyhow::ensure!(
            dir.join(program).is_file(),
            "{} has no {program}: run `cargo xtask control-plane`",
            dir.display()
        );
    }
    Ok(dir)
}

/// Returns the minor release of Kubernetes that the tests should run with, such as `1.36`.
#[must_use]
pub fn kubernetes_release() -> String {
    std::env::var(RELEASE_ENV).unwrap_or_else(|_| PINNED_RELEASE.to_owned())
}

/// Returns the path of a program of the product, such as `pinniped` or `pinniped-server`.
///
/// # Errors
/// Returns an error with the command that builds it when it is missing.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let file = bin_dir()?.join(name);
    anyhow::ensure!(
        file.is_file(),
        "{} is missing: run `cargo build --workspace --bins` (`cargo xtask test` does)",
        file.display()
    );
    Ok(file)
}

/// Returns the folder with the product's programs.
///
/// # Errors
/// Returns an error when this executable is not in a cargo target folder and [`BIN_DIR_ENV`] is not
/// set.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os(BIN_DIR_ENV) {
        return Ok(PathBuf::from(dir));
    }
    let executable = std::env::current_exe().context("could not find this executable")?;
    let dir = executable.parent().context("this executable has no folder")?;
    Ok(if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir }.to_owned())
}

/// Returns the folder with the programs of images.
///
/// # Errors
/// Returns an error as [`bin_dir`] does.
pub fn image_bin_dir() -> anyhow::Result<PathBuf> {
    std::env::var_os(IMAGE_BIN_DIR_ENV).map_or_else(bin_dir, |dir| Ok(PathBuf::from(dir)))
}

/// Returns the path of `promtool` for a test. Returns `None` and records a skip where it is not
/// built.
#[must_use]
pub fn promtool(test: &str) -> Option<PathBuf> {
    let found = std::env::var_os(PROMETHEUS_ENV).map(|dir| PathBuf::from(dir).join("promtool"));
    if found.is_none() {
        skip(test, "no promtool: `cargo xtask test` builds it");
    }
    found
}

/// The root of the source tree, which contains `deploy/` and `testdata/`.
#[must_use]
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Returns the path of a program in `PATH`.
#[must_use]
pub fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Whether skips and restrictions are errors.
#[must_use]
pub fn require_all() -> bool {
    std::env::var_os(REQUIRE_ALL_ENV).is_some_and(|v| v == "1")
}

/// Records that `what` is skipped on this machine because of `why`: on standard error, and in the
/// summary of `cargo xtask test`.
///
/// # Panics
/// Panics when everything is required ([`REQUIRE_ALL_ENV`]).
pub fn skip(what: &str, why: &str) {
    assert!(!require_all(), "{what} may not be skipped: {why}");
    permitted_skip(what, why);
}

/// Returns the path that `cargo xtask test` has set in an environment variable after it built a
/// program. Without it, records that `what` is skipped.
#[must_use]
pub fn built(variable: &str, program: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        skip(what, &format!("no {program}: `cargo xtask test` builds it"));
    }
    path
}

/// Returns the path of Helm. Without it, records that `what` is skipped.
#[must_use]
pub fn helm(what: &str) -> Option<PathBuf> {
    built("PINNIPED_HELM", "Helm", what)
}

/// Records a skip that is an error nowhere: the caller has named the reason in an environment
/// variable, because this kind of system cannot run `what`.
pub fn permitted_skip(what: &str, why: &str) {
    // The test harness would capture the output of eprintln.
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}: {why}");
    if let Some(file) = std::env::var_os(SKIPS_ENV)
        && let Ok(mut file) = std::fs::File::options().create(true).append(true).open(file)
    {
        let _ = writeln!(file, "{what}: {why}");
    }
}
