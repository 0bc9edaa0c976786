//! The prerequisites on the machine, and the command that installs missing ones.

use std::path::{Path, PathBuf};

/// Programs and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 10] = [
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("iptables-save", "iptables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
];
/// Folders of the CNI plugins in different distributions.
const CNI: [&str; 4] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/local/lib/cni"];
/// The plugins that the node's network uses.
const CNI_PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// Folders that may be missing from a user's PATH.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns the reason why no node can run here and the remedy, or `None` when one can.
#[must_use]
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a node needs root: namespaces, mounts and cgroups; run the command as root".to_owned());
    }
    // The root user of a user namespace cannot create cgroups or mount overlays.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if !map.split_whitespace().eq(["0", "0", "4294967295"]) {
        return Some("a node needs the machine's own root, not that of a user namespace".to_owned());
    }
    let lacks = |program: &str| find(program).is_none();
    let mut missing: Vec<(&str, &str)> = PROGRAMS.into_iter().filter(|(program, _)| lacks(program)).collect();
    if cni_dir().is_none() {
        missing
            .push(("the CNI plugins bridge, host-local, loopback, portmap", "containernetworking-plugins"));
    }
    if missing.is_empty() { namespaces_missing() } else { Some(packages_message(&missing)) }
}

fn packages_message(missing: &[(&str, &str)]) -> String {
    let programs: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    format!(
        "a node needs {}, not found in {PATH}; on Debian or Ubuntu:\n  apt-get install -y --no-install-recommends {}",
        programs.join(", "),
        packages.join(" ")
    )
}

/// Tries the operations of `up`.
fn namespaces_missing() -> Option<String> {
    let mut probe = std::process::Command::new("unshare");
    probe.args(["--pid", "--fork", "--mount", "--net", "--uts", "--ipc", "ip", "link", "set", "lo", "up"]);
    let output = probe.env("PATH", PATH).output();
    let why = match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    };
    let overlay = std::fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("\toverlay"));
    // A kernel that has the file system as a module lists it only after its first use.
    let why = why.or_else(|| {
        let module = || std::process::Command::new("modprobe").arg("overlay").env("PATH", PATH).output();
        (!overlay && !module().is_ok_and(|o| o.status.success()))
            .then(|| "the kernel has no overlay file system".into())
    });
    why.map(|why| {
        format!("a node needs namespaces of its own, which this machine does not allow even to root: {why}")
    })
}

/// Returns the path of a system program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|file| file.is_file())
}

/// Returns the folder of the CNI plugins.
pub(crate) fn cni_dir() -> Option<PathBuf> {
    let complete = |dir: &PathBuf| CNI_PLUGINS.iter().all(|plugin| dir.join(plugin).is_file());
    CNI.into_iter().map(PathBuf::from).find(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_listed_once_with_the_command_that_installs_them() {
        let text = packages_message(&[("containerd", "containerd"), ("ctr", "containerd"), ("runc", "runc")]);
        assert!(text.contains("needs containerd, ctr, runc,"), "{text}");
        assert!(text.ends_with("apt-get install -y --no-install-recommends containerd runc"), "{text}");
    }
}
