//! The revision of the source tree, for documents about artifacts and for reproducible times.

use std::process::Command;

use anyhow::Context as _;

use crate::cargo;

/// Version of the workspace, and thus of all artifacts.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The repository.
pub(crate) const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The variable of <https://reproducible-builds.org/specs/source-date-epoch/>.
pub(crate) const EPOCH_ENV: &str = "SOURCE_DATE_EPOCH";

/// A revision of the source tree.
pub(crate) struct Revision {
    /// The commit.
    pub(crate) commit: String,
    /// The time of all files in artifacts, in seconds since 1970: `SOURCE_DATE_EPOCH`, or the time
    /// of the commit.
    pub(crate) epoch: u64,
    /// Whether files that git tracks differ from the commit.
    pub(crate) is_changed: bool,
}

/// Returns the current revision.
pub(crate) fn current() -> anyhow::Result<Revision> {
    let mut git = Command::new("git");
    git.current_dir(cargo::root()).args(["log", "-1", "--format=%H %ct"]);
    let text = cargo::output(&mut git)?;
    let (commit, time) = text.trim().split_once(' ').context("git printed no revision")?;
    let epoch = match std::env::var(EPOCH_ENV) {
        Ok(epoch) => epoch.parse().with_context(|| format!("{EPOCH_ENV} is not a number: {epoch:?}"))?,
        Err(_) => time.parse().context("git printed no time")?,
    };
    let mut status = Command::new("git");
    status.current_dir(cargo::root()).args(["status", "--porcelain", "--untracked-files=no"]);
    let is_changed = !cargo::output(&mut status)?.is_empty();
    if is_changed {
        eprintln!("note: the working tree has changes, and the provenance records it");
    }
    Ok(Revision { commit: commit.to_owned(), epoch, is_changed })
}
