//! Code for one operating system. The command line runs on Linux, macOS and Windows, so each crate
//! that it links has such code only in the module `platform`: there, a missing system is noticed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::layers::Packages;
use super::{read, sources};

/// The package that runs on all systems.
const CLI: &str = "pinniped-cli";

/// Texts in code that depends on the system.
const TEXTS: [&str; 11] = [
    "target_os",
    "target_family",
    "cfg(unix",
    "cfg(windows",
    "cfg(not(unix",
    "cfg!(unix",
    "cfg!(windows",
    "std::os::",
    "rustix::",
    "signal::unix",
    "/proc/",
];

/// Checks the sources of the crates that [`CLI`] links.
pub(super) fn check(root: &Path, files: &[PathBuf], packages: &Packages) -> anyhow::Result<Vec<String>> {
    let folders = linked(packages);
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_checked(file, &folders)) {
        let text = read(root, file)?;
        let found = found(&text);
        problems.extend(found.map(|(line, text)| {
            format!("{}:{line}: {text:?} belongs into the module `platform`", file.display())
        }));
    }
    Ok(problems)
}

/// Returns the folders of [`CLI`] and of all packages that it links.
fn linked(packages: &Packages) -> Vec<PathBuf> {
    let mut names = BTreeSet::from([CLI]);
    let mut new = vec![CLI];
    while let Some(name) = new.pop() {
        let uses = packages.get(name).into_iter().flat_map(|package| &package.uses);
        new.extend(
            uses.map(String::as_str).filter(|used| packages.contains_key(*used) && names.insert(*used)),
        );
    }
    names.into_iter().filter_map(|name| Some(packages.get(name)?.folder.as_str().into())).collect()
}

fn is_checked(file: &Path, folders: &[PathBuf]) -> bool {
    let is_source = |folder: &PathBuf| file.strip_prefix(folder).is_ok_and(|rest| rest.starts_with("src"));
    let is_platform =
        file.ends_with("platform.rs") || file.components().any(|part| part.as_os_str() == "platform");
    file.extension().is_some_and(|end| end == "rs")
        && folders.iter().any(is_source)
        && !sources::is_test(file)
        && !is_platform
}

/// Returns the lines of the code with one of the texts, numbered from 1. Comments may explain.
fn found(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let constant = |line: &str| {
        let code = !line.trim_start().starts_with("//");
        TEXTS.iter().copied().find(|text| code && line.contains(text))
    };
    sources::without_tests(text)
        .lines()
        .enumerate()
        .filter_map(move |(index, line)| constant(line).map(|text| (index + 1, text)))
}

#[cfg(test)]
mod tests {
    use super::super::layers::Package;
    use super::*;

    fn package(folder: &str, uses: &[&str]) -> Package {
        Package { folder: folder.into(), uses: uses.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn packages_are_linked_through_others() {
        let packages = Packages::from([
            (CLI.into(), package("crates/cli", &["a", "serde"])),
            ("a".into(), package("crates/base/a", &["b"])),
            ("b".into(), package("crates/base/b", &["a"])),
            ("c".into(), package("crates/base/c", &["a"])),
        ]);
        let folders = linked(&packages);
        assert_eq!(folders, ["crates/base/a", "crates/base/b", "crates/cli"].map(PathBuf::from));
        for (file, checked) in [
            ("crates/cli/src/main.rs", true),
            ("crates/base/b/src/x/y.rs", true),
            ("crates/base/c/src/lib.rs", false),
            ("crates/cli/src/platform.rs", false),
            ("crates/cli/src/platform/unix.rs", false),
            ("crates/cli/src/x/tests.rs", false),
            ("crates/cli/tests/it/main.rs", false),
            ("crates/cli/Cargo.toml", false),
        ] {
            assert_eq!(is_checked(Path::new(file), &folders), checked, "{file}");
        }
    }

    #[test]
    fn code_for_one_system_is_found_outside_of_tests_and_comments() {
        let text = "// std::os::unix\n    #[cfg(unix)]\nuse rustix::fs;\n#[cfg(test)]\nmod tests {\n    std::os::fd\n}\n";
        assert_eq!(found(text).collect::<Vec<_>>(), [(2, "cfg(unix"), (3, "rustix::")]);
    }
}
