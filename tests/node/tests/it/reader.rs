//! A reader of a page in `docs/`, who runs its commands as an administrator of the node.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_e2e::environment::{OnNode, Step};
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::tools;

use crate::admin::Admin;

/// Time limit of all commands of one run together on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// A folder that contains `deploy`, and the programs that the commands use.
pub(crate) struct Reader<'p> {
    environment: &'p OnNode<'p>,
    folder: PathBuf,
    path: OsString,
}

impl<'p> Reader<'p> {
    /// Prepares an empty folder. `PATH` contains kubectl and the project's own programs.
    pub(crate) fn new(environment: &'p OnNode<'p>, folder: &Path) -> anyhow::Result<Self> {
        std::os::unix::fs::symlink(tools::repository().join("deploy"), folder.join("deploy"))?;
        std::fs::create_dir(folder.join("bin"))?;
        let kubectl = Admin(environment).command(&[]);
        let tools_dir = Path::new(kubectl.get_program()).parent().context("kubectl has no folder")?;
        let mut path = vec![folder.join("bin"), tools_dir.to_owned(), tools::bin_dir()?];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        Ok(Self { environment, folder: folder.to_owned(), path: std::env::join_paths(path)? })
    }

    /// Adds a script to the programs.
    pub(crate) fn with_program(self, name: &str, script: &str) -> anyhow::Result<Self> {
        let file = self.folder.join("bin").join(name);
        std::fs::write(&file, script)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
        Ok(self)
    }

    /// Adds a program of the machine.
    pub(crate) fn with_link(self, name: &str, program: &Path) -> anyhow::Result<Self> {
        std::os::unix::fs::symlink(program, self.folder.join("bin").join(name))?;
        Ok(self)
    }

    /// The folder in which the commands run.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs the blocks as one script, which must succeed.
    pub(crate) async fn run(&self, blocks: &[String]) -> anyhow::Result<CommandOutput> {
        self.script(&blocks.join("\n")).await?.success()
    }

    /// Runs a script, which may fail.
    pub(crate) async fn script(&self, script: &str) -> anyhow::Result<CommandOutput> {
        std::fs::write(self.folder.join("page.sh"), format!("set -euxo pipefail\n{script}\n"))?;
        let mut bash = Command::new("bash");
        bash.arg("page.sh").current_dir(&self.folder).env("HOME", &self.folder).env("PATH", &self.path);
        Step::inside(self.environment, bash).within(TIME_LIMIT).run(None).await
    }
}
