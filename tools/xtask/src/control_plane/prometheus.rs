//! Prometheus and its tool `promtool`, which checks metrics and rules: `tools/third-party/
//! prometheus`. [`prometheus_ui`](super::prometheus_ui) has its pages.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

/// Environment variable with the folder of both programs, for tests and demo.
pub(crate) const ENV: &str = "PINNIPED_PROMETHEUS";

const TOOLS: [Tool; 2] = [
    Tool {
        name: "prometheus",
        package: "github.com/prometheus/prometheus/cmd/prometheus",
        version_args: &[],
        version: None,
    },
    Tool {
        name: "promtool",
        package: "github.com/prometheus/prometheus/cmd/promtool",
        version_args: &[],
        version: None,
    },
];

/// Returns the folder of the programs.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    cached(&Module::prometheus()?, "programs", &TOOLS, offline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_pins_the_release_and_has_tags_of_its_own_in_its_key() {
        let module = Module::prometheus().unwrap();
        assert!(module.version.starts_with("v0.315."), "{}", module.version);
        let without_tags = Module { tags: "", ..Module::prometheus().unwrap() };
        assert_ne!(module.key().unwrap(), without_tags.key().unwrap());
    }
}
