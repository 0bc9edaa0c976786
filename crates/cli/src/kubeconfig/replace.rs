//! Changes a kubeconfig file in place like kubectl: with kubectl's lock, atomically, and with the
//! original owner and permissions.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{platform, private_file};

/// The maximum time to wait for another program that changes the file.
const PATIENCE: Duration = Duration::from_secs(10);
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
        match edit(&std::fs::read_to_string(path)?)? {
            Some(text) => write(path, &text).map(|()| true),
            None => Ok(false),
        }
    };
    attempt().map_err(|why| ReplaceError::of(path, why))
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

fn write(path: &Path, text: &str) -> io::Result<()> {
    // A symbolic link stays a symbolic link.
    let path = path.canonicalize()?;
    let metadata = path.metadata()?;
    // Write access to the directory would otherwise allow replacing a read-only file.
    if metadata.permissions().readonly() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    OpenOptions::new().write(true).open(&path)?;

    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", private_file::random_name()?));
    let new = path.with_file_name(name);
    let written = write_new(&new, text, &metadata).and_then(|()| std::fs::rename(&new, &path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn write_new(path: &Path, text: &str, like: &std::fs::Metadata) -> io::Result<()> {
    let mut file = private_file::create(path)?;
    platform::copy_owner(&file, like)?;
    file.set_permissions(like.permissions())?;
    file.write_all(text.as_bytes())?;
    File::sync_all(&file)
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
