//! Unix: resource limits, file descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Listener;

/// Maximum soft limit on open files that macOS accepts (`OPEN_MAX` in `setrlimit(2)`), also if the
/// hard limit is higher.
const MACOS_OPEN_MAX: u64 = 10_240;

/// `EBADF`.
pub(crate) const BAD_DESCRIPTOR: i32 = 9;

/// Gives access to the socket, for options that this type does not offer.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// Raises the soft limit on open files to the highest one that the system accepts. Returns the
/// limit that then applies, `None` for no limit.
pub(crate) fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = highest(&limit, cfg!(target_os = "macos").then_some(MACOS_OPEN_MAX));
    match setrlimit(Resource::Nofile, Rlimit { current: raised, maximum: limit.maximum }) {
        Ok(()) => raised,
        Err(_) => limit.current,
    }
}

/// Returns the highest soft limit: the hard limit, of which the system may accept only a part. It
/// is never lower than the current soft limit.
fn highest(limit: &Rlimit, accepted: Option<u64>) -> Option<u64> {
    let Some(accepted) = accepted else { return limit.maximum };
    let highest = limit.maximum.map_or(accepted, |maximum| maximum.min(accepted));
    limit.current.map(|current| current.max(highest))
}

/// Sets the size of core dumps to 0.
pub(super) fn deny_core_files() -> io::Result<()> {
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_limit_is_one_that_the_system_accepts() {
        for (current, maximum, accepted, highest) in [
            (Some(256), None, None, None),
            (Some(256), Some(4096), None, Some(4096)),
            (Some(256), None, Some(10_240), Some(10_240)),
            (Some(256), Some(4096), Some(10_240), Some(4096)),
            (Some(256), Some(65_536), Some(10_240), Some(10_240)),
            // A higher limit that was set before remains.
            (Some(20_000), None, Some(10_240), Some(20_000)),
            (None, None, Some(10_240), None),
        ] {
            let limit = Rlimit { current, maximum };
            assert_eq!(super::highest(&limit, accepted), highest, "{limit:?} {accepted:?}");
        }
    }

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
