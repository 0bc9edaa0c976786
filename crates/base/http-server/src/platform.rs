//! The parts of this crate that differ between operating systems. All other code is the same
//! everywhere.
//!
//! | function | Linux | other Unix | Windows |
//! |---|---|---|---|
//! | [`disable_core_dumps`] | resource limit, dumpable attribute | resource limit | nothing |
//! | `memory_limit` | the lowest of the cgroups | none | none |
//! | `raise_open_files` | up to the hard limit | up to the hard limit; macOS: 10,240 at most | no limit |

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
use linux as kernel;
#[cfg(not(target_os = "linux"))]
use other as kernel;
#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

use std::io;

pub(crate) use kernel::{NOT_A_SOCKET, memory_limit};
pub(crate) use system::{BAD_DESCRIPTOR, raise_open_files};

/// Keeps the memory of the process, which holds keys and tokens, out of files: the kernel writes no
/// core dump, and on Linux, other processes of the same user can neither trace this process nor
/// read its memory. On Windows, it does nothing.
///
/// # Errors
/// Returns the error of the system call; the program can continue without this protection.
pub fn disable_core_dumps() -> io::Result<()> {
    system::deny_core_files()?;
    kernel::deny_dumps()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::{DumpableBehavior, Resource, dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn core_dumps_are_disabled_permanently() {
        disable_core_dumps().unwrap();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        // A second call succeeds.
        disable_core_dumps().unwrap();
    }
}
