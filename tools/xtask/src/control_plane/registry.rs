//! The CNCF's registry, to which tests push images: `tools/third-party/registry`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

/// Environment variable with the path of the program, for tests.
pub(crate) const ENV: &str = "PINNIPED_REGISTRY";

const REGISTRY: Tool = Tool {
    name: "registry",
    package: "github.com/distribution/distribution/v3/cmd/registry",
    version_args: &[],
    version: None,
};

/// Returns the path of the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module =
        Module::of_program(REGISTRY.name, "the registry", "github.com/distribution/distribution/v3")?;
    Ok(cached(&module, "program", &[REGISTRY], offline)?.join(REGISTRY.name))
}
