//! `cargo xtask krew`: the manifest for krew, the plugin manager of kubectl, from the template in
//! `deploy/krew` and the checksums of the archives of a release.
//!
//! ```text
//! {{version}}               the version, with a leading v
//! {{sha256 linux-amd64}}    the checksum of the archive whose name ends with -linux-amd64.tar.gz,
//!                           or .zip
//! ```
//!
//! A platform without an archive is omitted.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::cargo;

/// The template, relative to the repository.
const TEMPLATE: &str = "deploy/krew/pinniped.yaml";
/// The first line of a platform in the template.
const PLATFORM: &str = "  - selector:\n";
/// The length of a SHA-256 in hexadecimal digits.
const DIGITS: usize = 64;

/// Flags of `krew`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Version of the release, with a leading v.
    #[arg(long)]
    version: String,
    /// Checksums of the archives, in the format of sha256sum.
    #[arg(long, value_name = "FILE")]
    checksums: PathBuf,
}

/// Prints the manifest.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let template = cargo::root().join(TEMPLATE);
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))
    };
    print!("{}", manifest(&read(&template)?, &args.version, &read(&args.checksums)?)?);
    Ok(ExitCode::SUCCESS)
}

/// Returns the template with the version, and the checksums in `checksums` (the output of
/// `sha256sum`).
pub(crate) fn manifest(template: &str, version: &str, checksums: &str) -> anyhow::Result<String> {
    anyhow::ensure!(version.starts_with('v'), "the version {version} does not start with v");
    let (_comment, template) = template.split_once("\napiVersion:").context("the template is no manifest")?;
    let template = format!("apiVersion:{template}");
    let mut parts = template.split(PLATFORM);
    let mut manifest = parts.next().unwrap_or_default().to_owned();
    let mut platforms = 0;
    for part in parts {
        let (before, rest) = part.split_once("{{sha256 ").context("a platform has no checksum")?;
        let (platform, after) = rest.split_once("}}").context("a placeholder does not end")?;
        let Some(checksum) = checksum(checksums, platform)? else { continue };
        for text in [PLATFORM, before, checksum, after] {
            manifest.push_str(text);
        }
        platforms += 1;
    }
    anyhow::ensure!(platforms > 0, "no archive of any platform is in the checksums");
    let manifest = manifest.replace("{{version}}", version);
    anyhow::ensure!(!manifest.contains("{{"), "the template has an unknown placeholder");
    Ok(manifest)
}

/// Returns the checksum of the archive for a platform.
fn checksum<'a>(checksums: &'a str, platform: &str) -> anyhow::Result<Option<&'a str>> {
    let endings = [format!("-{platform}.tar.gz"), format!("-{platform}.zip")];
    let mut found = None;
    for line in checksums.lines() {
        let (checksum, file) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if endings.iter().any(|ending| file.ends_with(ending)) {
            let hexadecimal = checksum.bytes().all(|byte| byte.is_ascii_hexdigit());
            anyhow::ensure!(hexadecimal && checksum.len() == DIGITS, "{line}: no SHA-256");
            anyhow::ensure!(found.is_none(), "there are several archives for {platform}");
            found = Some(checksum);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> String {
        std::fs::read_to_string(cargo::root().join(TEMPLATE)).expect("the template")
    }

    fn checksums(platforms: &[&str]) -> String {
        let lines = platforms.iter().enumerate();
        lines
            .map(|(at, file)| format!("{}  pinniped-v1.2.3-{file}\n", at.to_string().repeat(DIGITS)))
            .collect()
    }

    const ALL: [&str; 5] = [
        "linux-amd64.tar.gz",
        "linux-arm64.tar.gz",
        "darwin-amd64.tar.gz",
        "darwin-arm64.tar.gz",
        "windows-amd64.zip",
    ];

    #[test]
    fn every_platform_of_the_template_gets_its_own_checksum() {
        let manifest = manifest(&template(), "v1.2.3", &checksums(&ALL)).expect("a manifest");
        assert_eq!(manifest.matches("version: \"v1.2.3\"\n").count(), 1, "{manifest}");
        for (at, file) in ALL.iter().enumerate() {
            let platform = format!(
                "/download/v1.2.3/pinniped-v1.2.3-{file}\n    sha256: \"{}\"\n",
                at.to_string().repeat(DIGITS)
            );
            assert!(manifest.contains(&platform), "{file}: {manifest}");
        }
        assert!(!manifest.contains("{{") && !manifest.contains('#'), "{manifest}");
    }

    #[test]
    fn a_platform_without_an_archive_is_omitted() {
        let manifest = manifest(&template(), "v1.2.3", &checksums(&ALL[..1])).expect("a manifest");
        assert_eq!(manifest.matches("- selector:").count(), 1, "{manifest}");
        assert!(!manifest.contains("os: darwin"), "{manifest}");
    }

    #[test]
    fn wrong_versions_and_checksums_are_errors() {
        for (version, checksums) in [
            ("1.2.3", checksums(&ALL)),
            ("v1.2.3", String::new()),
            ("v1.2.3", "abc  pinniped-v1.2.3-linux-amd64.tar.gz\n".to_owned()),
            ("v1.2.3", checksums(&["linux-amd64.tar.gz", "linux-amd64.tar.gz"])),
        ] {
            assert!(manifest(&template(), version, &checksums).is_err(), "{version} {checksums}");
        }
    }
}
