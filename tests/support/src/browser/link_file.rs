//! The program that opens links, replaced by one that writes them to a file.
//!
//! A program under test that opens the user's browser runs `xdg-open LINK`. A test puts
//! [`LinkFile::bin`] in front of its `PATH`, takes the link, and opens it in a [`super::Browser`].

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::wait;

/// The names under which programs search for it.
const NAMES: [&str; 3] = ["xdg-open", "x-www-browser", "www-browser"];
/// The program. Its only argument is the link.
const SCRIPT: &str = "#!/bin/sh\nprintf '%s\\n' \"$1\" >>\"${0%/*}/../links\"\n";

/// A folder with the program and the file.
#[derive(Clone, Debug)]
pub struct LinkFile {
    dir: PathBuf,
}

impl LinkFile {
    /// Creates the program in the folder `dir`, which must not contain another one.
    ///
    /// # Errors
    /// Returns an error when a file cannot be written.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let bin = dir.join("bin");
        std::fs::create_dir_all(&bin).with_context(|| format!("could not create {}", bin.display()))?;
        std::fs::write(dir.join("links"), "").context("could not write the file of links")?;
        for name in NAMES {
            let file = bin.join(name);
            std::fs::write(&file, SCRIPT)
                .and_then(|()| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)))
                .with_context(|| format!("could not write {}", file.display()))?;
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// The folder of the program.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Returns all links so far, oldest first.
    ///
    /// # Errors
    /// Returns an error when the file cannot be read.
    pub fn links(&self) -> anyhow::Result<Vec<String>> {
        let text =
            std::fs::read_to_string(self.dir.join("links")).context("could not read the file of links")?;
        // The last line may be incomplete.
        Ok(text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect())
    }

    /// Waits for the link with this index and returns it.
    ///
    /// # Errors
    /// Returns an error when there is none after `deadline`.
    pub async fn link(&self, index: usize, deadline: Duration) -> anyhow::Result<String> {
        wait::until_ok(deadline, "a program to open a link in the browser", async || {
            self.links()?.into_iter().nth(index).context("no program did")
        })
        .await
    }
}
