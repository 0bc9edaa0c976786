//! `pinniped generate-man`: writes the manual pages into a directory, for packages of the program.

use std::io;
use std::path::{Path, PathBuf};

use pinniped_go_compat::io::GoIoError;

use crate::flags::man;

/// The pages were not written.
#[derive(Debug, thiserror::Error)]
pub enum GenerateManError {
    /// There is not exactly one directory.
    #[error("accepts 1 arg(s), received {0}")]
    Arguments(usize),
    /// The directory or a file in it cannot be written.
    #[error("could not write {}", .path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
}

/// Writes the pages into the directory of `words`, and creates it if necessary.
pub(super) fn run(words: &[String]) -> Result<(), GenerateManError> {
    let [folder] = words else { return Err(GenerateManError::Arguments(words.len())) };
    let folder = Path::new(folder);
    let failed = |path: &Path, source: io::Error| GenerateManError::Write {
        path: path.to_owned(),
        source: source.into(),
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for page in man::pages() {
        let path = folder.join(&page.file);
        std::fs::write(&path, page.text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
