//! Runs the shell blocks of a page of docs/howto as one script.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_e2e::pages::shell_blocks;
use pinniped_test_support::world::World;
use pinniped_test_support::{kubectl, tools};

use crate::installed::Installed;

/// Returns the blocks of a page that are executed.
pub(crate) fn of(page: &str) -> Vec<String> {
    shell_blocks(page).unwrap()
}

/// Time limit of a whole page. Each step waits for the cluster, which is slow on a busy machine.
const LONGEST: Duration = Duration::from_secs(420);
/// Additional time in which a page that exceeds the limit ends and its output is read. The output
/// shows the command that took too long.
const REPORT_TIME: Duration = Duration::from_secs(60);

/// Runs blocks as an administrator, in a folder with this name that contains `deploy`. Returns
/// their output.
pub(crate) async fn run(installed: &Installed, name: &str, blocks: &[String]) -> anyhow::Result<String> {
    run_in(installed.world(), name, blocks).await
}

/// Does the same without the shared installation.
pub(crate) async fn run_in(world: &World, name: &str, blocks: &[String]) -> anyhow::Result<String> {
    let dir = world.dir().join(name);
    std::fs::create_dir_all(&dir)?;
    let deploy = dir.join("deploy");
    if !deploy.exists() {
        std::os::unix::fs::symlink(tools::repository().join("deploy"), deploy)?;
    }
    // The full resource names: concurrent tests have the same kinds in another group.
    let mut script = blocks.join("\n");
    for (brief, kind) in [
        (" credentialissuer ", "credentialissuers.config.concierge.pinniped.dev"),
        (" jwtauthenticator ", "jwtauthenticators.authentication.concierge.pinniped.dev"),
    ] {
        script = script.replace(brief, &format!(" {kind} "));
    }
    std::fs::write(dir.join("page.sh"), format!("set -euxo pipefail\n{script}\n"))?;

    let administrator = world.kubectl();
    let typed = administrator.command(&[]);
    let mut bash = Command::new("timeout");
    let limit = LONGEST.as_secs().to_string();
    bash.args(["--kill-after=10", &limit, "bash", "page.sh"]).current_dir(&dir).env("HOME", &dir);
    for (name, value) in typed.get_envs() {
        match value {
            Some(value) => bash.env(name, value),
            None => bash.env_remove(name),
        };
    }
    let kubectl_dir = administrator.program().parent().context("kubectl has no folder")?;
    let mut path = vec![kubectl_dir.to_owned(), tools::bin_dir()?];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    bash.env("PATH", std::env::join_paths(path)?);
    Ok(kubectl::run_within(LONGEST + REPORT_TIME, bash, None).await?.success()?.stdout)
}
