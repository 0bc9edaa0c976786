//! Linux: the memory limit of the cgroup, the dumpable attribute, the numbers of errors.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// `ENOTSOCK`.
pub(crate) const NOT_A_SOCKET: i32 = 88;

/// A version 1 limit of at least this size means "none": the kernel writes the largest multiple of
/// a page.
const NO_LIMIT: u64 = 1 << 60;

/// Returns the lowest memory limit of this process's cgroup and of its ancestors, in bytes. Returns
/// `None` when there is no limit or none can be read.
pub(crate) fn memory_limit() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let limits = directories(&cgroups, &mounts).into_iter().flat_map(|(own, top, file)| {
        let within = own.ancestors().take_while(|directory| directory.starts_with(&top));
        within.filter_map(|directory| limit(&directory.join(file))).collect::<Vec<_>>()
    });
    limits.min()
}

/// Returns the directories of this process's cgroup, each with the mount point above it and the
/// name of the file with the limit. Version 1 has a hierarchy for memory, version 2 has one for
/// everything.
///
/// In a container often only its own cgroup is visible, mounted in place of the root.
/// `/proc/self/cgroup` may then name a path that does not exist, and the root of the mount shows
/// which part of the path is hidden.
fn directories(cgroups: &str, mounts: &str) -> Vec<(PathBuf, PathBuf, &'static str)> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        // 30 23 0:26 ROOT MOUNT-POINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPER-OPTIONS
        // (proc_pid_mountinfo(5))
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let mut mount = mount.split(' ').skip(3);
        let mut kind = kind.split(' ');
        let (Some(root), Some(point), Some(kind), Some(options)) =
            (mount.next(), mount.next(), kind.next(), kind.nth(1))
        else {
            continue;
        };
        let (controller, file) = match kind {
            "cgroup2" => ("", "memory.max"),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                ("memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let own = cgroups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            controllers.split(',').any(|named| named == controller).then(|| parts.next()).flatten()
        });
        let point = PathBuf::from(point);
        let below = own.and_then(|own| Path::new(own).strip_prefix(root).ok());
        // The path of a process outside of its cgroup namespace begins with `..`.
        let below = below.filter(|below| below.components().all(|part| matches!(part, Component::Normal(_))));
        let own = below.map(|below| below.components().fold(point.clone(), |to, part| to.join(part)));
        let own = own.filter(|own| own.is_dir()).unwrap_or_else(|| point.clone());
        found.push((own, point, file));
    }
    found
}

fn limit(file: &Path) -> Option<u64> {
    let limit = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (limit < NO_LIMIT).then_some(limit)
}

/// Prevents core dumps, which the limit does not prevent where the kernel pipes them to a program,
/// and access by other processes of the same user.
pub(super) fn deny_dumps() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(cgroups: &str, mounts: &str) -> (String, &'static str) {
        let found = directories(cgroups, mounts);
        let [(directory, _, file)] = &found[..] else { panic!("{found:?}") };
        (directory.display().to_string(), file)
    }

    #[test]
    fn the_limit_is_read_from_the_visible_cgroup_directories() {
        let here = tempfile::tempdir().unwrap();
        let point = here.path().display().to_string();
        fs::create_dir_all(here.path().join("pods/mine")).unwrap();
        let v2 = format!("30 23 0:26 / {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate");
        // Version 2 with a namespace, and without one.
        assert_eq!(only("0::/\n", &v2), (point.clone(), "memory.max"));
        assert_eq!(only("0::/pods/mine\n", &v2), (format!("{point}/pods/mine"), "memory.max"));
        assert_eq!(only("0::/../..\n", &v2).0, point);
        // Version 1, where the container's own cgroup is the root of the mount.
        let v1 = format!("41 30 0:35 /pods/mine {point} ro,nosuid master:9 - cgroup cgroup rw,memory");
        assert_eq!(only("4:memory:/pods/mine\n0::/\n", &v1), (point.clone(), "memory.limit_in_bytes"));
        let named = format!("42 30 0:36 / {point} rw - cgroup cgroup rw,name=systemd");
        assert!(directories("1:name=systemd:/\n", &named).is_empty());
    }

    #[test]
    fn the_largest_number_of_the_kernel_means_no_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, wanted) in
            [("268435456\n", Some(268_435_456)), ("max\n", None), ("9223372036854771712\n", None), ("", None)]
        {
            fs::write(file.path(), text).unwrap();
            assert_eq!(limit(file.path()), wanted, "{text:?}");
        }
    }
}
