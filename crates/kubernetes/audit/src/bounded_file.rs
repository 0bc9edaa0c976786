//! Reads files whose size is limited.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The maximum size of a file in bytes, which is that of a ConfigMap or a Secret.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file.
///
/// # Errors
/// Returns an error when the file cannot be read, is not UTF-8, or is too large.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let size = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match size as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("the file is larger than {MAX_BYTES} bytes"))),
        false => Ok(text),
    }
}
