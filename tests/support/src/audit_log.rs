//! Reads the audit log of an API server.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

/// Returns the events in `file` whose JSON contains `text`, oldest first. The log of a test run has
/// many thousands of events, so only these are parsed.
///
/// # Errors
/// Returns an error when the log cannot be read.
pub fn events(file: &Path, text: &str) -> anyhow::Result<Vec<Value>> {
    let log = std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    // The last line may be incomplete.
    Ok(log
        .lines()
        .filter(|line| line.contains(text))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
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
        assert_eq!(events(&file, "\"a\"").unwrap(), [json!({"user": "a"})]);
        assert_eq!(events(&file, "user").unwrap().len(), 2);
    }
}
