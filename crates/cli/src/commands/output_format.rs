//! The values of the flag `--output`, and the documents that they select.

use pinniped_go_compat::json::quote;
use pinniped_go_compat::{json as gojson, yaml as goyaml};
use serde::Serialize;

/// The format is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not write output: unknown output format: {}", quote(.0))]
pub struct UnknownFormat(String);

/// A form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputFormat {
    Text,
    Json,
    Yaml,
}

impl OutputFormat {
    /// Reads the value of the flag.
    ///
    /// # Errors
    ///
    /// Returns an error for another name.
    pub(super) fn parse(name: &str) -> Result<Self, UnknownFormat> {
        match name {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }

    /// Returns the output: `value` as a document, or `text`.
    ///
    /// # Errors
    ///
    /// A value of this crate causes no error; the result is fallible because serde serializes it.
    pub(super) fn output(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<String, serde_json::Error> {
        Ok(match self {
            Self::Text => text(),
            Self::Json => format!("{}\n", gojson::to_string_pretty(value)),
            Self::Yaml => goyaml::to_string(&serde_json::to_value(value)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_format_selects_the_document() {
        for (name, expected) in [("text", "t"), ("json", "{\n  \"a\": 1\n}\n"), ("yaml", "a: 1\n")] {
            let format = OutputFormat::parse(name).unwrap();
            assert_eq!(format.output(&json!({"a": 1}), || "t".to_owned()).unwrap(), expected);
        }
        assert_eq!(
            OutputFormat::parse("x").unwrap_err().to_string(),
            "could not write output: unknown output format: \"x\""
        );
    }
}
