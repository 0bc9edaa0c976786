//! docs/howto/external-certificates.md does what it says: its blocks of commands, in their order, in one shell.

use std::process::Command;

use anyhow::Context as _;
use pinniped_test_support::{kubectl, tools};

use super::cert_manager::{back_to_generated, with_cert_manager};
use crate::installed::Installed;

const PAGE: &str = "docs/howto/external-certificates.md";

/// The blocks marked as `sh`. Others are to be read: `console`, `yaml`.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sh" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

#[test]
fn blocks_of_a_page_are_those_for_a_shell() {
    let page = "text\n```sh\na\nb\n```\n```console\n$ c\n```\n```sh\nd\n```\n";
    assert_eq!(blocks(page), ["a\nb", "d"]);
}

#[tokio::test]
async fn certificates_there_and_back_as_the_page_says() {
    let Some(installed) = with_cert_manager("the page about external certificates").await else { return };
    let page = std::fs::read_to_string(tools::repository().join(PAGE)).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() > 10, "{} has only {} blocks", PAGE, blocks.len());
    let outcome = run(&installed, &blocks).await;
    if outcome.is_err() {
        // The others want it as it was.
        back_to_generated(&installed).await.unwrap();
    }
    let said = outcome.unwrap();
    let valid = "\nTrue Valid";
    assert!(said.contains(valid), "the certificate was not found to be good: {said}");
    assert!(said.matches("Username: pinny").count() >= 6, "{said}");
}

async fn run(installed: &Installed, blocks: &[String]) -> anyhow::Result<String> {
    let world = installed.world();
    let dir = world.dir().join("howto");
    std::fs::create_dir_all(&dir)?;
    // In full: tests beside this one have the same kind under another group.
    let kind = "credentialissuers.config.concierge.pinniped.dev";
    let script = blocks.join("\n").replace(" credentialissuer ", &format!(" {kind} "));
    std::fs::write(dir.join("page.sh"), format!("set -euxo pipefail\n{script}\n"))?;

    let administrator = world.kubectl();
    let typed = administrator.command(&[]);
    let mut bash = Command::new("timeout");
    bash.args(["110", "bash", "page.sh"]).current_dir(&dir).env("HOME", &dir);
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
    Ok(kubectl::run(bash, None).await?.success()?.stdout)
}
