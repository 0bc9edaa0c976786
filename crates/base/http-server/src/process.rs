//! The process that the servers run in.

use std::io;

/// Keeps the process's memory, which holds keys and tokens, out of files: no core dump is written, and other processes
/// of the same user can neither trace this one nor read its memory.
///
/// # Errors
/// The system call's; the program works without.
pub fn disable_core_dumps() -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    }
    // The limit does not apply where the kernel pipes core dumps to a program.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::{DumpableBehavior, Resource, dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn a_process_without_core_dumps_cannot_have_them_again() {
        disable_core_dumps().unwrap();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        // Once more does no harm.
        disable_core_dumps().unwrap();
    }
}
