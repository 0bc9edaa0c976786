//! `promtool` of Prometheus, which checks metrics and rules: `tools/third-party/promtool`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

/// Environment variable with the path of the program, for tests.
pub(crate) const ENV: &str = "PINNIPED_PROMTOOL";

const PROMTOOL: Tool = Tool {
    name: "promtool",
    package: "github.com/prometheus/prometheus/cmd/promtool",
    version_args: &[],
    version: None,
};

/// Returns the path of the program.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    Ok(cached(&Module::promtool()?, "program", &[PROMTOOL], offline)?.join(PROMTOOL.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_pins_the_release_and_has_tags_of_its_own_in_its_key() {
        let module = Module::promtool().unwrap();
        assert!(module.version.starts_with("v0.315."), "{}", module.version);
        let without_tags = Module { tags: "", ..Module::promtool().unwrap() };
        assert_ne!(module.key().unwrap(), without_tags.key().unwrap());
    }
}
