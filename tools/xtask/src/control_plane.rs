//! Programs of others that are fetched or built once: those of the pinned Kubernetes release
//! (`cargo xtask control-plane`), and tools for tests and releases.
//!
//! The command `control-plane` searches `KUBEBUILDER_ASSETS` and `PATH` for programs of the pinned
//! minor release. It builds missing programs once with the Go toolchain from
//! `tools/third-party/control-plane/go.mod` into a user's cache, whose key consists of the version,
//! the module file and the build flags. Concurrent builders wait for each other; an interrupted
//! build leaves nothing that looks complete. With `--download`, the published programs are
//! downloaded instead ([`download`]), so that no Go is needed.
//!
//! A node's programs ([`node_tools`]) are built into the same folder when a node is requested.
//! Third-party programs are fetched or built only for commands that need them: [`debian`]'s for the
//! tests that compare with them, [`cert_manager`] and [`yq`] for tests and demo of externally
//! issued certificates, [`contour`] and [`envoy`] for those with another ingress in place of our
//! gateway, [`keycloak`] and [`oidc_provider`] for logins at an identity provider, [`helm`] for the
//! chart, [`crane`] and [`registry`] for pushing images, [`actionlint`] for the workflows,
//! [`prometheus`] and [`prometheus_ui`] for metrics and rules.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;

use crate::cargo;
use cache::cached;
use module::Module;

pub(crate) use module::KubernetesRelease;

pub(crate) mod actionlint;
mod build;
mod cache;
pub(crate) mod cert_manager;
pub(crate) mod contour;
pub(crate) mod crane;
pub(crate) mod debian;
mod download;
pub(crate) mod envoy;
pub(crate) mod helm;
pub(crate) mod informer;
pub(crate) mod keycloak;
mod module;
pub(crate) mod node_tools;
mod nodejs;
pub(crate) mod oidc_provider;
pub(crate) mod otel_collector;
pub(crate) mod prometheus;
pub(crate) mod prometheus_ui;
pub(crate) mod registry;
pub(crate) mod yq;

/// Flags of `control-plane`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
    /// Minor release of Kubernetes.
    #[arg(long, value_enum, default_value_t, conflicts_with = "download")]
    kube: KubernetesRelease,
    /// Download the published programs if they are missing, instead of building them with Go.
    #[arg(long)]
    download: bool,
}

/// A program, its Go package, and the arguments that print its version.
#[derive(Clone, Copy)]
struct Tool {
    name: &'static str,
    package: &'static str,
    version_args: &'static [&'static str],
    /// The required prefix of its version; `None` is the pinned Kubernetes minor release.
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
    let dir = if args.download {
        find_or_download(args.offline)?
    } else {
        find_or_build_release(args.kube, args.offline)?
    };
    println!("{}", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the folder with all programs of the pinned release.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    find_or_build_release(KubernetesRelease::default(), offline)
}

/// Returns the folder with all programs of a release. Also writes the folder of the pinned release
/// to `control-plane.path` in the target folder, for tests that run with plain `cargo test`.
pub(crate) fn find_or_build_release(release: KubernetesRelease, offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::kubernetes(release)?;
    let dir = match found(&TOOLS, &module.version) {
        Some(dir) => dir,
        None => cached(&module, "control plane", &TOOLS, offline)?,
    };
    if release == KubernetesRelease::default() {
        write_pointer(&dir)?;
    }
    Ok(dir)
}

/// Returns the folder with all programs of the pinned minor release. They are downloaded if they
/// are neither installed nor built before.
pub(crate) fn find_or_download(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::kubernetes(KubernetesRelease::default())?;
    let dir = match found(&TOOLS, &module.version) {
        Some(dir) => dir,
        None => match cache::built(&module, &TOOLS)? {
            Some(dir) => dir,
            None => download::find_or_download(&module.version, offline)?,
        },
    };
    write_pointer(&dir)?;
    Ok(dir)
}

/// Writes the folder of the pinned release to the file that plain `cargo test` reads.
fn write_pointer(dir: &Path) -> anyhow::Result<()> {
    let pointer = cargo::target_dir()?.join("control-plane.path");
    std::fs::write(&pointer, format!("{}\n", dir.display()))
        .with_context(|| format!("could not write {}", pointer.display()))
}

/// Returns the folder in which built or installed programs are cached for this user.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    cache::dir()
}

/// Runs a command without input, which must succeed. The error has the last lines of its output.
pub(crate) fn succeed(command: &mut Command, what: &str) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("could not run {what}"))?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(10)..].join("\n");
    anyhow::ensure!(output.status.success(), "{what} failed ({}):\n{last}", output.status);
    Ok(())
}

/// Returns the prefix of a minor release: `v1.36.3` -> `1.36.`.
fn minor_prefix(version: &str) -> String {
    let mut parts = version.trim_start_matches('v').splitn(3, '.');
    format!("{}.{}.", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// Returns a folder of `KUBEBUILDER_ASSETS` or `PATH` that contains all programs in matching
/// versions. Folders with only some of them are reported with the reason why they are not used.
fn found(tools: &[Tool], version: &str) -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    assets.iter().cloned().chain(std::env::split_paths(&path)).find(|dir| {
        if !dir.join("kube-apiserver").is_file() && Some(dir) != assets.as_ref() {
            return false;
        }
        let unfit: Vec<String> = tools.iter().filter_map(|tool| unfit(dir, tool, version)).collect();
        if !unfit.is_empty() {
            eprintln!("not using {}: {}", dir.display(), unfit.join(", "));
        }
        unfit.is_empty()
    })
}

/// Returns the reason why a program of a folder is unusable.
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

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn each_release_has_a_module_file_with_its_version() {
        for release in KubernetesRelease::value_variants() {
            let name = release.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(name, release.name());
            assert_eq!(minor_prefix(&Module::kubernetes(*release).unwrap().version), format!("{name}."));
        }
        let default = KubernetesRelease::default().to_possible_value().unwrap();
        assert_eq!(default.get_name(), "1.36");
    }

    #[test]
    fn a_program_of_another_release_is_unusable() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = std::env::temp_dir().join(format!("pinniped-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let table =
            [("Kubernetes v1.36.1", None), ("Kubernetes v1.3.6", Some("kube-apiserver is not 1.36.x"))];
        for (output, wanted) in table {
            let file = dir.join("kube-apiserver");
            std::fs::write(&file, format!("#!/bin/sh\necho {output}\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(unfit(&dir, &TOOLS[1], "v1.36.3").as_deref(), wanted);
        }
        assert_eq!(unfit(&dir, &TOOLS[0], "v1.36.3").as_deref(), Some("no etcd"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
