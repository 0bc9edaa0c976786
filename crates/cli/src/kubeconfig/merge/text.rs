//! Applies changes to the text of a kubeconfig, and leaves the rest of the text as it is.

use std::panic::{self, AssertUnwindSafe};
use std::str::FromStr as _;
use std::sync::{Mutex, PoisonError};

use pinniped_go_compat::yaml as goyaml;
use serde_json::{Value, json};
use yaml_edit::{Document, SyntaxKind, YamlFile, lex};

use super::Change;

/// Returns the changed text; `None` if the text has a form that cannot be changed, or that makes
/// the editor panic. The caller checks whether the result is the expected document.
pub(super) fn edit(text: &str, changes: &[Change]) -> Option<String> {
    without_panic(|| try_edit(text, changes))?
}

/// Returns the number of comments; `None` if the lexer panics.
pub(super) fn comments(text: &str) -> Option<usize> {
    without_panic(|| lex(text).iter().filter(|(kind, _)| *kind == SyntaxKind::COMMENT).count())
}

/// Returns the result of `work`; `None` if it panics.
///
/// The editor slices strings and unwraps nodes, so that it may panic for an odd document. The work
/// changes nothing outside, so that it can be abandoned. The message of the panic is not printed,
/// because it may quote the text, which has credentials.
fn without_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    /// The hook is that of the process.
    static HOOK: Mutex<()> = Mutex::new(());
    let _one_at_a_time = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(hook);
    result.ok()
}

fn try_edit(text: &str, changes: &[Change]) -> Option<String> {
    let file = YamlFile::from_str(text).ok()?;
    let Some(document) = file.document().filter(|document| document.as_mapping().is_some()) else {
        return Some(after_comments(text, changes));
    };
    for change in changes {
        match change {
            Change::Field { name, text } => {
                document.set(*name, text.as_str());
            }
            Change::Entry { list, at, entry } => {
                let sequence = document.get_sequence(*list).filter(|sequence| !sequence.is_empty());
                match (sequence, at) {
                    (None, _) => {
                        let list_of_one = Document::from_str(&goyaml::to_string(&json!([entry]))).ok()?;
                        document.set(*list, &list_of_one.as_sequence()?);
                    }
                    (Some(sequence), Some(at)) => {
                        sequence.set(*at, &mapping(entry)?);
                    }
                    (Some(sequence), None) => sequence.push(&mapping(entry)?),
                }
            }
        }
    }
    Some(file.to_string())
}

fn mapping(entry: &Value) -> Option<yaml_edit::Mapping> {
    Document::from_str(&goyaml::to_string(entry)).ok()?.as_mapping()
}

/// Returns the content of a file that has comments at most, and the changes after it.
fn after_comments(text: &str, changes: &[Change]) -> String {
    let mut document = serde_json::Map::new();
    changes.iter().for_each(|change| super::apply(&mut document, change));
    let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{separator}{}", goyaml::to_string(&Value::Object(document)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_editor_is_no_result() {
        let panics = || "é".get(1..).expect("a boundary").to_owned();
        assert_eq!(without_panic(panics), None);
        assert_eq!(without_panic(|| 1), Some(1));
    }

    #[test]
    fn comments_are_counted() {
        for (text, count) in
            [("", 0), ("# a\n---\na: b # c\n# d", 3), ("a: 'b # c'\nd: e#f\ng: \"# h\"\ni: |\n  # text\n", 0)]
        {
            assert_eq!(comments(text), Some(count), "{text}");
        }
    }
}
