//! The texts beside the program: completions, man pages, and the licence.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use flate2::{Compression, GzBuilder};

use super::archive::File;
use super::read;
use crate::cargo;

/// A shell, the path of its completions in archives, and in Debian packages.
struct Shell {
    name: &'static str,
    archive: &'static str,
    debian: Option<&'static str>,
}

static SHELLS: [Shell; 4] = [
    Shell {
        name: "bash",
        archive: "completions/pinniped.bash",
        debian: Some("usr/share/bash-completion/completions/pinniped"),
    },
    Shell {
        name: "fish",
        archive: "completions/pinniped.fish",
        debian: Some("usr/share/fish/vendor_completions.d/pinniped.fish"),
    },
    Shell { name: "powershell", archive: "completions/pinniped.ps1", debian: None },
    Shell {
        name: "zsh",
        archive: "completions/_pinniped",
        debian: Some("usr/share/zsh/vendor-completions/_pinniped"),
    },
];

/// The command of the program that writes man pages into a folder.
const MAN: &str = "generate-man";

/// The texts, which are the same on all platforms.
pub(super) struct Texts {
    completions: Vec<(&'static Shell, Vec<u8>)>,
    /// Man pages by their file name, such as `pinniped.1`.
    man: Vec<(String, Vec<u8>)>,
    licence: Vec<u8>,
}

/// Returns the texts that a program of this machine prints.
pub(super) fn of(program: &Path) -> anyhow::Result<Texts> {
    let mut completions = Vec::new();
    for shell in &SHELLS {
        let text = cargo::output(Command::new(program).args(["completion", shell.name]))?;
        completions.push((shell, text.into_bytes()));
    }
    Ok(Texts { completions, man: man(program)?, licence: read(&cargo::root().join("LICENSE"))? })
}

/// Returns the man pages, sorted.
fn man(program: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let folder = tempfile::tempdir().context("could not create a folder for man pages")?;
    cargo::output(Command::new(program).arg(MAN).arg(folder.path()))?;
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder.path()).context("could not list the man pages")? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a man page has no name")?;
        pages.push((name.to_owned(), read(&path)?));
    }
    anyhow::ensure!(!pages.is_empty(), "the program wrote no man pages");
    pages.sort();
    Ok(pages)
}

impl Texts {
    /// Returns the files of an archive.
    pub(super) fn files_of_archive(&self) -> Vec<File> {
        let completions =
            self.completions.iter().map(|(shell, text)| File::text(shell.archive, text.clone()));
        let man = self.man.iter().map(|(name, page)| File::text(format!("man/man1/{name}"), page.clone()));
        completions.chain(man).chain([File::text("LICENSE", self.licence.clone())]).collect()
    }

    /// Returns the files of a Debian package, by path.
    pub(super) fn files_of_package(&self) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        let mut files = vec![("usr/share/doc/pinniped/copyright".to_owned(), self.licence.clone())];
        for (shell, text) in &self.completions {
            files.extend(shell.debian.map(|path| (path.to_owned(), text.clone())));
        }
        for (name, page) in &self.man {
            // Debian compresses man pages.
            let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
            encoder.write_all(page)?;
            files.push((format!("usr/share/man/man1/{name}.gz"), encoder.finish()?));
        }
        Ok(files)
    }
}
