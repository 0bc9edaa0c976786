//! Names, folders and files of one node.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The node's name when none is given.
pub const DEFAULT_NAME: &str = "default";
/// Environment variable with the folder of the nodes' state.
pub const STATE_ENV: &str = "PINNIPED_NODE_STATE";
/// Environment variable with the folder of the node's programs; `cargo xtask` sets it.
pub const TOOLS_ENV: &str = "PINNIPED_NODE_TOOLS";
const DEFAULT_STATE: &str = "/var/lib/pinniped-node";

/// The locations of a node's files on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    name: String,
    state: PathBuf,
}

impl Layout {
    /// Creates the layout of the node `name` in the folder `state`, by default [`STATE_ENV`] or
    /// `/var/lib/pinniped-node`.
    ///
    /// # Errors
    /// Returns an error when the name is not a DNS label, or when the folder's path cannot be used
    /// in mount options.
    pub fn new(name: &str, state: Option<&Path>) -> anyhow::Result<Self> {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        anyhow::ensure!(
            !name.is_empty()
                && name.len() <= 40
                && name.chars().all(valid)
                && !name.starts_with('-')
                && !name.ends_with('-'),
            "`{name}` is not a valid node name: use up to 40 lower case letters, digits and dashes"
        );
        let named = || std::env::var_os(STATE_ENV).filter(|v| !v.is_empty()).map(PathBuf::from);
        let state = state.map(Path::to_owned).or_else(named).unwrap_or_else(|| DEFAULT_STATE.into());
        let text = state.to_str().with_context(|| format!("{} is not valid UTF-8", state.display()))?;
        anyhow::ensure!(
            state.is_absolute()
                && !text.contains([',', ':', '\\', '"'])
                && !text.contains(char::is_whitespace),
            "the state folder {text} has to be an absolute path without spaces, commas, colons, quotes and backslashes"
        );
        Ok(Self { name: name.to_owned(), state })
    }

    /// The node's name, as given by the user.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its Node object, which is also its host name.
    #[must_use]
    pub fn node_name(&self) -> String {
        format!("pinniped-{}", self.name)
    }

    /// The folder of all nodes.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The node's own folder.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.state.join(&self.name)
    }

    /// The lock file of processes that start or stop the node.
    pub(crate) fn lock(&self) -> PathBuf {
        self.state.join(format!("{}.lock", self.name))
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.dir().join("record.json")
    }

    pub(crate) fn before(&self) -> PathBuf {
        self.dir().join("before.json")
    }

    /// The completed steps of `run`, one per line.
    pub(crate) fn progress(&self) -> PathBuf {
        self.dir().join("progress")
    }

    /// Logs of all programs, and of the pods; `/var/log` of the node.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.dir().join("logs")
    }

    /// `/etc/kubernetes` of the node.
    #[must_use]
    pub fn kubernetes(&self) -> PathBuf {
        self.dir().join("kubernetes")
    }

    /// `/etc/kubernetes/pki` of the node.
    #[must_use]
    pub fn pki(&self) -> PathBuf {
        self.kubernetes().join("pki")
    }

    /// The path of the administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubernetes().join("admin.conf")
    }

    /// The folder that is mounted at `inside` in the node.
    pub(crate) fn data(&self, inside: &str) -> PathBuf {
        self.dir().join("data").join(inside)
    }

    /// Mount point of the node's root file system, visible in its own mount namespace only.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir().join("scratch")
    }

    /// `/etc/resolv.conf` for programs that enter the node's network.
    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.dir().join("resolv.conf")
    }

    /// `/etc/hosts` for the same programs.
    pub(crate) fn hosts(&self) -> PathBuf {
        self.dir().join("hosts")
    }

    /// The node's cgroup, the same in every hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        format!("{}/{}", crate::cgroups::PARENT, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_escape_the_state_folder_are_refused() {
        let table = [
            ("default", true),
            ("it-1", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            ("A", false),
            ("-a", false),
        ];
        for (name, fits) in table {
            assert_eq!(Layout::new(name, Some(Path::new("/x"))).is_ok(), fits, "{name}");
        }
    }

    #[test]
    fn state_folders_that_cannot_be_mount_options_are_refused() {
        for (state, fits) in [("/x", true), ("x", false), ("/a,b", false), ("/a:b", false), ("/a b", false)] {
            assert_eq!(Layout::new("n", Some(Path::new(state))).is_ok(), fits, "{state}");
        }
    }
}
