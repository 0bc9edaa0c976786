//! Systems other than Linux: only the ID of another process is known.

/// Returns nothing.
pub(crate) fn command_line(_: u32) -> Option<Vec<String>> {
    None
}

/// Returns the ID. A later process may have the same one.
#[expect(clippy::unnecessary_wraps, reason = "Linux may not know the process")]
pub(crate) fn process_identity(process: u32) -> Option<String> {
    Some(process.to_string())
}
