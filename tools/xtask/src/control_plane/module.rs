//! Go modules of the source tree, and the parameters of their builds.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::cache;
use crate::cargo;

/// Flags that affect the programs; part of the cache's key.
pub(super) const FLAGS: [&str; 2] = ["-trimpath", "-mod=readonly"];

/// A minor release of Kubernetes whose programs can be built here. Each has a Go module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KubernetesRelease {
    #[value(name = "1.33")]
    V1_33,
    #[value(name = "1.34")]
    V1_34,
    #[value(name = "1.35")]
    V1_35,
    /// The pinned release, which everything uses unless a flag selects another one.
    #[default]
    #[value(name = "1.36")]
    V1_36,
}

impl KubernetesRelease {
    /// Returns the major and the minor number, such as `1.36`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1_33 => "1.33",
            Self::V1_34 => "1.34",
            Self::V1_35 => "1.35",
            Self::V1_36 => "1.36",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::V1_33 => "tools/third-party/control-plane-1.33",
            Self::V1_34 => "tools/third-party/control-plane-1.34",
            Self::V1_35 => "tools/third-party/control-plane-1.35",
            Self::V1_36 => "tools/third-party/control-plane",
        }
    }
}

/// A Go module whose programs are built here.
pub(super) struct Module {
    /// Its folder.
    pub(super) dir: PathBuf,
    /// The folder of the user's cache for it.
    pub(super) cache: &'static str,
    /// The name in messages.
    pub(super) title: &'static str,
    /// The version of the programs, such as `v1.36.3`.
    pub(super) version: String,
    /// Flags for the linker.
    pub(super) ldflags: String,
    /// Build tags.
    pub(super) tags: &'static str,
    /// An alternative source of the programs, for messages.
    pub(super) other_way: &'static str,
}

impl Module {
    /// Returns the module of the control plane and of the node's own programs.
    pub(super) fn kubernetes(release: KubernetesRelease) -> anyhow::Result<Self> {
        let dir = cargo::root().join(release.folder());
        let version = required_version(&dir, "k8s.io/kubernetes")?;
        Ok(Self {
            dir,
            cache: "control-plane",
            title: "Kubernetes",
            ldflags: kubernetes_ldflags(&version),
            version,
            tags: "",
            other_way: ", or name a folder with the programs in KUBEBUILDER_ASSETS",
        })
    }

    /// Returns the module of cluster DNS, which is separate because its requirements would change
    /// those of the control plane.
    pub(super) fn coredns() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/coredns");
        let version = required_version(&dir, "github.com/coredns/coredns")?;
        Ok(Self {
            dir,
            cache: "coredns",
            title: "CoreDNS",
            version,
            ldflags: "-s -w".to_owned(),
            tags: "",
            other_way: "",
        })
    }

    /// The Go module of cert-manager.
    pub(super) const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";

    /// Returns the module of cert-manager, in a version whose programs are in one module.
    pub(super) fn cert_manager() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/cert-manager");
        let version = required_version(&dir, Self::CERT_MANAGER)?;
        Ok(Self {
            dir,
            cache: "cert-manager",
            title: "cert-manager",
            ldflags: format!("-s -w -X {}/pkg/util.AppVersion={version}", Self::CERT_MANAGER),
            version,
            tags: "",
            other_way: "",
        })
    }

    /// The Go module of Contour.
    pub(super) const CONTOUR: &str = "github.com/projectcontour/contour";

    /// Returns the module of Contour, whose objects our gateway implements.
    pub(super) fn contour() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/contour");
        let version = required_version(&dir, Self::CONTOUR)?;
        Ok(Self {
            dir,
            cache: "contour",
            title: "Contour",
            ldflags: format!("-s -w -X {}/internal/build.Version={version}", Self::CONTOUR),
            version,
            tags: "",
            other_way: "",
        })
    }

    /// Returns the module of a program that needs no other flags than those of every build.
    pub(super) fn of_program(name: &'static str, title: &'static str, module: &str) -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party").join(name);
        let version = required_version(&dir, module)?;
        Ok(Self { dir, cache: name, title, version, ldflags: "-s -w".to_owned(), tags: "", other_way: "" })
    }

    /// Returns the module of Helm, which renders the chart.
    pub(super) fn helm() -> anyhow::Result<Self> {
        const HELM: &str = "helm.sh/helm/v4";
        let dir = cargo::root().join("tools/third-party/helm");
        let version = required_version(&dir, HELM)?;
        Ok(Self {
            dir,
            cache: "helm",
            title: "Helm",
            ldflags: format!("-s -w -X {HELM}/internal/version.version={version}"),
            version,
            tags: "",
            other_way: "",
        })
    }

    /// The Go module of Prometheus.
    pub(super) const PROMETHEUS: &str = "github.com/prometheus/prometheus";

    /// Returns the module of Prometheus, without the discovery of services: its clients of cloud
    /// providers are most of the packages. Lists of targets in files remain.
    pub(super) fn prometheus() -> anyhow::Result<Self> {
        let module = Self::of_program("prometheus", "Prometheus", Self::PROMETHEUS)?;
        Ok(Self { tags: "remove_all_sd", ..module })
    }

    /// Returns the module of the tests' informer. It has the requirements of the control plane, so
    /// that Go compiles no package twice.
    pub(super) fn informer() -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party/informer");
        let version = required_version(&dir, "k8s.io/client-go")?;
        Ok(Self {
            dir,
            cache: "informer",
            title: "client-go",
            version,
            ldflags: "-s -w".to_owned(),
            tags: "",
            other_way: "",
        })
    }

    /// Returns `VERSION-HASH`, which changes with the module, its checksums, its sources, the
    /// version or the flags.
    pub(super) fn key(&self) -> anyhow::Result<String> {
        let mut parts = Vec::new();
        for name in ["go.mod", "go.sum", "main.go"] {
            let file = self.dir.join(name);
            // Only a module with its own program has this file.
            if name != "main.go" || file.is_file() {
                let bytes =
                    std::fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
                parts.push(bytes);
            }
        }
        parts.push(FLAGS.join(" ").into_bytes());
        parts.push(self.ldflags.clone().into_bytes());
        if !self.tags.is_empty() {
            parts.push(self.tags.as_bytes().to_vec());
        }
        let hash = cache::hash(parts.iter().map(Vec::as_slice));
        Ok(format!("{}-{hash:016x}", self.version))
    }
}

/// Returns the release of `package` that the module in `dir` pins.
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

/// Returns linker flags for no symbol tables, and the version stamp of the project's own releases.
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
