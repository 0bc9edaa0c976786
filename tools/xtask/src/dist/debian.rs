//! The Debian package of the command line, built by Debian's own `dpkg-deb`.
//!
//! `dpkg-deb` reads `SOURCE_DATE_EPOCH`. A program with a static C library needs no other package;
//! for other programs `dpkg-shlibdeps` lists the packages that they need.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use pinniped_image::Program;

use super::texts::Texts;
use crate::cargo;
use crate::revision::{EPOCH_ENV, REPOSITORY, Revision, VERSION};

const NAME: &str = "pinniped";
const PROGRAM: &str = "usr/bin/pinniped";
const DESCRIPTION: &str = "\
log in to Kubernetes clusters with your own identity
 The command line of pinniped-rs: it writes a kubeconfig that can be shared,
 logs in when kubectl requests credentials, and reports problems of an
 installation of the Pinniped Concierge.
";

/// The input of a package.
pub(super) struct Package<'a> {
    pub(super) architecture: &'a str,
    /// The path of the program.
    pub(super) program: &'a Path,
    pub(super) read: &'a Program,
    pub(super) texts: &'a Texts,
}

impl Package<'_> {
    /// Writes the package into a folder and returns its name.
    pub(super) fn build(&self, folder: &Path, revision: &Revision) -> anyhow::Result<String> {
        let work = tempfile::tempdir().context("could not create a folder for the package")?;
        let tree = work.path().join("tree");
        let files = self.texts.files_of_package()?;
        let texts: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        let control = self.control(texts + self.read.bytes.len(), work.path())?;
        write(&tree, "DEBIAN/control", control.as_bytes(), 0o644)?;
        write(&tree, PROGRAM, &self.read.bytes, 0o755)?;
        for (path, bytes) in &files {
            write(&tree, path, bytes, 0o644)?;
        }
        let name = format!("{NAME}_{}_{}.deb", version(VERSION), self.architecture);
        let mut command = Command::new("dpkg-deb");
        // One thread, so that the compressed bytes do not depend on the number of processors.
        command.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]);
        command.arg(&tree).arg(folder.join(&name)).env(EPOCH_ENV, revision.epoch.to_string());
        cargo::output(&mut command).context("could not build the Debian package (package dpkg)")?;
        Ok(name)
    }

    fn control(&self, bytes: usize, work: &Path) -> anyhow::Result<String> {
        let depends = if self.read.dynamic { self.libraries(work)? } else { String::new() };
        let depends = if depends.is_empty() { depends } else { format!("Depends: {depends}\n") };
        Ok(format!(
            "Package: {NAME}\nVersion: {}\nArchitecture: {}\nMaintainer: pinniped-rs <{REPOSITORY}>\n\
             Installed-Size: {}\n{depends}Section: admin\nPriority: optional\nHomepage: {REPOSITORY}\n\
             Description: {DESCRIPTION}",
            version(VERSION),
            self.architecture,
            bytes.div_ceil(1024),
        ))
    }

    /// Returns the packages with the shared libraries of the program.
    fn libraries(&self, work: &Path) -> anyhow::Result<String> {
        // The tool runs only in the source tree of a package.
        let source = format!("Source: {NAME}\n\nPackage: {NAME}\nArchitecture: any\n");
        write(work, "debian/control", source.as_bytes(), 0o644)?;
        let mut command = Command::new("dpkg-shlibdeps");
        command.current_dir(work).arg("-O").arg(std::path::absolute(self.program)?);
        let text = cargo::output(&mut command)
            .context("could not list the packages with the program's libraries (package dpkg-dev)")?;
        let depends = text.trim().strip_prefix("shlibs:Depends=");
        Ok(depends.context("dpkg-shlibdeps printed no packages")?.to_owned())
    }
}

/// Returns a version in Debian's order, where `~` sorts before the end: `1.0.0-rc.1` is earlier
/// than `1.0.0`.
fn version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

/// Writes a file below `root`, whose folders get the permissions of folders in packages.
fn write(root: &Path, path: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let file: PathBuf = root.join(path);
    let written = || -> std::io::Result<()> {
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
        std::fs::create_dir_all(file.parent().unwrap_or(root))?;
        for folder in file.ancestors().skip(1).take_while(|folder| folder.starts_with(root)) {
            set(folder, 0o755)?;
        }
        std::fs::write(&file, bytes)?;
        set(&file, mode)
    };
    written().with_context(|| format!("could not write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_sorts_before_its_version() {
        assert_eq!(version("1.2.3"), "1.2.3");
        assert_eq!(version("1.2.3-rc.1"), "1.2.3~rc.1");
    }
}
