//! `yq`, with which the release post reads a kubeconfig. Distributions package another program with
//! that name.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

const YQ: Tool = Tool { name: "yq", package: "github.com/mikefarah/yq/v4", version_args: &[], version: None };

/// Returns the folder with the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::of_program(YQ.name, "yq", "github.com/mikefarah/yq/v4")?;
    cached(&module, "program", &[YQ], offline)
}
