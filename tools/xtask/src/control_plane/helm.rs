//! The real `helm`, which renders and installs the chart in `deploy/chart`:
//! `tools/third-party/helm`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

/// Environment variable with the path of the program, for tests.
pub(crate) const ENV: &str = "PINNIPED_HELM";

const HELM: Tool =
    Tool { name: "helm", package: "helm.sh/helm/v4/cmd/helm", version_args: &[], version: None };

/// Returns the path of the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    Ok(cached(&Module::helm()?, "program", &[HELM], offline)?.join(HELM.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_pins_the_release() {
        assert!(Module::helm().unwrap().version.starts_with("v4.3."));
    }
}
