//! Runs the commands of `docs/tutorials/kind.md` and, between its login and its last block, those
//! of `docs/howto/upgrade-and-uninstall.md`.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use pinniped_e2e::environment::OnNode;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::pages::shell_blocks;
use pinniped_e2e::walkthrough::Walk;
use pinniped_node::{Node, fixture};
use pinniped_test_support::tools;

use crate::admin::Admin;
use crate::reader::Reader;
use crate::walkthrough::{INSTALL, import_product};

const TUTORIAL: &str = "docs/tutorials/kind.md";
const UPGRADE: &str = "docs/howto/upgrade-and-uninstall.md";

/// Stands in for kind, which needs a container daemon: the cluster is the node, and the test
/// imports the image. It records its arguments.
const KIND: &str = "#!/bin/sh\necho \"$@\" >> kind.log\n";

#[tokio::test]
async fn a_reader_of_the_tutorial_logs_in_upgrades_and_uninstalls() {
    let Some(node) = fixture::shared("the tutorial for kind").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    let admin = Admin(&environment);
    let done = scenario(node, &environment, &walk).await;
    if let Err(error) = done {
        let output = admin.existing_objects().await;
        let binding = ["delete", "clusterrolebinding", "developers", "--ignore-not-found"];
        let removed = (admin.kubectl(&binding).await, walk.remove().await);
        panic!("{output}\n{error:#}\n{removed:?}");
    }
}

async fn scenario(node: &Node, environment: &OnNode<'_>, walk: &Walk<'_>) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    import_product(node, folder.path()).await?;

    let tutorial = shell_blocks(TUTORIAL)?;
    let (last, before) = tutorial.split_last().context("the tutorial has no commands")?;
    let upgrade = shell_blocks(UPGRADE)?;
    ensure!(before.len() >= 7 && upgrade.len() >= 4, "{} and {} blocks", before.len(), upgrade.len());
    let blocks = [before, &upgrade[..], std::slice::from_ref(last)].concat();
    let reader = Reader::new(environment, folder.path())?.with_program("kind", KIND)?;
    let output = reader.run(&blocks).await?;

    let printed = &output.stdout;
    ensure!(printed.contains("no permissions yet"), "{printed}");
    let page = std::fs::read_to_string(tools::repository().join(TUTORIAL))?;
    let refusal = output.stderr.lines().find(|line| line.starts_with("Error from server (Forbidden)"));
    let refusal = refusal.context("kubectl printed no refusal")?;
    ensure!(page.contains(refusal), "the tutorial does not have {refusal:?}");
    ensure!(printed.contains("Username: pinny\nGroups: developers, system:authenticated\n"), "{printed}");
    ensure!(printed.lines().any(|line| line.starts_with("kube-system ")), "no pods were listed: {printed}");
    let kind = std::fs::read_to_string(folder.path().join("kind.log"))?;
    let load = "load image-archive target/image/pinniped-server.tar --name pinniped";
    assert_eq!(kind, format!("create cluster --name pinniped\n{load}\ndelete cluster --name pinniped\n"));
    let left = walk.leftovers().await?;
    ensure!(left.is_empty(), "{UPGRADE} leaves {}", left.join(", "));
    Ok(())
}
