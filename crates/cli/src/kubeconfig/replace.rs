//! Changes a kubeconfig file in place like kubectl: with kubectl's lock, atomically, and with the
//! original owner and permissions.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pinniped_go_compat::io::GoIoError;

use crate::{bounded_file, platform, private_file};

/// The maximum time to wait for another program that changes the file.
const PATIENCE: Duration = Duration::from_secs(10);
/// The suffix of the file with the previous content.
const BACKUP_SUFFIX: &str = "pinniped-backup";
/// The polling interval.
const POLL: Duration = Duration::from_millis(10);

/// The reason why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// Another program holds the lock.
    #[error("{0} is locked by another program; if there is none, remove {0}.lock")]
    Locked(String),
    /// The file or its directory is not writable.
    #[error("{0} is read-only")]
    ReadOnly(String),
    /// The file cannot be read.
    #[error("could not read {path}")]
    Read {
        /// The file.
        path: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// Any other error.
    #[error("could not write {path}: {why}")]
    Io {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        why: io::Error,
    },
}

impl ReplaceError {
    fn of(path: &Path, why: io::Error) -> Self {
        let path = path.display().to_string();
        match why.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(path),
            ErrorKind::TimedOut => Self::Locked(path),
            _ => Self::Io { path, why },
        }
    }
}

/// Reads the file, passes it to `edit`, and replaces it with the new text. Holds the lock that
/// kubectl uses for its `config` commands. Returns whether the text changed.
///
/// # Errors
///
/// Returns an error; the file is unchanged.
pub(crate) fn replace(
    path: &Path,
    edit: impl FnOnce(&str) -> io::Result<Option<String>>,
) -> Result<bool, ReplaceError> {
    let attempt = || {
        let _lock = Lock::take(path)?;
        match edit(&bounded_file::read_to_string(path)?)? {
            Some(text) => write(path, &text).map(|()| true),
            None => Ok(false),
        }
    };
    attempt().map_err(|why| ReplaceError::of(path, why))
}

/// Changes the file as [`replace`] does, and keeps its previous content in a file beside it.
/// Creates a file that does not exist, with private permissions; `edit` then gets an empty text.
/// Returns the path of the copy, if one was made.
///
/// # Errors
///
/// Returns an error; the file is unchanged.
pub(crate) fn replace_with_backup(
    path: &Path,
    edit: impl FnOnce(&str) -> io::Result<Option<String>>,
) -> Result<Option<PathBuf>, ReplaceError> {
    let attempt = || {
        create_folder_of(path)?;
        let _lock = Lock::take(path)?;
        if is_missing(path) {
            if let Some(text) = edit("")? {
                write_in_one_step(path, &text, |_| Ok(()))?;
            }
            return Ok(None);
        }
        let before = bounded_file::read_to_string(path)?;
        let Some(text) = edit(&before)? else { return Ok(None) };
        // Otherwise the older copy would be lost, although the file does not change.
        writable(path)?;
        let copy = back_up(path, &before)?;
        write(path, &text).map(|()| Some(copy))
    };
    attempt().map_err(|why| ReplaceError::of(path, why))
}

/// Returns the text of a file that [`replace_with_backup`] is to change later; `None` if there is
/// no such file. Creates the directory.
///
/// # Errors
///
/// Returns an error if the file cannot be read or changed.
pub(crate) fn read_if_replaceable(path: &Path) -> Result<Option<String>, ReplaceError> {
    let of = |why| ReplaceError::of(path, why);
    create_folder_of(path).map_err(of)?;
    let text = match is_missing(path) {
        true => None,
        false => Some(bounded_file::read_to_string(path).map_err(|error| ReplaceError::Read {
            path: path.display().to_string(),
            source: error.into(),
        })?),
    };
    // Only an attempt shows whether the directory is writable.
    drop(Lock::take(path).map_err(of)?);
    if text.is_some() {
        writable(path).map_err(of)?;
    }
    Ok(text)
}

fn create_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), platform::create_folder)
}

/// Returns whether there is nothing at this path. A symbolic link without its target is something:
/// it is not replaced.
fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// kubectl's lock: the program that has created the lock file holds it.
struct Lock(PathBuf);

impl Lock {
    #[expect(clippy::disallowed_methods, reason = "there is no notification of a deleted file")]
    fn take(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match OpenOptions::new().create_new(true).write(true).open(&lock) {
                Ok(_) => return Ok(Self(lock)),
                Err(err) if err.kind() == ErrorKind::AlreadyExists => {}
                Err(err) => return Err(err),
            }
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If the removal fails, the next program reports the path.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the file to which a path leads, if it can be changed.
fn writable(path: &Path) -> io::Result<(PathBuf, Metadata)> {
    // A symbolic link stays a symbolic link.
    let path = path.canonicalize()?;
    let metadata = path.metadata()?;
    // Write access to the directory would otherwise allow replacing a read-only file.
    if metadata.permissions().readonly() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    OpenOptions::new().write(true).open(&path)?;
    Ok((path, metadata))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let (path, metadata) = writable(path)?;
    write_in_one_step(&path, text, |file| {
        platform::copy_owner(file, &metadata)?;
        file.set_permissions(metadata.permissions())
    })
}

/// Writes a file in one step, with private permissions unless `prepare` changes them: another
/// process finds all of it, or the previous file.
fn write_in_one_step(
    path: &Path,
    text: &str,
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let new = beside(path, &private_file::random_name()?);
    let written = private_file::create(&new).and_then(|mut file| {
        prepare(&file)?;
        file.write_all(text.as_bytes())?;
        File::sync_all(&file)
    });
    let written = written.and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Writes the previous content beside the file to which `path` leads, for its owner only. Replaces
/// an older copy.
fn back_up(path: &Path, text: &str) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    let copy = beside(&path, BACKUP_SUFFIX);
    let metadata = path.metadata()?;
    write_in_one_step(&copy, text, |file| platform::copy_owner(file, &metadata))?;
    Ok(copy)
}

/// Returns the path with `.` and a suffix.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}"));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir, text: &str) -> PathBuf {
        let path = dir.path().join("config");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn names(dir: &tempfile::TempDir) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn no_temporary_file_remains_and_unchanged_files_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(&dir, "old");
        assert!(!replace(&path, |_| Ok(None)).unwrap());
        assert!(replace(&path, |text| Ok(Some(format!("{text} and new")))).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old and new");
        assert!(matches!(
            replace(&path, |_| Err(ErrorKind::InvalidData.into())),
            Err(ReplaceError::Io { .. })
        ));
        assert_eq!(names(&dir), ["config"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_are_preserved() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = file(&dir, "old");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("config", &link).unwrap();
        assert!(replace(&link, |_| Ok(Some("new".into()))).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());

        // Renaming would succeed even for a user with all permissions.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        let error = replace(&path, |_| Ok(Some("newer".into()))).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is read-only", path.display()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(&dir), ["config", "link"]);
    }

    #[cfg(unix)]
    #[test]
    fn the_previous_content_is_kept_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = file(&dir, "first");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("config", &link).unwrap();
        let copy = dir.path().canonicalize().unwrap().join("config.pinniped-backup");
        for (before, after) in [("first", "second"), ("second", "third")] {
            let edit = |text: &str| {
                assert_eq!(text, before);
                Ok(Some(after.to_owned()))
            };
            assert_eq!(replace_with_backup(&link, edit).unwrap().as_ref(), Some(&copy));
            assert_eq!(std::fs::read_to_string(&copy).unwrap(), before);
            assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        }
        // The older copy stays if the file cannot be changed.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert!(replace_with_backup(&path, |_| Ok(Some("fourth".into()))).is_err());
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), "second");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(replace_with_backup(&path, |_| Ok(None)).unwrap(), None);
        assert!(replace_with_backup(&path, |_| Err(ErrorKind::InvalidData.into())).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(names(&dir), ["config", "config.pinniped-backup", "link"]);

        // A link without a target, such as that of a volume that is not mounted.
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        assert!(replace_with_backup(&dir.path().join("dangling"), |_| panic!()).is_err());
        assert!(!dir.path().join("nowhere").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_missing_file_is_created_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/config");
        assert_eq!(replace_with_backup(&path, |_| Ok(None)).unwrap(), None);
        assert!(!path.exists());
        let edit = |text: &str| {
            assert_eq!(text, "");
            Ok(Some("text".to_owned()))
        };
        assert_eq!(replace_with_backup(&path, edit).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(dir.path().join("new")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn concurrent_writers_are_serialized() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(&dir, "");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        assert!(replace(&path, |text| Ok(Some(format!("{text}x")))).unwrap());
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x".repeat(80));
    }
}
