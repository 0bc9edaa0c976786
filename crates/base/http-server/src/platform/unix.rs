//! Unix: resource limits, file descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Listener;

/// `EBADF`.
pub(crate) const BAD_DESCRIPTOR: i32 = 9;

/// Gives access to the socket, for options that this type does not offer.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// Raises the soft limit on open files to the hard limit. Returns the limit that then applies,
/// `None` for no limit.
pub(crate) fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// Sets the size of core dumps to 0.
pub(super) fn deny_core_files() -> io::Result<()> {
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_open_files_is_raised() {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let lower = current.map_or(1 << 20, |current| current - 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(lower), maximum }).unwrap();
        let raised = raise_open_files();
        assert_eq!(raised, maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
    }
}
