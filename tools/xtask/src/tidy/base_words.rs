//! Words of Kubernetes and of Pinniped, which the crates of the lowest layer must not contain: such
//! a word shows that a crate knows something about its users.

use std::path::{Path, PathBuf};

use super::{read, sources};

/// The folder of the crates that know neither Kubernetes nor Pinniped.
const BASE: &str = "crates/base";

/// The words, in lower case. They may also be parts of longer words.
const WORDS: [&str; 9] = [
    "apiserver",
    "api server",
    "kube",
    "audit-id",
    "audit_id",
    "audit id",
    "impersonat",
    "concierge",
    "pinniped",
];

/// Checks the sources and manifests of the crates below [`BASE`] except for their tests, which use
/// real names as examples.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_checked(file)) {
        let text = read(root, file)?;
        let found = found(&text);
        problems.extend(
            found.map(|(line, word)| format!("{}:{line}: {BASE} must not mention {word:?}", file.display())),
        );
    }
    Ok(problems)
}

fn is_checked(file: &Path) -> bool {
    let is_kind = file.extension().is_some_and(|end| end == "rs" || end == "toml" || end == "md");
    file.starts_with(BASE) && is_kind && !sources::is_test(file)
}

/// Returns the lines of the code with a word, numbered from 1.
fn found(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let word = |line: &str| {
        // Names of packages, and the crates that have them.
        let line = line.to_lowercase().replace("pinniped-", "").replace("pinniped_", "");
        WORDS.iter().copied().find(|word| line.contains(word))
    };
    sources::without_tests(text)
        .lines()
        .enumerate()
        .filter_map(move |(index, line)| word(line).map(|word| (index + 1, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_manifests_of_base_crates_are_checked_and_tests_are_not() {
        for (file, checked) in [
            ("crates/base/http-client/src/upstream.rs", true),
            ("crates/base/http-client/Cargo.toml", true),
            ("crates/base/http-client/src/upstream/tests.rs", false),
            ("crates/base/http-server/tests/it/main.rs", false),
            ("crates/kubernetes/request/src/lib.rs", false),
        ] {
            assert_eq!(is_checked(Path::new(file)), checked, "{file}");
        }
    }

    #[test]
    fn words_are_found_outside_of_package_names_and_unit_tests() {
        let text = "use pinniped_pki::CaBundle;\n\
                    // For the API server.\n\
                    pinniped-http-core.workspace = true\n\
                    const NAME: &str = \"pinniped\";\n\
                    #[cfg(test)]\n\
                    mod tests {\n    /* kubelet */\n}\n";
        assert_eq!(found(text).collect::<Vec<_>>(), [(2, "api server"), (4, "pinniped")]);
    }
}
