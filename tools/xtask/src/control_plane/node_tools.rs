//! The programs of a one-node cluster in one folder of the user's cache: the control plane's,
//! kubelet, kube-proxy and kube-scheduler of the same release, CoreDNS, and pause.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::build::source_dir;
use super::cache::{self, cached};
use super::module::{KubernetesRelease, Module};
use super::{TOOLS, Tool, found};

const fn kubernetes(name: &'static str, package: &'static str) -> Tool {
    Tool { name, package, version_args: &["--version"], version: None }
}

/// The programs of a node in addition to the control plane.
const NODE: [Tool; 3] = [
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
];
const COREDNS: [Tool; 1] =
    [Tool { name: "coredns", package: ".", version_args: &["-version"], version: None }];
const PAUSE: &str = "pause";
/// The version in its output and in the name of its image, as in kubeadm of the pinned release.
const PAUSE_VERSION: &str = "3.10.2";

/// Returns the folder with all programs. It contains links to files in the folders in which they
/// were built: another version of a program results in another folder.
pub(crate) fn find_or_build(release: KubernetesRelease, offline: bool) -> anyhow::Result<PathBuf> {
    let kube = Module::kubernetes(release)?;
    let all: Vec<Tool> = TOOLS.into_iter().chain(NODE).collect();
    let programs = match found(&all, &kube.version) {
        Some(dir) => dir,
        None => {
            // The control plane first: it shares most packages with the node's programs, and other
            // commands need it alone.
            cached(&kube, "control plane", &TOOLS, offline)?;
            cached(&kube, "node's programs", &all, offline)?
        }
    };
    let dns = Module::coredns()?;
    let dns_dir = cached(&dns, "cluster DNS", &COREDNS, offline)?;
    let cache = cache::dir()?.join("node");
    let key = format!("{}-dns-{}", kube.key()?, dns.key()?);
    let dir = cache.join(&key);
    // Programs found outside the cache may change at any time.
    let stale = |tool: &Tool| !same(&programs.join(tool.name), &dir.join(tool.name));
    if dir.join(PAUSE).is_file() && !all.iter().any(stale) {
        return Ok(dir);
    }
    let fresh = cache.join(format!("{key}.unfinished-{}", std::process::id()));
    std::fs::create_dir_all(&fresh).with_context(|| format!("could not create {}", fresh.display()))?;
    let made = fill(&fresh, &programs, &all, &dns_dir, &kube, offline).and_then(|()| {
        // Concurrent processes create the same files: the later one wins, and running programs keep
        // their files.
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("could not replace {}", dir.display()))?;
        }
        std::fs::rename(&fresh, &dir).with_context(|| format!("could not create {}", dir.display()))
    });
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&fresh);
    }
    made?;
    Ok(dir)
}

fn same(one: &Path, other: &Path) -> bool {
    let look = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.len(), m.modified().ok()));
    look(one).is_some() && look(one) == look(other)
}

fn fill(
    dir: &Path,
    programs: &Path,
    all: &[Tool],
    dns: &Path,
    kube: &Module,
    offline: bool,
) -> anyhow::Result<()> {
    let files = all.iter().map(|tool| (programs, tool.name)).chain([(dns, COREDNS[0].name)]);
    for (from, name) in files {
        let (from, to) = (from.join(name), dir.join(name));
        if std::fs::hard_link(&from, &to).is_ok() {
            continue;
        }
        // Copies across file systems, with the modification time that identifies the file.
        std::fs::copy(&from, &to)
            .and_then(|_| std::fs::metadata(&from)?.modified())
            .and_then(|time| std::fs::File::options().write(true).open(&to)?.set_modified(time))
            .with_context(|| format!("could not copy {}", from.display()))?;
    }
    pause(dir, kube, offline)
}

/// Builds the first process of every pod: 70 lines of C in Kubernetes' module.
fn pause(dir: &Path, kube: &Module, offline: bool) -> anyhow::Result<()> {
    let source = source_dir(kube, "k8s.io/kubernetes", offline)?.join("build/pause/linux/pause.c");
    let mut cc = Command::new("cc");
    cc.args(["-static", "-Os", &format!("-DVERSION={PAUSE_VERSION}"), "-o"]).arg(dir.join(PAUSE)).arg(source);
    let output = cc.output().context("could not run `cc` to make pause (package build-essential)")?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "`cc` could not create pause: {}", text.trim());
    Ok(())
}
