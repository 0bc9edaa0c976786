//! The test executables that cargo builds, and the commands that run them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use crate::cargo;

/// A test executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Executable {
    /// The package that it belongs to.
    pub(super) package: String,
    /// `package::target`, unique in the workspace.
    pub(super) name: String,
    /// The folder of the package, where cargo runs its tests.
    pub(super) folder: PathBuf,
    /// The executable itself.
    pub(super) path: PathBuf,
}

impl Executable {
    /// Returns a command that runs it as `cargo test` does, in its own network namespace.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(cargo::root().join("tools/test-runner.sh"));
        command.arg(&self.path).current_dir(&self.folder);
        command.env("CARGO_PKG_NAME", &self.package).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds the tests that `args` of `cargo test` select and returns their executables in the order
/// of cargo.
///
/// # Errors
/// Returns an error when cargo fails; its messages are on standard error.
pub(super) fn build(offline: bool, args: &[String]) -> anyhow::Result<Vec<Executable>> {
    let mut command = cargo::cargo(offline);
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(args);
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| "could not start cargo".to_owned())?;
    anyhow::ensure!(output.status.success(), "building the tests failed ({})", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(executable).collect())
}

/// The test executable that a message of cargo announces.
fn executable(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let target = &message["target"];
    let package = package(message["package_id"].as_str()?)?;
    // A library and a program of one package may have the same name.
    let kind = target["kind"][0].as_str()?;
    Some(Executable {
        name: format!("{package}::{} ({kind})", target["name"].as_str()?),
        package: package.to_owned(),
        folder: folder.to_owned(),
        path: PathBuf::from(path),
    })
}

/// The name in a package ID, which is `path+file:///folder#name@version`, or
/// `path+file:///name#version`.
fn package(id: &str) -> Option<&str> {
    let (url, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _version)) => Some(name),
        None => url.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_name_the_test_executables() {
        let message = |test: bool, executable: &str, id: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/src/crates/api/Cargo.toml",
                    "target":{{"kind":["test"],"name":"it"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let named = "path+file:///src/crates/api#pinniped-api@0.1.0";
        let wanted = Executable {
            package: "pinniped-api".to_owned(),
            name: "pinniped-api::it (test)".to_owned(),
            folder: "/src/crates/api".into(),
            path: "/target/it-1".into(),
        };
        assert_eq!(executable(&message(true, r#""/target/it-1""#, named)), Some(wanted));
        assert_eq!(executable(&message(false, r#""/target/it-1""#, named)), None, "a program");
        assert_eq!(executable(&message(true, "null", named)), None, "a library that others need");
        assert_eq!(executable("   Compiling"), None);
        assert_eq!(package("path+file:///src/xtask#0.1.0"), Some("xtask"));
    }
}
