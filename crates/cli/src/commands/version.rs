//! `pinniped version`.

use super::output_format::OutputFormat;
use crate::flags::Parsed;
use crate::printer::Printer;
use crate::{OutputError, version, write};

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
        name => match OutputFormat::parse(name) {
            Ok(format @ (OutputFormat::Json | OutputFormat::Yaml)) => format.output(&info, String::new)?,
            Ok(OutputFormat::Text) | Err(_) => return Err(VersionError::Format(name.to_owned())),
        },
    };
    Ok(write(printer, text.as_bytes())?)
}
