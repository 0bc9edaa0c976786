//! Logins with certificates that the kube-controller-manager of a real node signs.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_e2e::environment::OnNode;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, Walk, strategy};
use pinniped_node::{Node, fixture};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::walkthrough::{INSTALL, credential_is_signed_by_the_cluster, import_product, kubectl, pod_logs};

/// Time limit for the strategy in mode `auto`, which waits a minute for the strategies of upstream.
const TAKEOVER: Duration = Duration::from_secs(180);

const ROLE: &str = "pinniped-concierge-aggregated-api-server";

/// The Concierge may not exec into the agent, so it cannot read the signing key.
#[tokio::test]
async fn without_access_to_the_key_the_clusters_signer_signs() {
    let Some(node) = fixture::shared("the cluster's signer signs").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();
    let done = scenario(node, &environment, &walk).await;
    let logs = if done.is_err() { pod_logs(&environment).await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{logs}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(node: &Node, environment: &OnNode<'_>, walk: &Walk<'_>) -> anyhow::Result<()> {
    walk.install().await?;
    forbid_exec(environment).await?;
    // A pod that has read the key keeps it.
    let deployment = "deployment/pinniped-concierge";
    kubectl(environment, &["rollout", "restart", deployment, "-n", CONCIERGE]).await?;
    kubectl(environment, &["rollout", "status", deployment, "-n", CONCIERGE, "--timeout=90s"]).await?;
    walk.create_authenticator().await?;
    walk.create_tutorial_user().await?;

    wait::until_ok(TAKEOVER, "the cluster's signer to be used", async || {
        let issuer = walk.credential_issuer().await?;
        let entry = strategy(&issuer, "KubeCertificateSigningRequest");
        anyhow::ensure!(entry["status"] == "Success", "{}", issuer["status"]);
        let key = strategy(&issuer, "KubeClusterSigningCertificate");
        anyhow::ensure!(key["status"] == "Error", "{key}");
        Ok(())
    })
    .await?;
    let written = walk.kubeconfig_without_proxy().await?;
    assert!(written.stdout.contains("server: https://10.123.0.1:6443"), "{}", written.stdout);
    walk.refused_without_proxy().await?;
    // Five minutes back and ten ahead.
    credential_is_signed_by_the_cluster(node, environment, &walk.tutorial_kubeconfig(), 900).await?;
    let left = kubectl(environment, &["get", "certificatesigningrequests", "-o", "name"]).await?;
    assert!(!left.contains("pinniped-login-"), "{left}");
    Ok(())
}

/// Removes the permission for `pods/exec`.
async fn forbid_exec(environment: &OnNode<'_>) -> anyhow::Result<()> {
    let role = kubectl(environment, &["get", "role", ROLE, "-n", CONCIERGE, "-o", "json"]).await?;
    let mut role: Value = serde_json::from_str(&role)?;
    let rules = role["rules"].as_array_mut().context("the Role has no rules")?;
    rules.retain(|rule| rule["resources"] != json!(["pods/exec"]));
    let patch = json!({"rules": rules}).to_string();
    kubectl(environment, &["patch", "role", ROLE, "-n", CONCIERGE, "--type=merge", "-p", &patch]).await?;
    Ok(())
}
