//! Reads the audit log of an API server.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

/// Returns the events in `file` that contain `text` in a name or value, oldest first. The log of a
/// test run has many thousands of events, so only these are parsed.
///
/// # Errors
/// Returns an error when the log cannot be read.
pub fn events(file: &Path, text: &str) -> anyhow::Result<Vec<Value>> {
    let text = escaped(text)?;
    let log = std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    // The last line may be incomplete.
    Ok(log
        .lines()
        .filter(|line| line.contains(&text))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Returns the text as it is between the quotes of a JSON string that Go has written.
fn escaped(text: &str) -> anyhow::Result<String> {
    let quoted = serde_json::to_string(text)?;
    let escaped = quoted[1..quoted.len() - 1].replace('&', "\\u0026");
    Ok(escaped.replace('<', "\\u003c").replace('>', "\\u003e"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_without_the_text_and_an_incomplete_last_line_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.log");
        std::fs::write(&file, "{\"user\":\"a\"}\n{\"user\":\"b\"}\n{\"user\":\"a\",\"us").unwrap();
        assert_eq!(events(&file, "a").unwrap(), [json!({"user": "a"})]);
        assert_eq!(events(&file, "user").unwrap().len(), 2);
    }

    #[test]
    fn characters_that_go_escapes_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.log");
        std::fs::write(&file, r#"{"uri":"/a?b=\u003c1\u003e\u0026c=\"\\"}"#).unwrap();
        assert_eq!(events(&file, r#"?b=<1>&c="\"#).unwrap(), [json!({"uri": r#"/a?b=<1>&c="\"#})]);
    }
}
