//! Contour as a process: `tools/third-party/contour`. Also its CustomResourceDefinitions, which are
//! in the same Go module.

use std::path::PathBuf;

use anyhow::Context as _;

use super::Tool;
use super::build::source_dir;
use super::cache::{cached, write_whole};
use super::module::Module;

/// Environment variable with the folder, for tests and demo.
pub(crate) const ENV: &str = "PINNIPED_CONTOUR";

const CONTOUR: Tool = Tool {
    name: "contour",
    package: "github.com/projectcontour/contour/cmd/contour",
    version_args: &["version"],
    version: None,
};
/// The file of definitions in the module, and the file next to the program.
const DEFINITIONS: (&str, &str) = ("examples/contour/01-crds.yaml", "crds.yaml");

/// Returns the folder with the program and `crds.yaml`.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::contour()?;
    let dir = cached(&module, "program", &[CONTOUR], offline)?;
    let file = dir.join(DEFINITIONS.1);
    if !file.is_file() {
        let source = source_dir(&module, Module::CONTOUR, offline)?.join(DEFINITIONS.0);
        let text = std::fs::read_to_string(&source)
            .with_context(|| format!("could not read {}", source.display()))?;
        write_whole(&file, &text)?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_pins_the_release() {
        assert!(Module::contour().unwrap().version.starts_with("v1.33."));
    }
}
