//! The node's root file system.
//!
//! It is the machine's own under an overlay whose changes are kept in memory: every program of the
//! machine is available, and no write of the node reaches the machine. Large or externally visible
//! folders (images, etcd, logs, `/etc/kubernetes`) are in the node's own state folder.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use super::{DNS_IP, KUBERNETES, LOGS, RUN, TOOLS};
use crate::layout::Layout;

/// Folders of the state folder, and their mount points.
const DATA: [(&str, &str); 3] =
    [("containerd", "/var/lib/containerd"), ("kubelet", "/var/lib/kubelet"), ("etcd", "/var/lib/etcd")];
/// Kernel parameters that kubelet sets, and the values it requires. They are not namespaced, so the
/// node gets files in their place.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// Types of the machine's file systems that are visible to the node.
const SHOWN: [&str; 12] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay", "virtiofs", "9p", "nfs", "nfs4"];
/// Mount points that are not visible, because the node has its own.
const HIDDEN: [&str; 10] = [
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/boot",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log",
];

/// Creates the node's root file system and enters it.
pub(super) fn enter(layout: &Layout, tools: &Path) -> anyhow::Result<()> {
    // Mounts from here on are invisible outside.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("could not make the mounts private")?;
    let scratch = layout.scratch();
    let root = scratch.join("root");
    tmpfs(&scratch)?;
    for name in ["root", "upper", "work"] {
        make_dir(&scratch.join(name))?;
    }
    let options = format!("lowerdir=/,upperdir={0}/upper,workdir={0}/work", scratch.display());
    let options = CString::new(options).context("the state folder's path has a zero byte")?;
    mount("overlay", &root, "overlay", MountFlags::empty(), options.as_c_str())
        .context("could not mount an overlay over the machine's root file system")?;
    show_others(&root)?;
    own_file_systems(&root)?;
    for (name, inside) in DATA {
        bind(&layout.data(name), &root, inside)?;
    }
    bind(&layout.kubernetes(), &root, KUBERNETES)?;
    bind(&layout.logs(), &root, LOGS)?;
    bind(tools, &root, TOOLS)?;
    // `run` writes its progress there, and reads the location of the certificates from it.
    bind(&layout.dir(), &root, path_text(&layout.dir())?)?;
    let etc = root.join("etc");
    // Short retry intervals: the first queries are sent before cluster DNS and kube-proxy's rules
    // are ready.
    replace(&etc.join("resolv.conf"), &format!("nameserver {DNS_IP}\noptions timeout:1 attempts:3\n"))?;
    replace(&etc.join("hosts"), &hosts(layout))?;
    pivot(&root)?;
    sysctls()
}

/// Returns the `/etc/hosts` of the node.
pub(crate) fn hosts(layout: &Layout) -> String {
    format!("127.0.0.1 localhost\n::1 localhost\n{} {}\n", super::NODE_IP, layout.node_name())
}

fn own_file_systems(root: &Path) -> anyhow::Result<()> {
    for name in ["run", "tmp"] {
        let dir = root.join(name);
        make_dir(&dir)?;
        tmpfs(&dir)?;
    }
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))
        .context("could not make /tmp accessible to all users")?;
    make_dir(&root.join(RUN.trim_start_matches('/')))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", root.join("proc"), "proc", flags, None).context("could not mount /proc")?;
    // The network part of /sys belongs to the network namespace of the mounting process; the
    // cgroups are bound from outside.
    mount("sysfs", root.join("sys"), "sysfs", flags, None).context("could not mount /sys")?;
    mount_bind_recursive("/sys/fs/cgroup", root.join("sys/fs/cgroup"))
        .context("could not bind the cgroups")?;
    mount_bind_recursive("/dev", root.join("dev")).context("could not bind /dev")
}

/// Binds the machine's other file systems read-only, because an overlay contains one file system
/// only.
fn show_others(root: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").context("could not read the mounts")?;
    for at in others(&text) {
        // Mounts that are hidden below another mount, or are files, cannot be shown; the node needs
        // none of them.
        let target = root.join(at.strip_prefix("/").unwrap_or(&at));
        if !at.is_dir() || !target.is_dir() {
            continue;
        }
        mount_bind(&at, &target).with_context(|| format!("could not bind {}", at.display()))?;
        mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, c"")
            .with_context(|| format!("could not make {} read-only", at.display()))?;
    }
    Ok(())
}

fn others(mountinfo: &str) -> Vec<PathBuf> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let at = PathBuf::from(left.split(' ').nth(4)?.replace("\\040", " "));
            let kind = right.split(' ').next()?;
            let hidden = at == Path::new("/") || HIDDEN.iter().any(|prefix| at.starts_with(prefix));
            (SHOWN.contains(&kind) && !hidden).then_some(at)
        })
        .collect()
}

fn bind(source: &Path, root: &Path, inside: &str) -> anyhow::Result<()> {
    let target = root.join(inside.trim_start_matches('/'));
    make_dir(&target)?;
    mount_bind(source, &target).with_context(|| format!("could not bind {} to {inside}", source.display()))
}

fn tmpfs(dir: &Path) -> anyhow::Result<()> {
    mount("tmpfs", dir, "tmpfs", MountFlags::empty(), c"mode=0755")
        .with_context(|| format!("could not mount a tmpfs on {}", dir.display()))
}

/// Replaces a file that may be a link out of the node's root.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let _ = std::fs::remove_file(file);
    std::fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("could not create {}", dir.display()))
}

fn path_text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))
}

fn pivot(root: &Path) -> anyhow::Result<()> {
    rustix::process::chdir(root).context("could not change to the new root")?;
    // The old root is mounted on top of the new one, and is then unmounted.
    rustix::process::pivot_root(".", ".").context("could not change the root file system")?;
    unmount(".", UnmountFlags::DETACH).context("could not leave the machine's root file system")?;
    rustix::process::chdir("/").context("could not change to the root")?;
    // As on every machine, mounts that kubelet creates for volumes must propagate to containers.
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", shared).context("could not share the mounts")
}

fn sysctls() -> anyhow::Result<()> {
    for (key, value) in SYSCTLS {
        let target = PathBuf::from("/proc/sys").join(key);
        if !target.is_file() {
            continue;
        }
        let own = PathBuf::from(RUN).join("sysctl").join(key.replace('/', "."));
        make_dir(own.parent().unwrap_or(Path::new(RUN)))?;
        std::fs::write(&own, format!("{value}\n")).context("could not write the substitute of a sysctl")?;
        mount_bind(&own, &target).with_context(|| format!("could not bind over {}", target.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_the_machine_are_visible_and_its_runtime_state_is_not() {
        let text = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                    2 1 8:2 / /home rw shared:1 - xfs /dev/b rw\n\
                    3 1 8:3 / /my\\040data rw - btrfs /dev/c rw\n\
                    4 1 0:5 / /mnt/ram rw - tmpfs tmpfs rw\n\
                    5 1 0:6 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw\n\
                    6 1 8:2 / /run/media rw - ext4 /dev/d rw\n";
        assert_eq!(others(text), [Path::new("/home"), Path::new("/my data")]);
    }
}
