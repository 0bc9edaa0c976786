//! Applies changes to the text of a kubeconfig, and leaves the rest of the text as it is.

use std::str::FromStr as _;

use pinniped_go_compat::yaml as goyaml;
use serde_json::{Value, json};
use yaml_edit::{Document, YamlFile};

use super::Change;

/// Returns the changed text; `None` if the text has a form that cannot be changed. The caller
/// checks whether the result is the expected document.
pub(super) fn edit(text: &str, changes: &[Change]) -> Option<String> {
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
