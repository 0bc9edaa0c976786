//! A real client-go informer for tests: `tools/third-party/informer`.

use std::path::PathBuf;

use super::Tool;
use super::cache::cached;
use super::module::Module;

const INFORMER: Tool = Tool { name: "informer", package: ".", version_args: &[], version: None };

/// Returns the path of the program. Go has already compiled most of it for the control plane.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let dir = cached(&Module::informer()?, "informer", &[INFORMER], offline)?;
    Ok(dir.join(INFORMER.name))
}

#[cfg(test)]
mod tests {
    use crate::cargo;

    /// Returns the lines of requirements, `PATH VERSION`.
    fn requirements(module: &str) -> Vec<String> {
        let text =
            std::fs::read_to_string(cargo::root().join("tools/third-party").join(module).join("go.mod"))
                .unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix('\t'));
        lines.map(|line| line.trim_end_matches(" // indirect").to_owned()).collect()
    }

    #[test]
    fn its_requirements_have_the_versions_of_the_control_plane() {
        let theirs = requirements("control-plane");
        let ours = requirements("informer");
        assert!(ours.len() > 10);
        let others: Vec<_> = ours.iter().filter(|line| !theirs.contains(line)).collect();
        assert!(others.is_empty(), "{others:?} would be compiled once more");
    }
}
