//! Systems other than Linux: no cgroups, and no attribute against dumps.

use std::io;

/// `ENOTSOCK` of BSD and macOS, or `WSAENOTSOCK`.
pub(crate) const NOT_A_SOCKET: i32 = if cfg!(windows) { 10_038 } else { 38 };

/// Returns no limit.
pub(crate) fn memory_limit() -> Option<u64> {
    None
}

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
pub(super) fn deny_dumps() -> io::Result<()> {
    Ok(())
}
