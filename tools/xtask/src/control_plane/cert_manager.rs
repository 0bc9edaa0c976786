//! cert-manager as processes: `tools/third-party/cert-manager`. Also its CustomResourceDefinitions,
//! which are in the same Go module.
//!
//! 1.11.5 is the last release whose programs are in one Go module; later releases consist of
//! several modules that replace each other.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Tool;
use super::build::source_dir;
use super::cache::{cached, write_whole};
use super::module::Module;

const fn program(name: &'static str, package: &'static str) -> Tool {
    Tool { name, package, version_args: &[], version: None }
}

const PROGRAMS: [Tool; 3] = [
    program("controller", "github.com/cert-manager/cert-manager/cmd/controller"),
    program("webhook", "github.com/cert-manager/cert-manager/cmd/webhook"),
    program("cainjector", "github.com/cert-manager/cert-manager/cmd/cainjector"),
];
/// The file with the definitions, next to the programs.
const DEFINITIONS: &str = "crds.yaml";

/// Returns the folder with the three programs and `crds.yaml`.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    let module = Module::cert_manager()?;
    let dir = cached(&module, "programs", &PROGRAMS, offline)?;
    let file = dir.join(DEFINITIONS);
    if !file.is_file() {
        let source = source_dir(&module, Module::CERT_MANAGER, offline)?;
        let text = definitions(&source.join("deploy/crds"))?;
        write_whole(&file, &text)?;
    }
    Ok(dir)
}

/// Returns all definitions of a folder as one text.
fn definitions(dir: &Path) -> anyhow::Result<String> {
    let listed = std::fs::read_dir(dir).with_context(|| format!("could not list {}", dir.display()))?;
    let mut files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    anyhow::ensure!(!files.is_empty(), "{} has no CustomResourceDefinition", dir.display());
    let mut all = String::new();
    for file in files {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        all.push_str("---\n");
        all.push_str(&rendered(&text));
    }
    Ok(all)
}

/// Replaces the Helm expressions in labels by the values of a chart named `cert-manager`.
fn rendered(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let line = line.replace(r#"'{{ template "cert-manager.name" . }}'"#, "cert-manager");
        let line = line.replace("'{{ .Release.Name }}'", "cert-manager");
        if !line.contains("{{") {
            lines.push_str(&line);
            lines.push('\n');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helm_expressions_are_replaced() {
        let text = "metadata:\n  labels:\n    app: '{{ template \"cert-manager.name\" . }}'\n    \
                    instance: '{{ .Release.Name }}'\n    # Generated labels {{- include \"labels\" . }}\nspec: {}\n";
        let wanted = "metadata:\n  labels:\n    app: cert-manager\n    instance: cert-manager\nspec: {}\n";
        assert_eq!(rendered(text), wanted);
    }

    #[test]
    fn the_module_pins_the_release() {
        assert_eq!(Module::cert_manager().unwrap().version, "v1.11.5");
    }
}
