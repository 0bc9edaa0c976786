//! `cargo xtask release X.Y.Z`: sets the version of the workspace and of everything that contains
//! it, dates the changelog, and prints the commands that publish the release.
//!
//! | file | change |
//! |---|---|
//! | `Cargo.toml`, both `Cargo.lock` | the version of the workspace |
//! | `deploy/chart/Chart.yaml` | `version` and `appVersion`, from which the image's tag comes |
//! | `deploy/` | rendered again |
//! | `CHANGELOG.md` | the section *Unreleased* becomes the section of the version |
//!
//! The command neither commits nor tags: a person reads the changes before. See `RELEASING.md`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;

use anyhow::Context as _;

use crate::control_plane::helm;
use crate::{cargo, manifests};

const CHANGELOG: &str = "CHANGELOG.md";
const CHART: &str = "deploy/chart/Chart.yaml";
/// The lock file of the workspace, and the other one that names packages of it.
const LOCKS: [&str; 2] = ["Cargo.lock", "tools/fuzz/Cargo.lock"];
/// The beginning of each package in a lock file.
const LOCKED: &str = "[[package]]\n";
const UNRELEASED: &str = "## Unreleased\n";

/// Flags of `release`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The version, such as 1.2.3 or 1.2.3-rc.1.
    version: Version,
    /// Print the section of the changelog for the version, and change nothing.
    #[arg(long)]
    notes: bool,
    /// The root of the source tree to change [default: that of this command].
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

/// A version of semantic versioning without build metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    numbers: [u64; 3],
    /// The identifiers after `-`; empty for a final version.
    candidate: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        if self.candidate.is_empty() { Ok(()) } else { write!(f, "-{}", self.candidate) }
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is not a version such as 1.2.3 or 1.2.3-rc.1");
        let (core, candidate) = text.split_once('-').unwrap_or((text, ""));
        let numbers: Vec<u64> = core.split('.').map_while(|part| part.parse().ok()).collect();
        let version =
            Self { numbers: numbers.try_into().map_err(|_| refused())?, candidate: candidate.to_owned() };
        let valid = candidate.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c));
        // Leading zeros, signs and a missing identifier are not written back.
        if valid && version.to_string() == text { Ok(version) } else { Err(refused()) }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = args.root.clone().unwrap_or_else(cargo::root);
    let version = args.version.to_string();
    if args.notes {
        print!("{}", notes(&read(&root, CHANGELOG)?, &version)?);
        return Ok(ExitCode::SUCCESS);
    }
    let git = |words: &[&str]| cargo::output(Command::new("git").current_dir(&root).args(words));
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    anyhow::ensure!(changed.is_empty(), "the working tree has changes; commit them first:\n{changed}");
    let tag = format!("v{version}");
    anyhow::ensure!(git(&["tag", "--list", &tag])?.is_empty(), "the tag {tag} exists");
    let day = cargo::output(Command::new("date").args(["-u", "+%F"]))?;

    // Everything is read and checked, and the program for the manifests found, before the first
    // file is written.
    helm::find_or_build(args.offline)?;
    let lock = read(&root, LOCKS[0])?;
    let own = own_packages(&lock);
    let mut texts = Vec::new();
    for (file, text) in [
        ("Cargo.toml", with_version(&read(&root, "Cargo.toml")?, "[workspace.package]", "version", &version)),
        (CHART, of_chart(&read(&root, CHART)?, &version)),
        (CHANGELOG, dated(&read(&root, CHANGELOG)?, &version, day.trim())),
        (LOCKS[0], with_own_version(&lock, &own, &version)),
        (LOCKS[1], with_own_version(&read(&root, LOCKS[1])?, &own, &version)),
    ] {
        texts.push((file, text.with_context(|| format!("could not change {file}"))?));
    }
    for (file, text) in texts {
        std::fs::write(root.join(file), text).with_context(|| format!("could not write {file}"))?;
    }
    manifests::update(&root, args.offline)?;
    print!("{}", git(&["status", "--short", "--untracked-files=no"])?);
    println!("\nRead the changes, and publish them:\n");
    println!("  git commit --all --message 'release: version {version}'");
    println!("  git tag --sign --message 'Version {version}' {tag}");
    println!("  git push origin HEAD");
    println!("\nWhen the workflow ci has succeeded for this commit:\n");
    println!("  git push origin {tag}");
    Ok(ExitCode::SUCCESS)
}

fn read(root: &Path, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(file)).with_context(|| format!("could not read {file}"))
}

/// Replaces `key = ".."` of a table in a TOML file.
fn with_version(text: &str, table: &str, key: &str, version: &str) -> anyhow::Result<String> {
    let (before, of_table) = text.split_once(&format!("{table}\n")).context("the table is missing")?;
    let end = of_table.find("\n[").unwrap_or(of_table.len());
    let (lines, after) = of_table.split_at(end);
    let lines = with_line(lines, &format!("{key} = "), &format!("\"{version}\""))?;
    Ok(format!("{before}{table}\n{lines}{after}"))
}

/// Returns the names of the packages of a lock file that are in the source tree.
fn own_packages(lock: &str) -> BTreeSet<&str> {
    lock.split(LOCKED).skip(1).filter(|package| is_own(package)).filter_map(name).collect()
}

/// Whether a package of a lock file is in a source tree.
fn is_own(package: &str) -> bool {
    !package.contains("\nsource = ")
}

/// Returns the name of a package of a lock file.
fn name(package: &str) -> Option<&str> {
    package.strip_prefix("name = \"")?.split('"').next()
}

/// Sets the version of these packages in a lock file. `cargo update` would do the same, but needs
/// the registry's index for it.
fn with_own_version(lock: &str, own: &BTreeSet<&str>, version: &str) -> anyhow::Result<String> {
    let mut packages = lock.split(LOCKED);
    let mut result = packages.next().unwrap_or_default().to_owned();
    let mut found = 0;
    for package in packages {
        result.push_str(LOCKED);
        if is_own(package) && name(package).is_some_and(|name| own.contains(name)) {
            found += 1;
            result.push_str(&with_line(package, "version = ", &format!("\"{version}\""))?);
        } else {
            result.push_str(package);
        }
    }
    anyhow::ensure!(found > 0, "the lock file has no package of this workspace");
    Ok(result)
}

/// Sets the versions of the chart.
fn of_chart(text: &str, version: &str) -> anyhow::Result<String> {
    with_line(&with_line(text, "version: ", version)?, "appVersion: ", version)
}

/// Replaces the rest of the one line that has this beginning.
fn with_line(text: &str, beginning: &str, value: &str) -> anyhow::Result<String> {
    let mut found = 0;
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let replaced = line.starts_with(beginning);
        found += usize::from(replaced);
        lines.push(if replaced { format!("{beginning}{value}") } else { line.to_owned() });
    }
    anyhow::ensure!(found == 1, "{found} lines instead of one begin with {beginning:?}");
    Ok(lines.join("\n"))
}

/// Gives the section of unreleased changes the version and the day, and starts an empty one.
fn dated(changelog: &str, version: &str, day: &str) -> anyhow::Result<String> {
    let (before, after) =
        changelog.split_once(UNRELEASED).context("there is no section of unreleased changes")?;
    let section = after.split("\n## ").next().unwrap_or_default();
    anyhow::ensure!(!section.trim().is_empty(), "the section of unreleased changes is empty");
    Ok(format!("{before}{UNRELEASED}\n## {version} - {day}\n{after}"))
}

/// Returns the section of a version, without its title.
fn notes(changelog: &str, version: &str) -> anyhow::Result<String> {
    let sections = changelog.split("\n## ").skip(1);
    let section = sections
        .filter_map(|section| section.split_once('\n'))
        .find(|(title, _)| title.split(" - ").next() == Some(version));
    let (_, text) = section.with_context(|| format!("{CHANGELOG} has no section for {version}"))?;
    Ok(format!("{}\n", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::VERSION;

    #[test]
    fn versions_have_three_numbers_and_maybe_a_candidate() {
        for text in ["0.1.0", "1.20.3", "1.2.3-rc.1"] {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), text);
        }
        for text in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3+b", "1.2.x", "1.2.3-a b"]
        {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_version_of_the_table_changes() {
        let text =
            "[a]\nversion = \"1.0.0\"\n\n[b]\nname = \"x\"\nversion = \"1.0.0\"\n\n[c]\nversion = \"1\"\n";
        let wanted = text.replacen("x\"\nversion = \"1.0.0\"", "x\"\nversion = \"2.0.0\"", 1);
        assert_eq!(with_version(text, "[b]", "version", "2.0.0").unwrap(), wanted);
        assert!(with_version(text, "[d]", "version", "2.0.0").is_err());
        assert!(with_version(text, "[b]", "edition", "2.0.0").is_err());
    }

    #[test]
    fn only_own_packages_of_a_lock_file_get_the_version() {
        let workspace = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n\
                         [[package]]\nname = \"b\"\nversion = \"1.0.0\"\nsource = \"registry\"\n";
        let own = own_packages(workspace);
        assert_eq!(own, BTreeSet::from(["a"]));
        let wanted = workspace.replacen("1.0.0", "2.0.0", 1);
        assert_eq!(with_own_version(workspace, &own, "2.0.0").unwrap(), wanted);
        // A package of another workspace has a version of its own.
        let other = "[[package]]\nname = \"c\"\nversion = \"1.0.0\"\n";
        assert!(with_own_version(other, &own, "2.0.0").is_err());
        let both = format!("{other}\n{workspace}");
        assert_eq!(with_own_version(&both, &own, "2.0.0").unwrap(), format!("{other}\n{wanted}"));
        for file in LOCKS {
            let lock = read(&cargo::root(), file).unwrap();
            let workspace = read(&cargo::root(), LOCKS[0]).unwrap();
            let changed = with_own_version(&lock, &own_packages(&workspace), "9.8.7").unwrap();
            assert!(changed.contains("\nname = \"pinniped-pki\"\nversion = \"9.8.7\"\n"), "{file}");
        }
    }

    #[test]
    fn the_chart_has_the_version_of_the_workspace() {
        let chart = read(&cargo::root(), CHART).unwrap();
        assert_eq!(of_chart(&chart, VERSION).unwrap(), chart);
        assert_ne!(of_chart(&chart, "9.8.7").unwrap(), chart);
    }

    #[test]
    fn a_section_is_dated_and_printed_as_notes() {
        let changelog = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.0.0 - 2026-01-02\n\n- Old.\n";
        let next = dated(changelog, "1.1.0", "2026-03-04").unwrap();
        let wanted = "# Changelog\n\n## Unreleased\n\n## 1.1.0 - 2026-03-04\n\n- New.\n\n\
                      ## 1.0.0 - 2026-01-02\n\n- Old.\n";
        assert_eq!(next, wanted);
        assert_eq!(notes(&next, "1.1.0").unwrap(), "- New.\n");
        assert_eq!(notes(&next, "1.0.0").unwrap(), "- Old.\n");
        assert!(notes(&next, "1.0").is_err());
        let again = dated(&next, "1.2.0", "2026-05-06").unwrap_err().to_string();
        assert!(again.contains("is empty"), "{again}");
    }
}
