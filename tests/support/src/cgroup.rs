//! A cgroup with a memory limit, for version 1 and version 2 of the kernel's interface.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

const MOUNT: &str = "/sys/fs/cgroup";

/// A cgroup with a memory limit. Dropping this value removes it.
pub struct Cgroup {
    folder: PathBuf,
    files: &'static Files,
}

/// The file names of one version of the interface.
struct Files {
    limit: &'static str,
    usage: &'static str,
    peak: &'static str,
    /// The file that contains the line `oom_kill`.
    events: &'static str,
}

static VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};

static VERSION_2: Files =
    Files { limit: "memory.max", usage: "memory.current", peak: "memory.peak", events: "memory.events" };

impl Cgroup {
    /// Creates a cgroup with this name next to or below the cgroup of this process. Returns `None`
    /// when this process has no permission to create one.
    pub fn with_memory_limit(name: &str, bytes: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::at(Path::new(MOUNT), &own, name, bytes)
    }

    /// Does the same with the hierarchies mounted at `mount` and with `own` as the content of
    /// `/proc/self/cgroup`.
    fn at(mount: &Path, own: &str, name: &str, bytes: u64) -> Option<Self> {
        let own = |controller: &str| {
            let path = own.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|named| named == controller).then_some(path)
            });
            path.map(|path| path.trim_start_matches('/'))
        };
        if !mount.join("cgroup.controllers").is_file() {
            let parent = mount.join("memory").join(own("memory")?);
            return Self::below(&parent, &VERSION_1, name, bytes);
        }
        let own = mount.join(own("")?);
        let mut parents = own.ancestors().take_while(|folder| folder.starts_with(mount));
        parents.find_map(|parent| {
            // A cgroup that contains processes cannot delegate controllers to children, so the
            // parent is often further up.
            delegates_memory(parent).then(|| Self::below(parent, &VERSION_2, name, bytes)).flatten()
        })
    }

    fn below(parent: &Path, files: &'static Files, name: &str, bytes: u64) -> Option<Self> {
        let folder = parent.join(name);
        fs::create_dir(&folder).ok()?;
        let cgroup = Self { folder, files };
        fs::write(cgroup.folder.join(files.limit), bytes.to_string()).ok()?;
        Some(cgroup)
    }

    /// The folder of the cgroup. Its file `cgroup.procs` accepts processes.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the number of processes that the kernel killed because of the limit.
    ///
    /// # Errors
    /// Returns an error when the kernel does not report the number.
    pub fn kills(&self) -> anyhow::Result<u64> {
        let events = self.read(self.files.events)?;
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(kills.with_context(|| format!("no line oom_kill in {}", self.files.events))?.trim().parse()?)
    }

    /// Returns the limit, the current usage and the peak usage as text for messages.
    pub fn usage(&self) -> String {
        let read = |file| self.read(file).map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned());
        let Files { limit, usage, peak, .. } = self.files;
        format!("{} of {} bytes, {} at most", read(usage), read(limit), read(peak))
    }

    /// Whether the cgroup contains no process.
    ///
    /// # Errors
    /// Returns an error when the list of processes cannot be read.
    pub fn is_empty(&self) -> anyhow::Result<bool> {
        Ok(self.read("cgroup.procs")?.trim().is_empty())
    }

    fn read(&self, file: &str) -> anyhow::Result<String> {
        fs::read_to_string(self.folder.join(file))
            .with_context(|| format!("could not read {file} of {}", self.folder.display()))
    }
}

/// Whether version 2 cgroups below `parent` can have a memory limit.
fn delegates_memory(parent: &Path) -> bool {
    let file = parent.join("cgroup.subtree_control");
    let handed_down = fs::read_to_string(&file).unwrap_or_default();
    let enable = || fs::File::options().write(true).open(&file)?.write_all(b"+memory");
    handed_down.split_whitespace().any(|controller| controller == "memory") || enable().is_ok()
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The removal fails while the cgroup contains a process; a test waits until its processes
        // exit.
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("could not remove {}: {error}", self.folder.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 256 << 20;

    fn read(folder: &Path, file: &str) -> String {
        fs::read_to_string(folder.join(file)).unwrap()
    }

    #[test]
    fn version_2_creates_the_cgroup_below_the_nearest_ancestor_that_delegates_memory() {
        let mount = tempfile::tempdir().unwrap();
        let parent = mount.path().join("user");
        // Without the file the cgroup cannot delegate a controller, just like one with processes.
        fs::create_dir_all(parent.join("session")).unwrap();
        fs::write(mount.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        fs::write(parent.join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        let cgroup = Cgroup::at(mount.path(), "0::/user/session\n", "test", LIMIT).unwrap();
        assert_eq!(cgroup.folder(), parent.join("test"));
        assert_eq!(read(cgroup.folder(), "memory.max"), "268435456");
        assert_eq!(read(&parent, "cgroup.subtree_control"), "cpu memory\n", "unchanged");

        let write = |file: &str, text: &str| fs::write(cgroup.folder().join(file), text).unwrap();
        cgroup.kills().unwrap_err();
        write("memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n");
        assert_eq!(cgroup.kills().unwrap(), 2);
        write("memory.current", "100\n");
        assert_eq!(cgroup.usage(), "100 of 268435456 bytes, ? at most", "old kernels have no peak");
        write("memory.peak", "200\n");
        assert_eq!(cgroup.usage(), "100 of 268435456 bytes, 200 at most");
        write("cgroup.procs", "");
        assert!(cgroup.is_empty().unwrap());
        write("cgroup.procs", "17\n");
        assert!(!cgroup.is_empty().unwrap());
    }

    #[test]
    fn version_2_delegates_memory_where_permitted_and_is_unusable_elsewhere() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir(mount.path().join("own")).unwrap();
        fs::write(mount.path().join("cgroup.controllers"), "memory\n").unwrap();
        assert!(Cgroup::at(mount.path(), "0::/own\n", "test", LIMIT).is_none());
        assert!(!mount.path().join("own/test").exists() && !mount.path().join("test").exists());
        fs::write(mount.path().join("cgroup.subtree_control"), "").unwrap();
        let cgroup = Cgroup::at(mount.path(), "0::/own\n", "test", LIMIT).unwrap();
        assert_eq!(cgroup.folder(), mount.path().join("test"));
        assert_eq!(read(mount.path(), "cgroup.subtree_control"), "+memory");
    }

    #[test]
    fn version_1_creates_the_cgroup_in_the_memory_hierarchy() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir_all(mount.path().join("memory/own")).unwrap();
        let own = "5:memory:/own\n4:cpu,cpuacct:/other\n0::/\n";
        let cgroup = Cgroup::at(mount.path(), own, "test", LIMIT).unwrap();
        assert_eq!(cgroup.folder(), mount.path().join("memory/own/test"));
        assert_eq!(read(cgroup.folder(), "memory.limit_in_bytes"), "268435456");
        fs::write(cgroup.folder().join("memory.oom_control"), "under_oom 0\noom_kill 1\n").unwrap();
        assert_eq!(cgroup.kills().unwrap(), 1);
        assert!(Cgroup::at(mount.path(), "0::/\n", "test", LIMIT).is_none());
    }
}
