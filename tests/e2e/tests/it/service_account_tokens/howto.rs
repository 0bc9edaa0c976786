//! Runs the commands of docs/howto/managed-clusters.md.

use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::wait;

use crate::howto_page;
use crate::installed::{self, Installed, TIME_LIMIT};

const PAGE: &str = "docs/howto/managed-clusters.md";

/// Runs alone, because it restarts the Concierge's pods with another configuration.
#[tokio::test]
async fn the_page_enables_tokens_and_disables_them() {
    let Some(installed) = installed::alone("the page about managed clusters").await else { return };
    let blocks = howto_page::of(PAGE);
    assert!(blocks.len() >= 8, "{} has only {} blocks", PAGE, blocks.len());
    let output = howto_page::run(&installed, "managed-clusters", &blocks).await;
    as_it_was(&installed).await;
    let printed = output.unwrap();
    let users = printed.lines().filter(|line| line.starts_with("Username ") && line.ends_with(" pinny"));
    assert_eq!(users.count(), 3, "each way is the user's: {printed}");
    assert!(
        printed.contains("ServiceAccountToken Success service account token exchange is ready"),
        "{printed}"
    );
    assert!(printed.contains(" deleted"), "{printed}");
    let world = installed.world();
    let left = world.kubectl().run(&["get", "namespace", "pinniped-concierge-users"]).await.unwrap();
    assert!(left.stderr.contains("not found"), "{left:?}");
}

/// Restores the Concierge without a configured address, and without the strategy, for the other
/// tests.
async fn as_it_was(installed: &Installed) {
    let kubectl = installed.world().kubectl();
    let manifest = "deploy/install-pinniped-concierge-resources.yaml";
    let text = std::fs::read_to_string(pinniped_test_support::tools::repository().join(manifest)).unwrap();
    let config = text.split("\n---\n").find(|document| document.contains("kind: ConfigMap\n")).unwrap();
    kubectl.apply(config).await.unwrap();
    let issuer = ["credentialissuers.config.concierge.pinniped.dev", "pinniped-concierge-config"];
    let patch = r#"{"spec":{"serviceAccountTokens":null}}"#;
    kubectl.output(&[&["patch"][..], &issuer, &["--type=merge", "-p", patch]].concat()).await.unwrap();
    let deployment = ["deployment/pinniped-concierge", "-n", CONCIERGE];
    kubectl.output(&[&["rollout", "restart"][..], &deployment].concat()).await.unwrap();
    kubectl.output(&[&["rollout", "status"][..], &deployment, &["--timeout=60s"]].concat()).await.unwrap();
    let responses = wait::until_ok(TIME_LIMIT, "the proxy to answer", async || {
        Ok(tokio::net::TcpStream::connect((installed.address, 443)).await?)
    });
    responses.await.unwrap();
}
