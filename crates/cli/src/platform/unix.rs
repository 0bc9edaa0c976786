//! Unix: permissions of files, the terminal, signals, process groups.

mod private_folder;
mod signals;
mod terminal;

use std::borrow::Cow;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};

pub(crate) use private_folder::PrivateFolder;
pub(crate) use signals::{ForwardedSignals, StopSignals};
pub(crate) use terminal::{read_hidden_line, read_line};

/// The environment variable with the home directory.
pub(crate) const HOME: &str = "HOME";

/// Whether terminals set the variable `TERM`.
pub(crate) const TERMINALS_SET_TERM: bool = true;

/// Directories that are searched after those of `PATH`: desktop programs such as Lens start kubectl
/// with a short one.
pub(crate) const MORE_DIRECTORIES: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Returns the name under which a variable is found. Names are case-sensitive.
pub(crate) fn variable_name(name: Cow<'_, str>) -> Cow<'_, str> {
    name
}

/// Returns the process ID of the parent.
#[expect(clippy::unnecessary_wraps, reason = "Windows has none")]
pub(crate) fn parent_process() -> Option<u32> {
    Some(std::os::unix::process::parent_id())
}

/// Separates a program from the terminal's Ctrl-C.
pub(crate) fn own_process_group(command: &mut Command) {
    command.process_group(0);
}

/// Returns the number of the signal that terminated a process.
pub(crate) fn exit_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Returns whether a file may be run.
pub(crate) fn is_program_file(found: &Metadata) -> bool {
    found.permissions().mode() & 0o111 != 0
}

/// Returns whether a file is a pipe.
pub(crate) fn is_pipe(found: &Metadata) -> bool {
    found.file_type().is_fifo()
}

/// Returns whether a file is the device that is always empty.
pub(crate) fn is_null_device(found: &Metadata) -> bool {
    let is_same = |null: Metadata| null.rdev() == found.rdev();
    found.file_type().is_char_device() && Path::new("/dev/null").metadata().is_ok_and(is_same)
}

/// Makes new files readable by this user only.
pub(crate) fn private_options(options: &mut OpenOptions) {
    options.mode(0o600);
}

/// Creates a directory, which only this user can enter, and its parents.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Gives a file the owner and group of another one.
pub(crate) fn copy_owner(file: &File, like: &Metadata) -> io::Result<()> {
    let mine = file.metadata()?;
    if (mine.uid(), mine.gid()) != (like.uid(), like.gid()) {
        std::os::unix::fs::fchown(file, Some(like.uid()), Some(like.gid()))?;
    }
    Ok(())
}
