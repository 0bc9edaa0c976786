//! A directory whose files are opened relative to its descriptor.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, open, openat, renameat, unlinkat};
use rustix::process::geteuid;

use super::create_folder;
use crate::login::private_files::{Private, name_of_new, parent};

/// The cache directory, which belongs to this program. Other directories belong to the user and
/// stay unchanged.
const OWN_FOLDER: &str = "pinniped";

const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Opening a pipe without a reader must not block.
const READ: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct PrivateFolder(OwnedFd);

impl PrivateFolder {
    /// Opens the directory of a file, and creates it if necessary.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = parent(path);
        create_folder(path)?;
        let (folder, own) = Self::existing(path)?;
        if let Some(found) = own
            && mode(&found).intersects(Mode::RWXG | Mode::RWXO)
        {
            fchmod(&folder.0, Mode::RWXU)?;
        }
        Ok(folder)
    }

    /// Opens a directory, and returns what is known about it if it belongs to this program.
    fn existing(path: &Path) -> io::Result<(Self, Option<Stat>)> {
        let own = path.file_name().is_some_and(|name| name == OWN_FOLDER);
        // A directory of the user may be a symbolic link.
        let follow = if own { OFlags::NOFOLLOW } else { OFlags::empty() };
        let folder =
            open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | follow, Mode::empty())?;
        let found = match own {
            true => Some(fstat(&folder)?),
            false => None,
        };
        found.as_ref().map_or(Ok(()), check_owner)?;
        Ok((Self(folder), found))
    }

    /// Opens a file for reading, without a change of it or of its directory; `None` if it does not
    /// exist.
    pub(crate) fn open_existing(path: &Path) -> io::Result<Option<Private>> {
        Self::existing_file(path, OFlags::RDONLY)
    }

    /// Opens a lock file for reading and writing, without a change of it or of its directory;
    /// `None` if it does not exist. On NFS, an exclusive lock needs a descriptor for writing. A
    /// file that is not writable is opened for reading.
    pub(crate) fn open_existing_lock(path: &Path) -> io::Result<Option<Private>> {
        match Self::existing_file(path, OFlags::RDWR) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Self::open_existing(path)
            }
            result => result,
        }
    }

    fn existing_file(path: &Path, access: OFlags) -> io::Result<Option<Private>> {
        let open = || {
            let (folder, _) = Self::existing(parent(path))?;
            let name = path.file_name().unwrap_or_default();
            Self::checked(openat(&folder.0, name, READ | access, Mode::empty())?)
        };
        match open() {
            Ok((file, found)) => Ok(Some(Private {
                file: file.into(),
                was_writable_by_others: mode(&found).intersects(Mode::WGRP | Mode::WOTH),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn checked(file: OwnedFd) -> io::Result<(OwnedFd, Stat)> {
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "not a regular file"));
        }
        check_owner(&found)?;
        Ok((file, found))
    }

    /// Opens a file in the directory, and creates it if necessary.
    pub(crate) fn open(&self, name: &OsStr) -> io::Result<Private> {
        let flags = READ | OFlags::RDWR | OFlags::CREATE;
        let (file, found) = Self::checked(openat(&self.0, name, flags, PRIVATE_FILE)?)?;
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
    pub(crate) fn replace(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_existing_lock_file_is_opened_for_writing_and_no_file_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(PrivateFolder::open_existing_lock(&path).unwrap().is_none());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let mut lock = PrivateFolder::open_existing_lock(&path).unwrap().unwrap().file;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        // The system refuses this for a descriptor that is only for reading.
        lock.write_all(b"x").unwrap();
    }
}
