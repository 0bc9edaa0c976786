//! Named suites: all tests whose path contains a name, in the packages that have such tests, and
//! additional parts.
//!
//! A test's path (modules and function) is the filter of `cargo test`. It is read from the sources,
//! so that only those packages are compiled for tests, and so that a name without tests is an
//! error. The name of a package is not part of the path, so packages that belong to a suite as a
//! whole are listed here ([`MORE`]).

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Tests of a suite without its name in the path: tests of a package whose path contains another
/// text (or one of several, separated by spaces), or all of them if the text is empty.
const MORE: [(&str, &[(&str, &str)]); 4] = [
    ("apis", &[("pinniped-apiserver", ""), ("pinniped-concierge", ""), ("pinniped-concierge-api", "")]),
    (
        "gateway",
        &[
            ("pinniped-delegation", ""),
            ("pinniped-gateway", ""),
            ("pinniped-gateway-api", ""),
            ("pinniped-gateway-controller", ""),
            ("pinniped-gateway-dataplane", ""),
            ("pinniped-gateway-routing", ""),
        ],
    ),
    (
        "oidc",
        &[
            ("pinniped-jose", ""),
            ("pinniped-oidc", ""),
            ("pinniped-concierge-authentication", "jwt"),
            ("pinniped-concierge-controllers", "jwt"),
            ("pinniped-concierge-domain", "jwt"),
            ("pinniped-e2e", "jwt"),
        ],
    ),
    (
        "strategies",
        &[
            ("pinniped-concierge-domain", "strategy service_account_tokens"),
            (
                "pinniped-concierge-controllers",
                "cert_agent certificate_signing_requests impersonator service_account_tokens",
            ),
            ("pinniped-e2e", "cert_agent certificate_signing_requests service_account_tokens walkthrough"),
        ],
    ),
];

/// A part of a suite that one run of `cargo test` covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The text that a test's path contains, or several, separated by spaces. Empty means all
    /// tests.
    pub(crate) filter: String,
    /// The packages of the tests.
    pub(crate) packages: Vec<String>,
}

/// Returns the parts of a suite below `root`; the first is the one of its name.
pub(crate) fn parts(root: &Path, name: &str) -> anyhow::Result<Vec<Part>> {
    let named = Part { filter: filter(name), packages: packages(root, &filter(name))? };
    let mut parts = vec![named];
    let more = MORE.iter().find(|(suite, _)| *suite == name);
    for (package, filter) in more.into_iter().flat_map(|(_, more)| *more) {
        if filter.is_empty() {
            // The part with all tests of the package includes these.
            parts[0].packages.retain(|known| known != package);
        }
        match parts.iter_mut().find(|part| part.filter == *filter) {
            Some(part) => part.packages.push((*package).to_owned()),
            None => parts.push(Part { filter: (*filter).to_owned(), packages: vec![(*package).to_owned()] }),
        }
    }
    parts.retain(|part| !part.packages.is_empty());
    Ok(parts)
}

/// Returns the name in Rust's spelling: `service-account-tokens` is `service_account_tokens`.
pub(crate) fn filter(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the packages below `root` that have tests with this text in their path.
fn packages(root: &Path, filter: &str) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for (package, folder) in workspace(root)? {
        if has_tests(&folder, filter)? {
            found.push(package);
        }
    }
    anyhow::ensure!(
        !found.is_empty(),
        "no test has {filter:?} in its path; suites are: apis, certificates, gateway, oidc, \
         service-account-tokens, strategies, switch-in-place"
    );
    Ok(found)
}

/// Returns the packages of the workspace at `root` with their folders, sorted by folder.
fn workspace(root: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut folders: Vec<PathBuf> =
        ["crates", "tests", "tools"].iter().map(|layer| root.join(layer)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        if let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) {
            // A workspace of its own, such as the fuzz targets, is not part of this one.
            if !manifest.contains("[workspace]") {
                let package = package(&manifest);
                let package = package.with_context(|| format!("{} names no package", folder.display()))?;
                found.push((package.to_owned(), folder));
            }
            continue;
        }
        let listed = std::fs::read_dir(&folder);
        let listed = listed.with_context(|| format!("could not list {}", folder.display()))?;
        folders.extend(listed.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    found.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(found)
}

/// The first name is the package's own, because `[package]` comes first.
fn package(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some(line.trim_matches('"'))
}

fn has_tests(folder: &Path, filter: &str) -> anyhow::Result<bool> {
    for part in ["src", "tests"] {
        for file in sources(&folder.join(part))? {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("could not read {}", file.display()))?;
            let modules = file.strip_prefix(folder.join(part)).unwrap_or(&file).with_extension("");
            if has_test(&modules.to_string_lossy(), &text, filter) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns all Rust files of a folder, if it exists.
fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        let listed = std::fs::read_dir(&folder);
        for entry in listed.with_context(|| format!("could not list {}", folder.display()))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Whether a file has a test whose path contains the filter. `modules` is its path without
/// extension. It includes the folder of a test executable, which is not a module, but is never
/// named like a suite.
fn has_test(modules: &str, text: &str, filter: &str) -> bool {
    let mut in_module = modules.contains(filter);
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        let words = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(name) = words.trim_start_matches("async ").strip_prefix("fn ") {
            let name = name.split('(').next().unwrap_or_default();
            if marked && (in_module || name.contains(filter)) {
                return true;
            }
            marked = false;
        } else if let Some(name) = words.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            // Inline modules are the last items of a file, so no test after them is outside.
            in_module |= name.contains(filter);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo;

    #[test]
    fn a_test_is_found_by_the_modules_and_the_function_of_its_path() {
        let test = "#[test]\nfn it_works() {}\n";
        let table = [
            ("file of that name", "strategy/certificates", test, true),
            ("folder of that name", "it/certificates/howto", test, true),
            (
                "function of that name",
                "it/other",
                "#[tokio::test]\nasync fn bad_certificates_fail() {}",
                true,
            ),
            ("attributes between", "lib", "#[test]\n#[ignore]\n    fn certificates() {\n", true),
            ("module in the file", "lib", "mod certificates {\n    #[test]\n    fn it_works() {}\n}", true),
            ("no test in the file", "certificates", "pub fn load() {}", false),
            ("a function that is no test", "lib", "fn certificates() {}\n#[test]\nfn it_works() {}", false),
            ("another file", "it/other", test, false),
        ];
        for (name, modules, text, wanted) in table {
            assert_eq!(has_test(modules, text, "certificates"), wanted, "{name}");
        }
    }

    #[test]
    fn the_suites_of_this_tree_are_found_and_others_are_refused() {
        let found = parts(&cargo::root(), "certificates").unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].packages.iter().any(|package| package == "pinniped-e2e"), "{found:?}");
        let refused = parts(&cargo::root(), "no-such-suite").unwrap_err().to_string();
        assert!(refused.contains("\"no_such_suite\""), "{refused}");
    }

    #[test]
    fn the_suite_of_the_gateway_has_all_tests_of_its_own_packages_and_of_delegation() {
        let found = parts(&cargo::root(), "gateway").unwrap();
        let of = |filter: &str| {
            let part = found.iter().find(|part| part.filter == filter);
            part.map(|part| part.packages.iter().map(String::as_str).collect::<Vec<_>>()).unwrap_or_default()
        };
        assert!(of("gateway").contains(&"pinniped-e2e"), "{found:?}");
        assert!(!of("gateway").contains(&"pinniped-gateway"), "{found:?}");
        assert!(of("").contains(&"pinniped-gateway") && of("").contains(&"pinniped-delegation"), "{found:?}");
    }

    #[test]
    fn the_additional_parts_of_suites_exist() {
        let workspace = workspace(&cargo::root()).unwrap();
        for (package, filter) in MORE.iter().flat_map(|(_, more)| *more) {
            let (_, folder) = workspace.iter().find(|(known, _)| known == package).unwrap();
            for text in filter.split(' ') {
                assert!(has_tests(folder, text).unwrap(), "{package} {text}");
            }
        }
    }
}
