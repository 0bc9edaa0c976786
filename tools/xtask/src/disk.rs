//! Whether the disk has room for what is built.

use std::path::{Path, PathBuf};

use crate::cargo;

/// What a build of everything for the tests takes in an empty target folder, with room for what the tests write.
const WANTED_BYTES: u64 = 5_000_000_000;

/// Says beforehand what else a linker says with `Bus error`.
pub(crate) fn note_when_short() {
    let Ok(target) = cargo::target_dir() else { return };
    if let Some(note) = free_bytes(&target).and_then(|free| note(&target, free)) {
        eprintln!("{note}");
    }
}

fn note(target: &Path, free: u64) -> Option<String> {
    (free < WANTED_BYTES).then(|| {
        format!(
            "note: the disk of {} has {:.1} GB free; a build from nothing takes up to {:.0} GB. `cargo clean` makes room",
            target.display(),
            free as f64 / 1e9,
            WANTED_BYTES as f64 / 1e9
        )
    })
}

/// What an unprivileged user may still write where the folder is, or will be.
fn free_bytes(folder: &Path) -> Option<u64> {
    let there: PathBuf = folder.ancestors().find(|path| path.exists())?.to_owned();
    let disk = rustix::fs::statvfs(&there).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_with_what_is_free_and_what_to_do() {
        assert_eq!(
            note(Path::new("/src/target"), 1_250_000_000).unwrap(),
            "note: the disk of /src/target has 1.2 GB free; a build from nothing takes up to 5 GB. `cargo clean` makes room"
        );
        assert_eq!(note(Path::new("/src/target"), WANTED_BYTES), None);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_counts_as_the_one_it_will_be_in() {
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")).is_some(), free_bytes(Path::new("/")).is_some());
        assert!(free_bytes(Path::new("/")).is_some());
    }
}
