//! The parts of the program that differ between operating systems. All other code is the same
//! everywhere.
//!
//! | module | systems |
//! |---|---|
//! | `linux` | Linux: other processes, from `/proc` |
//! | `other` | all but Linux: nothing is known about other processes |
//! | `macos` | macOS: the program that opens a browser |
//! | `xdg` | Linux and BSD: the programs that open a browser |
//! | `unix` | Unix: permissions of files, the terminal, signals, process groups |
//! | `keyring` | all: the keyring of the system |
//! | `windows` | Windows: the same, as far as the system has it |

mod keyring;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;
#[cfg(all(unix, not(target_os = "macos")))]
mod xdg;

pub use keyring::KeyringError;
pub(crate) use keyring::{ItemName, SystemKeyring};
#[cfg(target_os = "linux")]
pub(crate) use linux::{command_line, process_identity};
#[cfg(target_os = "macos")]
pub(crate) use macos::{NEEDS_DISPLAY, OPENERS};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{command_line, process_identity};
#[cfg(unix)]
pub(crate) use unix::{
    ForwardedSignals, HOME, MORE_DIRECTORIES, PrivateFolder, StopSignals, TERMINALS_SET_TERM, copy_owner,
    create_folder, exit_signal, is_null_device, is_pipe, is_program_file, own_process_group, parent_process,
    private_options, read_hidden_line, read_line, variable_name,
};
#[cfg(windows)]
pub(crate) use windows::{
    ForwardedSignals, HOME, MORE_DIRECTORIES, NEEDS_DISPLAY, OPENERS, PrivateFolder, StopSignals,
    TERMINALS_SET_TERM, copy_owner, create_folder, exit_signal, is_null_device, is_pipe, is_program_file,
    own_process_group, parent_process, private_options, read_hidden_line, read_line, variable_name,
};
#[cfg(all(unix, not(target_os = "macos")))]
pub(crate) use xdg::{NEEDS_DISPLAY, OPENERS};
