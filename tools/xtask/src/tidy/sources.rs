//! Separates the code of a crate from its tests.

use std::path::Path;

/// Names of folders and files that have tests, or only their data.
const TESTS: [&str; 3] = ["tests", "tests.rs", "fixtures.rs"];

/// Whether a file belongs to tests.
pub(super) fn is_test(file: &Path) -> bool {
    file.components().any(|part| TESTS.iter().any(|name| part.as_os_str() == *name))
}

/// Returns the part of a file before its unit tests: before the first inline module that is
/// compiled only for tests. Other items for tests do not end the code.
pub(super) fn without_tests(text: &str) -> &str {
    let (mut offset, mut attributes) = (0, None);
    for line in text.split_inclusive('\n') {
        let code = line.trim_end();
        match attributes {
            Some(start) if is_inline_module(code) => return &text[..start],
            None if code.starts_with("#[cfg(test") || code.starts_with("#[cfg(all(test") => {
                attributes = Some(offset);
            }
            // Another attribute of the same item.
            Some(_) if code.starts_with("#[") => {}
            _ => attributes = None,
        }
        offset += line.len();
    }
    text
}

/// Whether a line without indentation begins the body of a module.
fn is_inline_module(code: &str) -> bool {
    let code = code.strip_prefix("pub(crate) ").unwrap_or(code);
    code.starts_with("mod ") && code.ends_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_inline_module_of_tests_ends_the_code() {
        let table = [
            ("fn f() {}\n#[cfg(test)]\nmod tests {\n}\n", "fn f() {}\n"),
            ("fn f() {}\n#[cfg(all(test, unix))]\nmod tests {\n}\n", "fn f() {}\n"),
            ("fn f() {}\n#[cfg(test)]\n#[path = \"x.rs\"]\npub(crate) mod fakes {\n}\n", "fn f() {}\n"),
            ("#[cfg(test)]\nmod tests;\n\nfn f() {}\n", "#[cfg(test)]\nmod tests;\n\nfn f() {}\n"),
            ("#[cfg(test)]\nfn g() {}\nmod m {\n}\n", "#[cfg(test)]\nfn g() {}\nmod m {\n}\n"),
            (
                "impl A {\n    #[cfg(test)]\n    fn g() {}\n}\n",
                "impl A {\n    #[cfg(test)]\n    fn g() {}\n}\n",
            ),
            ("#[cfg(unix)]\nmod m {\n}\n", "#[cfg(unix)]\nmod m {\n}\n"),
        ];
        for (text, code) in table {
            assert_eq!(without_tests(text), code, "{text}");
        }
    }

    #[test]
    fn files_and_folders_of_tests_are_recognized() {
        for (file, wanted) in [
            ("crates/a/src/lib.rs", false),
            ("crates/a/src/x/tests.rs", true),
            ("crates/a/src/x/tests/y.rs", true),
            ("crates/a/src/x/fixtures.rs", true),
            ("crates/a/tests/it/main.rs", true),
            ("crates/a/src/attests.rs", false),
        ] {
            assert_eq!(is_test(Path::new(file)), wanted, "{file}");
        }
    }
}
