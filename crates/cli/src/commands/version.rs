//! `pinniped version`.

use crate::flags::Parsed;
use crate::printer::Printer;
use crate::{version, write};
use pinniped_go_compat::{json as gojson, yaml as goyaml};

/// Prints the version, or all information about the build.
pub(crate) fn run(parsed: &Parsed, printer: Printer) -> Result<(), String> {
    let info = version::info();
    let text = match parsed.string("output").as_str() {
        "" => format!("{}\n", info.git_version),
        "json" => format!("{}\n", gojson::to_string_pretty(&info)),
        "yaml" => goyaml::to_string(&serde_json::to_value(&info).map_err(|err| err.to_string())?),
        other => return Err(format!("'{other}' is not a valid option for output")),
    };
    write(printer, text.as_bytes())
}
