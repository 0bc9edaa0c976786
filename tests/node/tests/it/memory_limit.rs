//! Unauthenticated clients cannot terminate a pod of the Concierge: kubelet and kernel enforce the
//! memory limit of the manifest. The end-to-end tests contain the same test without a node.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::environment::OnNode;
use pinniped_e2e::lists_under_attack::under_attack;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, Serving, Walk};
use pinniped_node::{Node, fixture};
use pinniped_test_support::attacks::Attack;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::tools;

use crate::admin::{Admin, PODS};
use crate::walkthrough::{INSTALL, nothing_restarted};

#[tokio::test]
async fn no_unauthenticated_client_terminates_a_pod_with_the_shipped_memory_limit() {
    let Some(node) = fixture::shared("attacks on a pod with a memory limit").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    let image = folder.path().join("image.tar");
    pinniped_image::product(&tools::image_bin_dir().unwrap(), &image).unwrap();
    node.import_image(&image).await.unwrap();
    let admin = Admin(&environment);
    let done = scenario(node, &walk, admin).await;
    let done = match done {
        Ok(()) => nothing_restarted(&environment).await,
        Err(error) => Err(error),
    };
    let output = if done.is_err() { admin.existing_objects().await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(node: &Node, walk: &Walk<'_>, admin: Admin<'_>) -> anyhow::Result<()> {
    walk.install().await?;
    walk.create_user().await?;
    walk.show_credential_issuer().await?;
    walk.create_authenticator().await?;
    walk.enable_proxy(&Serving::Generated).await?;
    let deployment = "deployment/pinniped-concierge";
    admin.kubectl(&["rollout", "status", deployment, "-n", CONCIERGE, "--timeout=120s"]).await?;
    let pods = admin.json(&["pods", "-n", CONCIERGE, "-l", PODS]).await?;
    let pod = &pods["items"][0];
    let limit = &pod["spec"]["containers"][0]["resources"]["limits"]["memory"];
    ensure!(limit == "256Mi", "the limit of the pod is {limit}");
    let ip = pod["status"]["podIP"].as_str().context("the pod has no address")?;
    let server = SocketAddr::new(ip.parse()?, 8444);

    let kubeconfig = std::fs::read_to_string(node.kubeconfig())?;
    let pem = |field: &str| {
        let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(field));
        let pem = STANDARD.decode(line.with_context(|| format!("no {field}"))?.trim())?;
        anyhow::Ok(String::from_utf8(pem)?)
    };
    let certificate_pem = pem("client-certificate-data:")?;
    let pair = Pair { certificate_pem, private_key_pem: pem("client-key-data:")? };
    for attack in Attack::ALL {
        let lists = node.block_on_inside(|| under_attack(attack, server, &pair))??;
        eprintln!("{attack:?}: {lists}");
        lists.are_quick()?;
    }
    Ok(())
}
