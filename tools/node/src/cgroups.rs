//! The node's cgroups: one with the same name in every hierarchy, so that they contain all
//! processes of a node.
//!
//! ```text
//! /sys/fs/cgroup[/HIERARCHY]/pinniped-node/NAME          kubelet's cgroupRoot
//!                                              /node     the node's own programs
//!                                              /kubepods the pods
//! ```

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::process;

/// Parent of the cgroups of all nodes.
pub(crate) const PARENT: &str = "pinniped-node";
/// The cgroup of the node's own programs: with cgroup v2 a cgroup with children cannot contain
/// processes.
const OWN: &str = "node";
const MOUNT: &str = "/sys/fs/cgroup";
/// Controllers that kubelet and runc use; with v2 each parent must delegate them.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"];

/// Returns the mount points of the cgroup hierarchies: one for v2, one per controller for v1.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    parse(&std::fs::read_to_string("/proc/self/mounts").unwrap_or_default())
}

fn parse(mounts: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
            (matches!(kind, "cgroup" | "cgroup2") && Path::new(at).starts_with(MOUNT)).then(|| at.into())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Whether the machine has only the unified hierarchy.
pub(crate) fn unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").is_file()
}

/// Creates the node's cgroups.
pub(crate) fn create(cgroup: &str) -> anyhow::Result<()> {
    let hierarchies = hierarchies();
    anyhow::ensure!(!hierarchies.is_empty(), "no cgroups are mounted below {MOUNT}");
    for hierarchy in hierarchies {
        let mut dir = hierarchy.clone();
        for part in Path::new(cgroup).join(OWN).iter() {
            if unified() {
                for controller in CONTROLLERS {
                    // kubelet works without a missing controller, or reports it.
                    let _ = write(&dir.join("cgroup.subtree_control"), &format!("+{controller}"));
                }
            }
            let parent = dir.clone();
            dir.push(part);
            if !dir.is_dir() {
                std::fs::create_dir(&dir)
                    .with_context(|| format!("could not create the cgroup {}", dir.display()))?;
            }
            inherit_cpuset(&parent, &dir)?;
        }
    }
    Ok(())
}

/// With v1 a new cpuset is empty and accepts no process.
fn inherit_cpuset(parent: &Path, dir: &Path) -> anyhow::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if unified() || !dir.join(file).is_file() {
            continue;
        }
        let has = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        if has.trim().is_empty() {
            let value = std::fs::read_to_string(parent.join(file)).unwrap_or_default();
            write(&dir.join(file), value.trim())?;
        }
    }
    Ok(())
}

/// Moves this process into the node's cgroups.
pub(crate) fn join(cgroup: &str) -> anyhow::Result<()> {
    for hierarchy in hierarchies() {
        let file = hierarchy.join(cgroup).join(OWN).join("cgroup.procs");
        write(&file, &std::process::id().to_string())?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::File::options()
        .write(true)
        .open(file)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("could not write `{text}` into {}", file.display()))
}

/// Removes the node's cgroups, and the parent if this was the last node.
pub(crate) fn remove(cgroup: &str) {
    // A cgroup stays busy for a moment after its last process has exited.
    process::wait_until(Duration::from_secs(10), || {
        for hierarchy in hierarchies() {
            remove_tree(&hierarchy.join(cgroup));
        }
        exists(cgroup).is_empty()
    });
    for hierarchy in hierarchies() {
        // The removal fails while another node exists.
        let _ = std::fs::remove_dir(hierarchy.join(PARENT));
    }
}

fn remove_tree(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
}

/// Returns the folders of the cgroup in all hierarchies.
pub(crate) fn exists(cgroup: &str) -> Vec<PathBuf> {
    hierarchies().into_iter().map(|hierarchy| hierarchy.join(cgroup)).filter(|dir| dir.is_dir()).collect()
}

/// Returns all cgroups of the machine as paths below the mount point.
pub(crate) fn all() -> Vec<String> {
    fn walk(dir: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                found.extend(path.strip_prefix(MOUNT).ok().and_then(Path::to_str).map(str::to_owned));
                walk(&path, found);
            }
        }
    }
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        walk(&hierarchy, &mut found);
    }
    found.sort();
    found.dedup();
    found
}

/// Whether processes are in a cgroup ([`all`]) or below it.
pub(crate) fn inhabited(path: &str) -> bool {
    fn walk(dir: &Path) -> bool {
        let procs = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let below = || std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        !procs.trim().is_empty() || below().filter(|path| path.is_dir()).any(|path| walk(&path))
    }
    walk(&Path::new(MOUNT).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cgroup_hierarchies_of_both_versions_are_found() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup2 /elsewhere cgroup2 rw 0 0\n";
        assert_eq!(parse(hybrid), [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"), [Path::new("/sys/fs/cgroup")]);
    }
}
