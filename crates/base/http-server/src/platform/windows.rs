//! Windows: no limit on open files, and no core files.

use std::io;

/// `WSAEBADF`.
pub(crate) const BAD_DESCRIPTOR: i32 = 10_009;

/// Returns no limit.
pub(crate) fn raise_open_files() -> Option<u64> {
    None
}

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "it can fail on Unix")]
pub(super) fn deny_core_files() -> io::Result<()> {
    Ok(())
}
