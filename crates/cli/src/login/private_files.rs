//! Files that no other user can read: created with private permissions, and checked and made
//! private when they are opened.
//!
//! A file is opened relative to the descriptor of its directory without following symbolic links,
//! and the checks and changes apply to the open file. No other process can replace a path component
//! in between.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::path::Path;

/// The suffix of the file that replaces another one.
const NEW: &str = ".new";

/// The cache directory, which belongs to this program. Other directories belong to the user and
/// stay unchanged.
const OWN_FOLDER: &str = "pinniped";

/// An open file.
#[derive(Debug)]
pub(super) struct Private {
    /// The file, open for reading and writing.
    pub(super) file: File,
    /// Whether other users could write to the file before it was opened.
    pub(super) was_writable_by_others: bool,
}

pub(super) use platform::Folder;

/// Returns the name of the file that replaces the file `name`.
fn name_of_new(name: &OsStr) -> OsString {
    let mut new = name.to_owned();
    new.push(NEW);
    new
}

fn create(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Returns the directory of a file; for a name without a directory, the current one.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(unix)]
mod platform {
    use std::io::Write as _;

    use rustix::fs::{
        AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, open, openat, renameat, unlinkat,
    };
    use rustix::process::geteuid;

    use super::*;

    const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

    /// An open directory.
    #[derive(Debug)]
    pub(in super::super) struct Folder(rustix::fd::OwnedFd);

    impl Folder {
        /// Opens the directory of a file, and creates it if necessary.
        pub(in super::super) fn of(path: &Path) -> io::Result<Self> {
            let path = parent(path);
            create(path)?;
            let own = path.file_name().is_some_and(|name| name == OWN_FOLDER);
            // A directory of the user may be a symbolic link.
            let follow = if own { OFlags::NOFOLLOW } else { OFlags::empty() };
            let folder =
                open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | follow, Mode::empty())?;
            if own {
                let found = fstat(&folder)?;
                check_owner(&found)?;
                if mode(&found).intersects(Mode::RWXG | Mode::RWXO) {
                    fchmod(&folder, Mode::RWXU)?;
                }
            }
            Ok(Self(folder))
        }

        /// Opens a file in the directory, and creates it if necessary.
        pub(in super::super) fn open(&self, name: &OsStr) -> io::Result<Private> {
            // Opening a pipe without a reader must not block.
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(&self.0, name, flags, PRIVATE_FILE)?;
            let found = fstat(&file)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "not a regular file"));
            }
            check_owner(&found)?;
            if mode(&found).intersects(Mode::RWXG | Mode::RWXO) {
                fchmod(&file, PRIVATE_FILE)?;
            }
            Ok(Private {
                file: file.into(),
                was_writable_by_others: mode(&found).intersects(Mode::WGRP | Mode::WOTH),
            })
        }

        /// Replaces the content of a file in one step. The caller holds a lock, so that no other
        /// process does the same.
        pub(in super::super) fn replace(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
            let new = name_of_new(name);
            // A process that was killed may have left one.
            let _ = unlinkat(&self.0, new.as_os_str(), AtFlags::empty());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(&self.0, new.as_os_str(), flags, PRIVATE_FILE)?);
            let written = file.write_all(content);
            let replaced = written.and_then(|()| Ok(renameat(&self.0, new.as_os_str(), &self.0, name)?));
            if replaced.is_err() {
                // The error of the write is the better one.
                let _ = unlinkat(&self.0, new.as_os_str(), AtFlags::empty());
            }
            replaced
        }
    }

    fn mode(found: &Stat) -> Mode {
        Mode::from_raw_mode(found.st_mode)
    }

    fn check_owner(found: &Stat) -> io::Result<()> {
        if found.st_uid == geteuid().as_raw() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "owned by another user"))
    }
}

#[cfg(not(unix))]
mod platform {
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    use super::*;

    /// A directory, which the user's profile protects from others.
    #[derive(Debug)]
    pub(in super::super) struct Folder(PathBuf);

    impl Folder {
        /// Returns the directory of a file, and creates it if necessary.
        pub(in super::super) fn of(path: &Path) -> io::Result<Self> {
            let path = parent(path);
            create(path)?;
            Ok(Self(path.to_owned()))
        }

        /// Opens a file in the directory, and creates it if necessary.
        pub(in super::super) fn open(&self, name: &OsStr) -> io::Result<Private> {
            let path = self.0.join(name);
            if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "not a regular file"));
            }
            let file = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(path)?;
            Ok(Private { file, was_writable_by_others: false })
        }

        /// Replaces the content of a file in one step. The caller holds a lock, so that no other
        /// process does the same.
        pub(in super::super) fn replace(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
            let new = self.0.join(name_of_new(name));
            let written = std::fs::write(&new, content);
            let replaced = written.and_then(|()| std::fs::rename(&new, self.0.join(name)));
            if replaced.is_err() {
                // The error of the write is the better one.
                let _ = std::fs::remove_file(&new);
            }
            replaced
        }
    }
}
