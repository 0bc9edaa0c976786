//! npm packages that `tools/third-party` pins: `package.json` has their versions and
//! `package-lock.json` their sums.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::cache;
use crate::cargo;

/// The first major version of Node.js that the packages support.
const NODE: u32 = 20;
/// The files that determine the packages.
const FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// Packages of a folder of `tools/third-party`.
pub(super) struct Packages {
    /// The contents of the files.
    texts: [Vec<u8>; 2],
}

impl Packages {
    /// Reads the files of a folder.
    pub(super) fn read(folder: &str) -> anyhow::Result<Self> {
        let dir = cargo::root().join("tools/third-party").join(folder);
        let read = |name| {
            let file = dir.join(name);
            std::fs::read(&file).with_context(|| format!("could not read {}", file.display()))
        };
        Ok(Self { texts: [read(FILES[0])?, read(FILES[1])?] })
    }

    /// Returns the version that `package.json` pins.
    pub(super) fn version(&self, package: &str) -> anyhow::Result<String> {
        let manifest = String::from_utf8_lossy(&self.texts[0]);
        let version = manifest.split_once(&format!("\"{package}\": \""));
        let version = version.and_then(|(_, rest)| rest.split('"').next());
        version.map(str::to_owned).with_context(|| format!("package.json pins no {package}"))
    }

    /// Returns a hash of the files.
    pub(super) fn hash(&self) -> u64 {
        cache::hash(self.texts.iter().map(Vec::as_slice))
    }

    /// Fetches the packages into `dir`, which exists.
    pub(super) fn install(&self, dir: &Path) -> anyhow::Result<()> {
        for (name, text) in FILES.iter().zip(&self.texts) {
            std::fs::write(dir.join(name), text).context("could not write a file for npm")?;
        }
        // No package runs a script of its own.
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        npm.current_dir(dir).stdin(Stdio::null()).stdout(std::io::stderr());
        let status = npm.status().context("`npm` is not on this machine (package npm)")?;
        anyhow::ensure!(status.success(), "npm could not fetch the packages ({status})");
        Ok(())
    }
}

/// Checks that Node.js is recent enough for a program.
pub(super) fn check(program: &str) -> anyhow::Result<()> {
    let remedy =
        format!("{program} needs Node.js {NODE} or newer (packages nodejs, npm; https://nodejs.org)");
    let output = Command::new("node").arg("--version").output().with_context(|| remedy.clone())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    anyhow::ensure!(major(&text) >= Some(NODE), "{remedy}, and this machine has {text}");
    Ok(())
}

/// Returns the major version of a version such as `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_pins_a_version_and_the_lock_file_its_sum() {
        for (folder, package, prefix) in
            [("oidc-provider", "oidc-provider", "9."), ("prometheus-ui", "pnpm", "10.")]
        {
            let packages = Packages::read(folder).unwrap();
            let version = packages.version(package).unwrap();
            assert!(version.starts_with(prefix), "{version}");
            let lock = String::from_utf8_lossy(&packages.texts[1]);
            assert!(lock.contains(&format!("\"version\": \"{version}\"")), "{version}");
            // npm takes the packages from the registry that the user has configured.
            assert!(lock.contains("\"integrity\": \"sha512-") && !lock.contains("\"resolved\""));
        }
    }

    #[test]
    fn the_version_of_node_is_read_from_its_output() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("20"), None);
    }
}
