//! A directory whose files are opened relative to its descriptor.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, open, openat, renameat, unlinkat};
use rustix::process::geteuid;

use super::create_folder;
use crate::login::private_files::{Private, name_of_new, parent};

/// The cache directory, which belongs to this program. Other directories belong to the user and
/// stay unchanged.
const OWN_FOLDER: &str = "pinniped";

const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open directory.
#[derive(Debug)]
pub(crate) struct PrivateFolder(rustix::fd::OwnedFd);

impl PrivateFolder {
    /// Opens the directory of a file, and creates it if necessary.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = parent(path);
        create_folder(path)?;
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
    pub(crate) fn open(&self, name: &OsStr) -> io::Result<Private> {
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
