//! Checks the free disk space before a build and during tests.

use std::path::{Path, PathBuf};

use crate::cargo;

/// The size of a complete test build in an empty target folder (9 GB), including space for files of
/// the tests.
const WANTED_BYTES: u64 = 12_000_000_000;

/// Prints a note before a build that the linker would otherwise abort with `Bus error`.
pub(crate) fn note_when_short() {
    let Ok(target) = cargo::target_dir() else { return };
    if let Some(note) = free_bytes(&target).and_then(|free| note(&target, free)) {
        eprintln!("{note}");
    }
}

fn note(target: &Path, free: u64) -> Option<String> {
    (free < WANTED_BYTES).then(|| {
        format!(
            "note: the disk of {} has {:.1} GB free; a clean build needs up to {:.0} GB. `cargo clean` frees space",
            target.display(),
            free as f64 / 1e9,
            WANTED_BYTES as f64 / 1e9
        )
    })
}

/// Returns the free space for unprivileged users on the file system of the folder, which need not
/// exist yet.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let there: PathBuf = folder.ancestors().find(|path| path.exists())?.to_owned();
    let disk = rustix::fs::statvfs(&there).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_the_free_space_and_the_remedy() {
        assert_eq!(
            note(Path::new("/src/target"), 1_250_000_000).unwrap(),
            "note: the disk of /src/target has 1.2 GB free; a clean build needs up to 12 GB. `cargo clean` frees space"
        );
        assert_eq!(note(Path::new("/src/target"), WANTED_BYTES), None);
    }

    #[test]
    fn the_free_space_of_a_missing_folder_is_that_of_its_parent() {
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")).is_some(), free_bytes(Path::new("/")).is_some());
        assert!(free_bytes(Path::new("/")).is_some());
    }
}
