//! The npm package `oidc-provider`, a certified OpenID provider for tests and demo, in the user's
//! cache. `tools/third-party/oidc-provider/provider.js` runs it.

use std::path::PathBuf;

use anyhow::Context as _;

use super::{cache, nodejs};

/// Environment variable with the folder that contains `node_modules`, in place of the cache.
pub(crate) const ENV: &str = "PINNIPED_OIDC_PROVIDER";
/// Environment variable with the reason why this machine cannot run it. With it, its tests are
/// skipped even if everything else is required.
pub(crate) const MISSING_ENV: &str = "PINNIPED_NO_OIDC_PROVIDER";
/// The package, and the folder with its version and sums.
const PACKAGE: &str = "oidc-provider";

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
    nodejs::check(PACKAGE)?;
    let packages = nodejs::Packages::read(PACKAGE)?;
    let version = packages.version(PACKAGE)?;
    let key = format!("{version}-{:016x}", packages.hash());
    cache::fetched(PACKAGE, &key, |work| {
        anyhow::ensure!(
            !offline,
            "offline, and oidc-provider {version} is not in the cache yet; run the same command once with network"
        );
        eprintln!("fetching oidc-provider {version} once, by npm (3 MB) ...");
        let fresh = work.join("packages");
        std::fs::create_dir(&fresh).context("could not create a folder for npm")?;
        packages.install(&fresh)?;
        Ok(fresh)
    })
}
