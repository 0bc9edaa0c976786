//! Files that no other user can read: created with private permissions, and checked and made
//! private when they are opened.
//!
//! On Unix, a file is opened relative to the descriptor of its directory without following symbolic
//! links, and the checks and changes apply to the open file. No other process can replace a path
//! component in between. `crate::platform` opens them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;

/// The suffix of the file that replaces another one.
const NEW: &str = ".new";

/// An open file.
#[derive(Debug)]
pub(crate) struct Private {
    /// The file, open for reading or for reading and writing.
    pub(crate) file: File,
    /// Whether other users could write to the file before it was opened.
    pub(crate) was_writable_by_others: bool,
}

pub(super) use crate::platform::PrivateFolder as Folder;

/// Returns the name of the file that replaces the file `name`.
pub(crate) fn name_of_new(name: &OsStr) -> OsString {
    let mut new = name.to_owned();
    new.push(NEW);
    new
}

/// Returns the directory of a file; for a name without a directory, the current one.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
