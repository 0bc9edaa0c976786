//! `cargo xtask control-plane`: the programs of one pinned Kubernetes release.
//!
//! Each program is looked for in `KUBEBUILDER_ASSETS` and in `PATH` and taken when it is of the pinned minor
//! release; what is missing is built once by the Go toolchain from `tools/control-plane/go.mod` into a cache of
//! the user, under a name made of the version, the module file and the build flags. Two builders at the same
//! time wait for each other; a build that was broken off leaves nothing that looks finished.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::FlockOperation;

use crate::cargo;

mod build;

/// Flags of `control-plane`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use only what is on this machine; say what is missing.
    #[arg(long)]
    offline: bool,
}

/// A program, its Go package, and how it tells its version.
struct Tool {
    name: &'static str,
    package: &'static str,
    version_args: &'static [&'static str],
    /// What its version must begin with; `None`: the pinned Kubernetes minor release.
    version: Option<&'static str>,
}

const TOOLS: [Tool; 4] = [
    Tool {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        version_args: &["--version"],
        version: Some("3."),
    },
    Tool {
        name: "kube-apiserver",
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        version_args: &["--version"],
        version: None,
    },
    Tool {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        version_args: &["--version"],
        version: None,
    },
    Tool {
        name: "kubectl",
        package: "k8s.io/kubernetes/cmd/kubectl",
        version_args: &["version", "--client"],
        version: None,
    },
];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    println!("{}", find_or_build(args.offline)?.display());
    Ok(ExitCode::SUCCESS)
}

/// The folder with all programs. Also writes it to `control-plane.path` in the target folder, where tests that
/// are run by plain `cargo test` find it.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = cargo::root().join("tools/control-plane");
    let version = kubernetes_version(&module.join("go.mod"))?;
    let dir = if let Some(dir) = found(&version) { dir } else { cached(&module, &version, offline)? };
    let pointer = cargo::target_dir()?.join("control-plane.path");
    std::fs::write(&pointer, format!("{}\n", dir.display()))
        .with_context(|| format!("could not write {}", pointer.display()))?;
    Ok(dir)
}

/// The release that `go.mod` pins, such as `v1.36.3`.
fn kubernetes_version(go_mod: &Path) -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string(go_mod).with_context(|| format!("could not read {}", go_mod.display()))?;
    text.lines()
        .find_map(|line| line.trim().trim_start_matches("require ").strip_prefix("k8s.io/kubernetes "))
        .and_then(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .with_context(|| format!("{} does not require k8s.io/kubernetes", go_mod.display()))
}

/// `v1.36.3` -> `1.36.`.
fn minor_prefix(version: &str) -> String {
    let mut parts = version.trim_start_matches('v').splitn(3, '.');
    format!("{}.{}.", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// One folder of `KUBEBUILDER_ASSETS` or `PATH` that has all programs in fitting versions. Folders that have
/// only some are named, so that nobody wonders why they are not used.
fn found(version: &str) -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    assets.iter().cloned().chain(std::env::split_paths(&path)).find(|dir| {
        if !dir.join("kube-apiserver").is_file() && Some(dir) != assets.as_ref() {
            return false;
        }
        let unfit: Vec<String> = TOOLS.iter().filter_map(|tool| unfit(dir, tool, version)).collect();
        if !unfit.is_empty() {
            eprintln!("not using {}: {}", dir.display(), unfit.join(", "));
        }
        unfit.is_empty()
    })
}

/// Why a program of a folder cannot be used.
fn unfit(dir: &Path, tool: &Tool, version: &str) -> Option<String> {
    let file = dir.join(tool.name);
    if !file.is_file() {
        return Some(format!("no {}", tool.name));
    }
    let Ok(output) = Command::new(&file).args(tool.version_args).output() else {
        return Some(format!("{} does not run", tool.name));
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let wanted = tool.version.map_or_else(|| minor_prefix(version), str::to_owned);
    let fits = text
        .split_whitespace()
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .is_some_and(|word| word.starts_with(&wanted));
    (!fits).then(|| format!("{} is not {wanted}x", tool.name))
}

/// The folder of the user's cache for this version and these flags, filled when it is not there yet.
fn cached(module: &Path, version: &str, offline: bool) -> anyhow::Result<PathBuf> {
    let cache = cache_dir()?;
    let key = format!("{version}-{:016x}", build::fingerprint(module, version)?);
    let dir = cache.join(&key);
    if dir.is_dir() {
        return Ok(dir);
    }
    let remedy = || {
        format!(
            "could not use the cache folder {}; name a writable one in XDG_CACHE_HOME, or put the programs of \
             Kubernetes {version} into a folder and name it in KUBEBUILDER_ASSETS",
            cache.display()
        )
    };
    std::fs::create_dir_all(&cache).with_context(remedy)?;
    let lock = std::fs::File::create(cache.join(format!("{key}.lock"))).with_context(remedy)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("another build of the control plane is running, waiting for it ...");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .context("could not wait for the other build")?;
        if dir.is_dir() {
            return Ok(dir);
        }
    }
    remove_leftovers(&cache, &key);
    let unfinished = cache.join(format!("{key}.unfinished-{}", std::process::id()));
    std::fs::create_dir(&unfinished).with_context(remedy)?;
    let start = Instant::now();
    let built = build::build(module, version, &unfinished, offline);
    let finished = built.and_then(|()| {
        std::fs::rename(&unfinished, &dir).with_context(|| format!("could not make {}", dir.display()))
    });
    if finished.is_err() {
        // What was broken off is of no use; Go's own cache keeps what was compiled.
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    finished?;
    for tool in &TOOLS {
        let bytes = std::fs::metadata(dir.join(tool.name)).map_or(0, |m| m.len());
        eprintln!("  {:<24} {:>4} MB", tool.name, bytes / 1_000_000);
    }
    eprintln!("control plane built in {}", elapsed(start.elapsed()));
    Ok(dir)
}

/// `$XDG_CACHE_HOME/pinniped-rs/control-plane`, or below `~/.cache`.
fn cache_dir() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home =
        || std::env::var_os("HOME").filter(|v| !v.is_empty()).map(|home| PathBuf::from(home).join(".cache"));
    let base = base.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set: name a cache folder")?;
    Ok(base.join("pinniped-rs/control-plane"))
}

/// Builds that were killed; we hold the lock, so none of them is alive.
fn remove_leftovers(cache: &Path, key: &str) {
    let prefix = format!("{key}.unfinished-");
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// `1m05s`.
fn elapsed(duration: Duration) -> String {
    format!("{}m{:02}s", duration.as_secs() / 60, duration.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_module_file() {
        let version = kubernetes_version(&cargo::root().join("tools/control-plane/go.mod")).unwrap();
        assert_eq!(minor_prefix(&version), "1.36.");
    }

    #[test]
    fn a_program_of_another_release_is_unfit() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = std::env::temp_dir().join(format!("pinniped-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let table =
            [("Kubernetes v1.36.1", None), ("Kubernetes v1.3.6", Some("kube-apiserver is not 1.36.x"))];
        for (says, wanted) in table {
            let file = dir.join("kube-apiserver");
            std::fs::write(&file, format!("#!/bin/sh\necho {says}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(unfit(&dir, &TOOLS[1], "v1.36.3").as_deref(), wanted);
        }
        assert_eq!(unfit(&dir, &TOOLS[0], "v1.36.3").as_deref(), Some("no etcd"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn elapsed_times_read_well() {
        assert_eq!(elapsed(Duration::from_secs(65)), "1m05s");
    }
}
