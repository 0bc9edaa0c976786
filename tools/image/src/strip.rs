//! Removes the symbols from a program with `strip` of binutils, whose output depends only on its
//! input.

use std::path::Path;
use std::process::Command;

use crate::error::Error;
use crate::image::read;

/// Returns the program without symbols, or `None` when this machine has no `strip`. A third of an
/// image would be names of functions. The message of a panic names file and line without them.
pub(crate) fn strip(program: &Path) -> Result<Option<Vec<u8>>, Error> {
    let folder = tempfile::tempdir().map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    let stripped = folder.path().join("stripped");
    let mut command = Command::new("strip");
    command.arg("--strip-all").arg("-o").arg(&stripped).arg(program).env("LC_ALL", "C");
    match command.output() {
        Ok(output) if output.status.success() => read(&stripped).map(Some),
        Ok(output) => Err(Error::Strip {
            path: program.to_owned(),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::Strip { path: program.to_owned(), message: error.to_string() }),
    }
}
