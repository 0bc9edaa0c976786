//! `pinniped version`.

use crate::flags::Parsed;
use crate::printer::Printer;
use crate::{OutputError, version, write};
use pinniped_go_compat::{json as gojson, yaml as goyaml};

/// The version was not printed.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The format is unknown.
    #[error("'{0}' is not a valid option for output")]
    Format(String),
    /// The information cannot be encoded.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Prints the version, or all information about the build.
pub(crate) fn run(parsed: &Parsed, printer: Printer) -> Result<(), VersionError> {
    let info = version::info();
    let text = match parsed.string("output").as_str() {
        "" => format!("{}\n", info.git_version),
        "json" => format!("{}\n", gojson::to_string_pretty(&info)),
        "yaml" => goyaml::to_string(&serde_json::to_value(&info)?),
        other => return Err(VersionError::Format(other.to_owned())),
    };
    Ok(write(printer, text.as_bytes())?)
}
