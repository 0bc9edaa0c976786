//! `cargo xtask demo --kubeconfig`: the demo in a cluster that it did not start.

use std::process::Command;
use std::time::{Duration, Instant};

use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, LOCAL_USER_AUTHENTICATOR, Walk};
use pinniped_image::Image;
use pinniped_node::{Node, fixture};
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::tools;

use crate::admin::Admin;
use crate::walkthrough::INSTALL;

/// A name of the product's image that no other test imports.
const REFERENCE: &str = "registry.example.com/pinniped-server:demo";

/// Time limit of the demo on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(420);

#[tokio::test]
async fn the_demo_logs_in_to_an_existing_cluster_and_its_last_commands_remove_everything() {
    let Some(node) = fixture::shared("the demo in an existing cluster").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    let done = scenario(node, &environment, &walk).await;
    if let Err(error) = done {
        let output = Admin(&environment).existing_objects().await;
        let removed = walk.remove().await;
        panic!("{output}\n{error:#}\n{removed:?}");
    }
}

async fn scenario(node: &Node, environment: &OnNode<'_>, walk: &Walk<'_>) -> anyhow::Result<()> {
    let archive = environment.dir().join("image.tar");
    let image =
        Image { reference: REFERENCE.to_owned(), ..pinniped_image::product_image(&tools::image_bin_dir()?) };
    pinniped_image::build(&image, &archive)?;
    node.import_image(&archive).await?;

    // Without a terminal, the demo changes nothing unless it is confirmed.
    let unconfirmed = demo(environment, &[]).await?;
    assert_eq!(unconfirmed.code, 1, "{unconfirmed:?}");
    assert!(unconfirmed.stderr.contains("--yes"), "{unconfirmed:?}");
    assert_eq!(walk.leftovers().await?, Vec::<String>::new());

    let shown = demo(environment, &["--yes"]).await?.success()?.stdout;
    assert!(shown.contains("cannot list resource"), "{shown}");
    assert!(
        shown.contains("Username: pinny-the-seal\nGroups: group1, group2, system:authenticated\n"),
        "{shown}"
    );

    for name in [LOCAL_USER_AUTHENTICATOR, CONCIERGE] {
        let deployment = Admin(environment).json(&["deployment", name, "-n", name]).await?;
        let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
        let images: Vec<_> = containers.into_iter().flatten().map(|container| &container["image"]).collect();
        assert_eq!(images, [REFERENCE], "{name}");
    }

    // It does not change an existing installation.
    let again = demo(environment, &["--yes"]).await?;
    assert!(again.code == 1 && again.stderr.contains("the cluster already has objects"), "{again:?}");

    let (_, removal) = shown.split_once("To remove everything that the demo installed:\n").unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-euc", removal]);
    Step::inside(environment, bash).within(TIME_LIMIT).run(None).await?.success()?;
    assert_eq!(walk.leftovers().await?, Vec::<String>::new());
    Ok(())
}

async fn demo(environment: &OnNode<'_>, flags: &[&str]) -> anyhow::Result<CommandOutput> {
    let mut demo = Command::new(tools::binary("pinniped-demo")?);
    demo.arg("--kubeconfig")
        .arg(environment.admin_kubeconfig())
        .args(["--image-name", REFERENCE])
        .args(flags);
    demo.env("HOME", environment.dir()).env("TMPDIR", environment.dir());
    Step::inside(environment, demo).within(TIME_LIMIT).run(None).await
}
