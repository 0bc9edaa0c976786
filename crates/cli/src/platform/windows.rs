//! Windows. The permissions of the user's profile protect files; a process has no parent that it
//! can rely on.

mod private_folder;
mod signals;
mod terminal;

use std::borrow::Cow;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

pub(crate) use private_folder::PrivateFolder;
pub(crate) use signals::{ForwardedSignals, StopSignals};
pub(crate) use terminal::{read_hidden_line, read_line};

/// The environment variable with the home directory.
pub(crate) const HOME: &str = "USERPROFILE";

/// The programs that open an address, in order, and their arguments before it.
pub(crate) const OPENERS: [(&str, &[&str]); 1] = [("rundll32.exe", &["url.dll,FileProtocolHandler"])];

/// Whether a browser requires that a variable names a display.
pub(crate) const NEEDS_DISPLAY: bool = false;

/// Whether terminals set the variable `TERM`.
pub(crate) const TERMINALS_SET_TERM: bool = false;

/// Directories that are searched after those of `PATH`.
pub(crate) const MORE_DIRECTORIES: [&str; 1] = [r"C:\Windows\System32"];

/// The flags of `CreateProcess` for a program without the console of this one
/// (`CREATE_NEW_PROCESS_GROUP`, `CREATE_NO_WINDOW`).
const SEPARATE: u32 = 0x0000_0200 | 0x0800_0000;

/// Returns the name under which a variable is found. Names are not case-sensitive.
#[expect(clippy::needless_pass_by_value, reason = "Unix returns it")]
pub(crate) fn variable_name(name: Cow<'_, str>) -> Cow<'_, str> {
    name.to_uppercase().into()
}

/// Returns nothing.
pub(crate) fn parent_process() -> Option<u32> {
    None
}

/// Separates a program from the console's Ctrl-C.
pub(crate) fn own_process_group(command: &mut Command) {
    command.creation_flags(SEPARATE);
}

/// Returns nothing.
pub(crate) fn exit_signal(_: ExitStatus) -> Option<i32> {
    None
}

/// Returns whether a file may be run.
pub(crate) fn is_program_file(_: &Metadata) -> bool {
    true
}

/// Returns false: pipes have no paths in the file system.
pub(crate) fn is_pipe(_: &Metadata) -> bool {
    false
}

/// Returns false: the system returns no metadata of devices.
pub(crate) fn is_null_device(_: &Metadata) -> bool {
    false
}

/// Does nothing.
pub(crate) fn private_options(_: &mut OpenOptions) {}

/// Creates a directory and its parents.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(folder)
}

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "it can fail on Unix")]
pub(crate) fn copy_owner(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}
