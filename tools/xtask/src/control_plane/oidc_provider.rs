//! The npm package `oidc-provider`, a certified OpenID provider for tests and demo, in the user's
//! cache. `tools/third-party/oidc-provider/provider.js` runs it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::cache;
use crate::cargo;

/// Environment variable with the folder that contains `node_modules`, in place of the cache.
pub(crate) const ENV: &str = "PINNIPED_OIDC_PROVIDER";
/// Environment variable with the reason why this machine cannot run it. With it, its tests are
/// skipped even if everything else is required.
pub(crate) const MISSING_ENV: &str = "PINNIPED_NO_OIDC_PROVIDER";
/// The first version of Node.js that the package supports.
const NODE: u32 = 20;
/// The files that determine the packages.
const FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// Returns the folder with the packages.
///
/// # Errors
/// Returns an error with the reason when they are neither cached nor available.
pub(crate) fn find_or_fetch(offline: bool) -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os(ENV).map(PathBuf::from) {
        let modules = dir.join("node_modules");
        anyhow::ensure!(modules.is_dir(), "{ENV}: there is no {}", modules.display());
        return Ok(dir);
    }
    check_node()?;
    let module = cargo::root().join("tools/third-party/oidc-provider");
    let mut texts = Vec::new();
    for name in FILES {
        let file = module.join(name);
        texts.push(std::fs::read(&file).with_context(|| format!("could not read {}", file.display()))?);
    }
    let manifest = String::from_utf8_lossy(&texts[0]).into_owned();
    let version = version(&manifest).context("package.json pins no oidc-provider")?;
    let key = format!("{version}-{:016x}", cache::hash(texts.iter().map(Vec::as_slice)));
    cache::fetched("oidc-provider", &key, |work| {
        anyhow::ensure!(
            !offline,
            "offline, and oidc-provider {version} is not in the cache yet; run the same command once with network"
        );
        eprintln!("fetching oidc-provider {version} once, by npm (3 MB) ...");
        let fresh = work.join("packages");
        std::fs::create_dir(&fresh).context("could not create a folder for npm")?;
        for (name, text) in FILES.iter().zip(&texts) {
            std::fs::write(fresh.join(name), text).context("could not write a file for npm")?;
        }
        // No package runs a script of its own. The lock file has the sums of all packages.
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        npm.current_dir(&fresh).stdin(Stdio::null()).stdout(std::io::stderr());
        let status = npm.status().context("`npm` is not on this machine (package npm)")?;
        anyhow::ensure!(status.success(), "npm could not fetch oidc-provider ({status})");
        Ok(fresh)
    })
}

/// Returns the version that the manifest pins.
fn version(manifest: &str) -> Option<&str> {
    let (_, rest) = manifest.split_once("\"oidc-provider\": \"")?;
    rest.split('"').next()
}

/// Checks the version of Node.js.
fn check_node() -> anyhow::Result<()> {
    let remedy =
        format!("oidc-provider needs Node.js {NODE} or newer (packages nodejs, npm; https://nodejs.org)");
    let output = Command::new("node").arg("--version").output().with_context(|| remedy.clone())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    anyhow::ensure!(node_version(&text) >= Some(NODE), "{remedy}, and this machine has {text}");
    Ok(())
}

/// Returns the major version of a version such as `v20.20.2`.
fn node_version(text: &str) -> Option<u32> {
    text.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_pins_a_version_and_the_lock_file_its_sum() {
        let manifest = include_str!("../../../third-party/oidc-provider/package.json");
        let lock = include_str!("../../../third-party/oidc-provider/package-lock.json");
        let version = version(manifest).unwrap();
        assert!(version.starts_with("9."), "{version}");
        assert!(lock.contains(&format!("\"version\": \"{version}\"")), "{version}");
        // npm takes the packages from the registry that the user has configured.
        assert!(lock.contains("\"integrity\": \"sha512-") && !lock.contains("\"resolved\""));
    }

    #[test]
    fn the_version_of_node_is_read_from_its_output() {
        assert_eq!(node_version("v20.20.2"), Some(20));
        assert_eq!(node_version("20"), None);
    }
}
