//! A directory, which the user's profile protects from other users.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::create_folder;
use crate::login::private_files::{Private, name_of_new, parent};

/// A directory, which the user's profile protects from others.
#[derive(Debug)]
pub(crate) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Returns the directory of a file, and creates it if necessary.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = parent(path);
        create_folder(path)?;
        Ok(Self(path.to_owned()))
    }

    /// Opens a file in the directory, and creates it if necessary.
    pub(crate) fn open(&self, name: &OsStr) -> io::Result<Private> {
        let path = self.0.join(name);
        check(&path)?;
        let file = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(path)?;
        Ok(Private { file, was_writable_by_others: false })
    }

    /// Opens a file for reading, without a change of it; `None` if it does not exist.
    pub(crate) fn open_existing(path: &Path) -> io::Result<Option<Private>> {
        check(path)?;
        match File::open(path) {
            Ok(file) => Ok(Some(Private { file, was_writable_by_others: false })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a lock file as [`PrivateFolder::open_existing`] does.
    pub(crate) fn open_existing_lock(path: &Path) -> io::Result<Option<Private>> {
        Self::open_existing(path)
    }

    /// Replaces the content of a file in one step. The caller holds a lock, so that no other
    /// process does the same.
    pub(crate) fn replace(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
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

fn check(path: &Path) -> io::Result<()> {
    match path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        true => Err(io::Error::new(io::ErrorKind::Unsupported, "not a regular file")),
        false => Ok(()),
    }
}
