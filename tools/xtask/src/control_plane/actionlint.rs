//! `actionlint`, which checks the workflows in `.github`: `tools/third-party/actionlint`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

const ACTIONLINT: Tool = Tool {
    name: "actionlint",
    package: "github.com/rhysd/actionlint/cmd/actionlint",
    version_args: &[],
    version: None,
};

/// Returns the path of the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::of_program(ACTIONLINT.name, "actionlint", "github.com/rhysd/actionlint")?;
    Ok(cached(&module, "program", &[ACTIONLINT], offline)?.join(ACTIONLINT.name))
}
