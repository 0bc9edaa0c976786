//! Keycloak, the identity provider of tests and demo: an archive of Maven Central, unpacked and
//! prepared in the user's cache. Nothing is installed.
//!
//! The preparation takes a minute once and saves half of each start: it builds the server's
//! configuration, and imports the realm of `tools/third-party/keycloak/realm.json` into a database.
//! `tests/support` copies that database for each server that it starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use super::cache::{self, elapsed};
use super::succeed;
use crate::cargo;

/// Environment variable with the folder of the prepared server, in place of the cache.
pub(crate) const ENV: &str = "PINNIPED_KEYCLOAK";
/// Environment variable with the reason why this machine cannot run it. With it, its tests are
/// skipped even if everything else is required.
pub(crate) const MISSING_ENV: &str = "PINNIPED_NO_KEYCLOAK";
/// The plugin of Maven that downloads an archive without a project.
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";
/// The first Java version that the server supports.
const JAVA: u32 = 17;
/// The administrator of the prepared server. `tests/support` uses the same name and password.
const ADMINISTRATOR: [(&str, &str); 2] =
    [("KC_BOOTSTRAP_ADMIN_USERNAME", "admin"), ("KC_BOOTSTRAP_ADMIN_PASSWORD", "admin")];
/// Options that are fixed when the configuration is built: a database in files.
const BUILD: [&str; 2] = ["build", "--db=dev-file"];

/// Returns the folder of the prepared server.
///
/// # Errors
/// Returns an error with the reason when it is neither cached nor available.
pub(crate) fn find_or_fetch(offline: bool) -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os(ENV).map(PathBuf::from) {
        anyhow::ensure!(
            dir.join("lib/quarkus-run.jar").is_file(),
            "{ENV}: there is no Keycloak in {}",
            dir.display()
        );
        return Ok(dir);
    }
    check_java()?;
    let module = cargo::root().join("tools/third-party/keycloak");
    let read = |name: &str| {
        let file = module.join(name);
        std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))
    };
    let (sums, realm) = (read("keycloak.sha256")?, read("realm.json")?);
    let version = version(&sums).context("keycloak.sha256 names no archive of Keycloak")?;
    let key = format!(
        "{version}-{:016x}",
        cache::hash([sums.as_bytes(), realm.as_bytes(), BUILD.concat().as_bytes()])
    );
    cache::fetched("keycloak", &key, |work| {
        anyhow::ensure!(
            !offline,
            "offline, and Keycloak {version} is not in the cache yet; run the same command once with network"
        );
        let start = Instant::now();
        fetch(work, version, &module)
            .inspect(|_| eprintln!("Keycloak {version} is ready after {}", elapsed(start.elapsed())))
    })
}

/// Returns the version in the name of the archive.
fn version(sums: &str) -> Option<&str> {
    sums.trim().rsplit_once("keycloak-quarkus-dist-")?.1.strip_suffix(".zip")
}

/// Checks the version of Java.
fn check_java() -> anyhow::Result<()> {
    let remedy = format!(
        "Keycloak needs Java {JAVA} or newer (package openjdk-17-jre-headless or default-jre-headless)"
    );
    let output = Command::new("java").arg("-version").output().with_context(|| remedy.clone())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let version = java_version(&text).unwrap_or_default();
    anyhow::ensure!(version >= JAVA, "{remedy}, and this machine has version {version}");
    Ok(())
}

/// Returns the major version that `java -version` prints: `openjdk version "17.0.15" 2025-04-15`.
fn java_version(text: &str) -> Option<u32> {
    let number = text.split('"').nth(1)?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Downloads the archive into `work`, unpacks it, and prepares the server.
fn fetch(work: &Path, version: &str, module: &Path) -> anyhow::Result<PathBuf> {
    eprintln!("fetching Keycloak {version} once, by Maven (165 MB, unpacked 170 MB) ...");
    let artifact = format!("-Dartifact=org.keycloak:keycloak-quarkus-dist:{version}:zip");
    let mut maven = Command::new("mvn");
    maven.args(["--batch-mode", "--quiet", "--strict-checksums", PLUGIN, &artifact]);
    maven.arg(format!("-DoutputDirectory={}", work.display()));
    maven.current_dir(work).stdin(Stdio::null()).stdout(std::io::stderr());
    let status = maven.status().context("`mvn` is not on this machine (package maven)")?;
    anyhow::ensure!(status.success(), "Maven could not fetch Keycloak ({status})");
    let archive = work.join(format!("keycloak-quarkus-dist-{version}.zip"));
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--quiet"]).arg(module.join("keycloak.sha256")).current_dir(work);
    succeed(&mut check, "the check of Keycloak's sum")?;
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).arg(&archive).arg(work.join("all"));
    succeed(&mut unpack, "unpacking Keycloak (packages python3)")?;
    let server = work.join("all").join(format!("keycloak-{version}"));
    let kc = || {
        let mut kc = Command::new("sh");
        kc.arg(server.join("bin/kc.sh")).envs(ADMINISTRATOR);
        kc
    };
    eprintln!("preparing Keycloak: configuration and realm (about a minute) ...");
    succeed(kc().args(BUILD), "kc.sh build")?;
    let realm = module.join("realm.json");
    succeed(kc().args(["import", "--optimized", "--file"]).arg(realm), "kc.sh import")?;
    let database = server.join("data/h2");
    anyhow::ensure!(database.is_dir(), "kc.sh import created no {}", database.display());
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_pin_a_version() {
        let sums = include_str!("../../../third-party/keycloak/keycloak.sha256");
        let version = version(sums).unwrap();
        assert!(version.split('.').count() == 3 && version.starts_with("26."), "{version}");
    }

    #[test]
    fn the_version_of_java_is_read_from_its_output() {
        assert_eq!(java_version("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK"), Some(17));
        assert_eq!(java_version("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(java_version("java version \"1.8.0_202\""), Some(1));
        assert_eq!(java_version("command not found"), None);
    }
}
