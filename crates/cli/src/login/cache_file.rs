//! A cache file: one YAML document with a list of entries, and an advisory lock file beside it.
//!
//! The transaction of both caches, [`exec_cache`](super::exec_cache) and
//! [`session_cache`](super::session_cache): lock, read, remove old entries, change, write. Format
//! and locking are compatible with the upstream command line, so that both can share the files. The
//! new content replaces the file in one step: a process that is killed, or a disk that is full,
//! leaves the previous content.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use pinniped_go_compat::yaml as goyaml;

use super::private_files::{Folder, Private};
use crate::bounded_file::MAX_SIZE;

const API_VERSION: &str = "config.supervisor.pinniped.dev/v1alpha1";

/// The problem of a file whose content may be that of another user.
const WRITABLE_BY_OTHERS: &str = "other users could write to it";

/// The maximum time to wait for another process that holds the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The polling interval for the lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An entry of a cache file.
pub(super) trait CacheEntry: Serialize + DeserializeOwned {
    /// The kind of the document.
    const KIND: &'static str;
    /// The field of the document with the list of entries.
    const LIST: &'static str;

    /// Returns the creation time, by which entries are sorted.
    fn created(&self) -> Option<Timestamp>;

    /// Removes the parts that are not valid any more at `now`. Returns whether the entry is still
    /// of use.
    fn prune(&mut self, now: Timestamp) -> bool;
}

/// A cache file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheFileError {
    /// The directory cannot be opened or created.
    #[error("could not open the directory of {}", .path.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// The failed call.
        #[source]
        source: io::Error,
    },
    /// The lock cannot be taken.
    #[error("could not lock {}", .path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// The failed call.
        #[source]
        source: io::Error,
    },
    /// The file cannot be opened.
    #[error("could not open {}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The failed call.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("could not write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The failed call.
        #[source]
        source: io::Error,
    },
    /// The file is not a cache of this version, or cannot be trusted. It was not changed.
    #[error("{} cannot be used as a cache, and stays as it is: {problem}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The problem with its content.
        problem: &'static str,
    },
    /// The entries of the cache were removed. Other users could write to it, so that its tokens are
    /// sent nowhere.
    #[error(
        "{} was emptied, and nothing was revoked: {WRITABLE_BY_OTHERS}; end your sessions at the issuer, and log in again",
        .path.display()
    )]
    Emptied {
        /// The file.
        path: PathBuf,
    },
    /// The content was not readable, and was replaced.
    #[error("{} was not readable and has been replaced: {problem}", .path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
        /// The problem with the previous content.
        problem: &'static str,
    },
}

impl CacheFileError {
    /// Returns the path of the cache.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder { path, .. }
            | Self::Lock { path, .. }
            | Self::Open { path, .. }
            | Self::Write { path, .. }
            | Self::Unreadable { path, .. }
            | Self::Emptied { path }
            | Self::Replaced { path, .. } => path,
        }
    }
}

/// A file with entries of one type.
#[derive(Debug)]
pub(super) struct CacheFile<E> {
    path: PathBuf,
    entries: PhantomData<fn() -> E>,
}

impl<E> Clone for CacheFile<E> {
    fn clone(&self) -> Self {
        Self::new(&self.path)
    }
}

/// Either document: the kind distinguishes them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<E> {
    api_version: String,
    kind: String,
    #[serde(default = "Option::default", alias = "sessions")]
    credentials: Option<Vec<E>>,
}

impl<E> CacheFile<E> {
    /// Creates a cache with this file.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), entries: PhantomData }
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a lock file beside the cache, with the name of the cache and this suffix.
    pub(super) fn lock_file(&self, suffix: &str) -> io::Result<File> {
        Ok(Folder::of(&self.path)?.open(&self.name(suffix))?.file)
    }

    /// Returns the name of the file with this suffix, without its directory.
    fn name(&self, suffix: &str) -> OsString {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        name
    }
}

impl<E: CacheEntry> CacheFile<E> {
    /// Reads through a transaction, if the file exists: without a file there is no entry, and no
    /// file should be created. A change that cannot be stored, such as the time of the last use on
    /// a full disk, is no error.
    pub(super) fn read(&self, now: Timestamp, with: impl FnOnce(&mut Vec<E>)) -> Result<(), CacheFileError> {
        if self.path.symlink_metadata().is_err() {
            return Ok(());
        }
        match self.transaction(now, with) {
            Err(CacheFileError::Write { .. }) => Ok(()),
            result => result,
        }
    }

    /// Returns the entries that are valid at `now`, without a change of any file; none without a
    /// file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be locked or opened, or is not a cache.
    pub(super) fn peek(&self, now: Timestamp) -> Result<Vec<E>, CacheFileError> {
        let mut entries = match self.stored()? {
            None => Vec::new(),
            Some((_, true)) => return Err(self.unreadable(WRITABLE_BY_OTHERS)),
            Some((entries, false)) => entries,
        };
        entries.retain_mut(|entry: &mut E| entry.prune(now));
        Ok(entries)
    }

    /// Removes the entries that `is_removed` selects, and returns those that are valid at `now`.
    /// Without such an entry, nothing is changed or created.
    ///
    /// # Errors
    ///
    /// Returns an error without a change, also if the file is not a cache: a kubeconfig of another
    /// person may name any file. A cache that other users could write is emptied, and
    /// [`CacheFileError::Emptied`] returned.
    pub(super) fn take(
        &self,
        now: Timestamp,
        is_removed: impl Fn(&E) -> bool,
    ) -> Result<Vec<E>, CacheFileError> {
        // No file is changed or created if there is nothing to remove, or if the file is not a
        // cache.
        let Some((stored, was_writable_by_others)) = self.stored()? else { return Ok(Vec::new()) };
        if was_writable_by_others && !stored.is_empty() {
            self.store(self.open()?, "", Vec::new(), now, |_| {})?;
            return Err(CacheFileError::Emptied { path: self.path.clone() });
        }
        if !stored.iter().any(&is_removed) {
            return Ok(Vec::new());
        }
        let opened = self.open()?;
        let before = content(&opened.file).map_err(|problem| self.unreadable(problem))?;
        let entries = parse(&before).map_err(|problem| self.unreadable(problem))?;
        let mut taken = Vec::new();
        let change =
            |entries: &mut Vec<E>| taken = entries.extract_if(.., |entry| is_removed(entry)).collect();
        self.store(opened, &before, entries, now, change)?;
        Ok(taken)
    }

    /// Returns the entries of the file, without a change of any file, and whether other users could
    /// write to it; `None` without a file.
    fn stored(&self) -> Result<Option<(Vec<E>, bool)>, CacheFileError> {
        let path = || self.path.clone();
        // Upstream does not replace the file in one step. A program that writes has a lock file.
        let lock = Folder::open_existing_lock(&self.path.with_file_name(self.name(".lock")));
        let lock = lock.and_then(|lock| lock.map(|lock| acquire(&lock.file).map(|()| lock)).transpose());
        let _lock = lock.map_err(|source| CacheFileError::Lock { path: path(), source })?;
        let opened = Folder::open_existing(&self.path)
            .map_err(|source| CacheFileError::Open { path: path(), source })?;
        let Some(file) = opened else { return Ok(None) };
        let entries = text_of(&file).and_then(|text| parse(&text));
        let entries = entries.map_err(|problem| self.unreadable(problem))?;
        Ok(Some((entries, file.was_writable_by_others)))
    }

    fn unreadable(&self, problem: &'static str) -> CacheFileError {
        CacheFileError::Unreadable { path: self.path.clone(), problem }
    }

    /// Changes the entries that are valid at `now`.
    ///
    /// # Errors
    ///
    /// Returns [`CacheFileError::Replaced`] after a successful change of a file that was not
    /// readable, and the other errors without a change.
    pub(super) fn transaction(
        &self,
        now: Timestamp,
        change: impl FnOnce(&mut Vec<E>),
    ) -> Result<(), CacheFileError> {
        let opened = self.open()?;
        let (before, (entries, problem)) = match content(&opened.file) {
            Ok(before) => {
                let entries = parse(&before);
                (before, entries.map_or_else(|problem| (Vec::new(), Some(problem)), |all| (all, None)))
            }
            Err(problem) => (Zeroizing::default(), (Vec::new(), Some(problem))),
        };
        self.store(opened, &before, entries, now, change)?;
        match problem {
            Some(problem) => Err(CacheFileError::Replaced { path: self.path.clone(), problem }),
            None => Ok(()),
        }
    }

    /// Changes the entries that are valid at `now`, and replaces the file `before` with them.
    fn store(
        &self,
        opened: Opened,
        before: &str,
        mut entries: Vec<E>,
        now: Timestamp,
        change: impl FnOnce(&mut Vec<E>),
    ) -> Result<(), CacheFileError> {
        let Opened { folder, file, _lock } = opened;
        drop(file);
        entries.retain_mut(|entry: &mut E| entry.prune(now));
        change(&mut entries);
        entries.retain_mut(|entry| entry.prune(now));
        entries.sort_by_key(E::created);
        let written = text(&entries).and_then(|after| match after.as_str() == before {
            // Many uses in one second.
            true => Ok(()),
            false => folder.replace(&self.name(""), after.as_bytes()),
        });
        written.map_err(|source| CacheFileError::Write { path: self.path.clone(), source })
        // Closing the lock file releases the lock.
    }

    /// Locks the cache, and opens its file.
    fn open(&self) -> Result<Opened, CacheFileError> {
        let path = || self.path.clone();
        let folder =
            Folder::of(&self.path).map_err(|source| CacheFileError::Folder { path: path(), source })?;
        let lock = folder.open(&self.name(".lock")).and_then(|lock| acquire(&lock.file).map(|()| lock.file));
        let lock = lock.map_err(|source| CacheFileError::Lock { path: path(), source })?;
        let file =
            folder.open(&self.name("")).map_err(|source| CacheFileError::Open { path: path(), source })?;
        Ok(Opened { folder, file, _lock: lock })
    }
}

/// The open file of a cache, which is locked until this is dropped.
struct Opened {
    folder: Folder,
    file: Private,
    _lock: File,
}

#[expect(clippy::disallowed_methods, reason = "advisory locks cannot be waited for with a time limit")]
fn acquire(lock: &File) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(err)) => return Err(err),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL_INTERVAL),
        }
    }
}

/// Returns the text of the file, unless another user could have written it.
fn content(file: &Private) -> Result<Zeroizing<String>, &'static str> {
    match file.was_writable_by_others {
        true => Err(WRITABLE_BY_OTHERS),
        false => text_of(file),
    }
}

/// Returns the text of the file.
fn text_of(file: &Private) -> Result<Zeroizing<String>, &'static str> {
    let size = file.file.metadata().map_or(0, |metadata| metadata.len().min(MAX_SIZE));
    // A buffer that grows leaves copies of secrets behind.
    let mut text = Zeroizing::new(String::with_capacity(size as usize + 1));
    let read = (&file.file).take(MAX_SIZE).read_to_string(&mut text);
    read.map(|_| text).map_err(|_| "it could not be read as text")
}

/// Returns the entries of a file; none if it is new.
fn parse<E: CacheEntry>(text: &str) -> Result<Vec<E>, &'static str> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    match serde_saphyr::from_str::<Document<E>>(text) {
        Ok(document) if document.api_version == API_VERSION && document.kind == E::KIND => {
            Ok(document.credentials.unwrap_or_default())
        }
        Ok(_) => Err("it has another version or kind"),
        Err(_) => Err("it is not a cache file"),
    }
}

fn text<E: CacheEntry>(entries: &[E]) -> io::Result<Zeroizing<String>> {
    let mut document = Map::new();
    document.insert("apiVersion".to_owned(), json!(API_VERSION));
    document.insert("kind".to_owned(), json!(E::KIND));
    document.insert(E::LIST.to_owned(), serde_json::to_value(entries).map_err(io::Error::other)?);
    Ok(Zeroizing::new(goyaml::to_string(&Value::Object(document))))
}
