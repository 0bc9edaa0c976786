//! `crane`, which pushes images to a registry with the credentials of Docker's configuration:
//! `tools/third-party/crane`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

const CRANE: Tool = Tool {
    name: "crane",
    package: "github.com/google/go-containerregistry/cmd/crane",
    version_args: &[],
    version: None,
};

/// Returns the path of the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::of_program(CRANE.name, "crane", "github.com/google/go-containerregistry")?;
    Ok(cached(&module, "program", &[CRANE], offline)?.join(CRANE.name))
}
