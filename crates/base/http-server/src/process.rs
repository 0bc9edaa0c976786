//! Protection of the process that the servers run in.

use std::io;

/// Keeps the memory of the process, which holds keys and tokens, out of files: the kernel writes no
/// core dump, and other processes of the same user can neither trace this process nor read its
/// memory.
///
/// # Errors
/// Returns the error of the system call; the program can continue without this protection.
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
    fn core_dumps_are_disabled_permanently() {
        disable_core_dumps().unwrap();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        // A second call succeeds.
        disable_core_dumps().unwrap();
    }
}
