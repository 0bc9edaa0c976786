//! Go modules of the source tree, and what decides what is built from them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::cache;
use crate::cargo;

/// Flags that decide what the programs are; part of the cache's name.
pub(super) const FLAGS: [&str; 2] = ["-trimpath", "-mod=readonly"];

/// A Go module whose programs are built here.
pub(super) struct Module {
    /// Its folder.
    pub(super) dir: PathBuf,
    /// The folder of the user's cache for it.
    pub(super) cache: &'static str,
    /// What people call it.
    pub(super) title: &'static str,
    /// The version of what it is made for, such as `v1.36.3`.
    pub(super) version: String,
    /// For the linker.
    pub(super) ldflags: String,
    /// Another way to the programs, for messages.
    pub(super) other_way: &'static str,
}

impl Module {
    /// The control plane, and the node's own programs.
    pub(super) fn kubernetes() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/control-plane");
        let version = required_version(&dir, "k8s.io/kubernetes")?;
        Ok(Self {
            dir,
            cache: "control-plane",
            title: "Kubernetes",
            ldflags: kubernetes_ldflags(&version),
            version,
            other_way: ", or name a folder with the programs in KUBEBUILDER_ASSETS",
        })
    }

    /// Cluster DNS: apart, since its requirements would change those of the control plane.
    pub(super) fn coredns() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/coredns");
        let version = required_version(&dir, "github.com/coredns/coredns")?;
        Ok(Self {
            dir,
            cache: "coredns",
            title: "CoreDNS",
            version,
            ldflags: "-s -w".to_owned(),
            other_way: "",
        })
    }

    /// The Go module of cert-manager.
    pub(super) const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";

    /// cert-manager, of a time when its programs were one module.
    pub(super) fn cert_manager() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/cert-manager");
        let version = required_version(&dir, Self::CERT_MANAGER)?;
        Ok(Self {
            dir,
            cache: "cert-manager",
            title: "cert-manager",
            ldflags: format!("-s -w -X {}/pkg/util.AppVersion={version}", Self::CERT_MANAGER),
            version,
            other_way: "",
        })
    }

    /// The Go module of Contour.
    pub(super) const CONTOUR: &str = "github.com/projectcontour/contour";

    /// Contour, with whose objects our gateway works.
    pub(super) fn contour() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/contour");
        let version = required_version(&dir, Self::CONTOUR)?;
        Ok(Self {
            dir,
            cache: "contour",
            title: "Contour",
            ldflags: format!("-s -w -X {}/internal/build.Version={version}", Self::CONTOUR),
            version,
            other_way: "",
        })
    }

    /// The `yq` of the release post.
    pub(super) fn yq() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/yq");
        let version = required_version(&dir, "github.com/mikefarah/yq/v4")?;
        Ok(Self { dir, cache: "yq", title: "yq", version, ldflags: "-s -w".to_owned(), other_way: "" })
    }

    /// The informer of the tests. It requires what the control plane does, so that Go compiles nothing twice.
    pub(super) fn informer() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/informer");
        let version = required_version(&dir, "k8s.io/client-go")?;
        Ok(Self {
            dir,
            cache: "informer",
            title: "client-go",
            version,
            ldflags: "-s -w".to_owned(),
            other_way: "",
        })
    }

    /// `VERSION-HASH`: changes when the module, its sums, its sources, the version or the flags change.
    pub(super) fn key(&self) -> anyhow::Result<String> {
        let mut parts = Vec::new();
        for name in ["go.mod", "go.sum", "main.go"] {
            let file = self.dir.join(name);
            // Only a module with a program of its own has the last.
            if name != "main.go" || file.is_file() {
                let bytes =
                    std::fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
                parts.push(bytes);
            }
        }
        parts.push(FLAGS.join(" ").into_bytes());
        parts.push(self.ldflags.clone().into_bytes());
        let hash = cache::hash(parts.iter().map(Vec::as_slice));
        Ok(format!("{}-{hash:016x}", self.version))
    }
}

/// The release of `package` that the module in `dir` pins.
fn required_version(dir: &Path, package: &str) -> anyhow::Result<String> {
    let go_mod = dir.join("go.mod");
    let text =
        std::fs::read_to_string(&go_mod).with_context(|| format!("could not read {}", go_mod.display()))?;
    text.lines()
        .find_map(|line| line.trim().trim_start_matches("require ").strip_prefix(package)?.strip_prefix(' '))
        .and_then(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .with_context(|| format!("{} does not require {package}", go_mod.display()))
}

/// No symbol tables, and the version as the project's own releases stamp it.
fn kubernetes_ldflags(version: &str) -> String {
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let mut flags = "-s -w".to_owned();
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        for (name, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    flags
}
