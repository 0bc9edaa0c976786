//! The Concierge's own certificates on a real API server.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use pinniped_test_support::wait;
use serde_json::json;

use crate::install::{Install, PATIENCE, bytes};

const SECRET: &str = "concierge-api-tls-serving-certificate";

async fn trusts(install: &Install, group: &str, ca: &[u8]) -> anyhow::Result<()> {
    let name = format!("v1alpha1.{group}.concierge.{}", install.suffix);
    wait::until_ok(PATIENCE, format!("the bundle of {name}"), async || {
        let object = install.api_services().get(&name).await?;
        let bundle =
            object.data.pointer("/spec/caBundle").and_then(|value| value.as_str()).context("no bundle")?;
        anyhow::ensure!(bundle == STANDARD.encode(ca), "another bundle");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serving_certificates_are_created_published_loaded_and_replaced() -> anyhow::Result<()> {
    let install = Install::new("apicerts", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    let pod = install.pod("pod-1");
    let secret = install.secret(SECRET, |_| true).await?;
    assert_eq!(secret.metadata.owner_references, Some(install.owner()));
    assert_eq!(secret.labels().get("more").map(String::as_str), Some("label"));
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    for group in ["login", "identity"] {
        trusts(&install, group, bytes(&secret, "caCertificate")).await?;
    }
    let serves = |chain: Vec<u8>| {
        let holder = pod.api_serving.clone();
        async move {
            wait::until(PATIENCE, "the pair to be loaded", async || {
                holder.current().filter(|pair| pair.certificate_pem().as_bytes() == chain)
            })
            .await
        }
    };
    let pair = serves(bytes(&secret, "tlsCertificateChain").to_vec()).await?;
    let host = format!("concierge-api.{}.svc", install.namespace);
    assert_eq!(pair.leaf().dns_names, [host.clone(), format!("{host}.cluster.local")]);

    // Another client removes the bundle, as reapplying a manifest does.
    let wiped = json!({"spec": {"caBundle": null}});
    let name = format!("v1alpha1.login.concierge.{}", install.suffix);
    install.api_services().patch(&name, &PatchParams::default(), &Patch::Merge(&wiped)).await?;
    trusts(&install, "login", bytes(&secret, "caCertificate")).await?;

    // A deleted Secret is created again with new keys.
    install.secrets().delete(SECRET, &DeleteParams::default()).await?;
    let old = secret.uid();
    let renewed = install.secret(SECRET, |secret| secret.uid() != old).await?;
    assert_ne!(bytes(&renewed, "caCertificate"), bytes(&secret, "caCertificate"));
    trusts(&install, "login", bytes(&renewed, "caCertificate")).await?;
    serves(bytes(&renewed, "tlsCertificateChain").to_vec()).await?;

    // An expired certificate is deleted and created again.
    let now = jiff::Timestamp::now();
    let long_ago = now.checked_sub(jiff::SignedDuration::from_hours(48))?;
    let validity = pinniped_pki::Validity::starting(long_ago, std::time::Duration::from_secs(60));
    let ca = pinniped_pki::CertificateAuthority::generate("old", &validity)?;
    let leaf = ca.issue_server(&["x".to_owned()], &[], &validity)?;
    let expired = json!({"data": {"tlsCertificateChain": STANDARD.encode(leaf.certificate_pem)}});
    install.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(&expired)).await?;
    let uid = renewed.uid();
    install.secret(SECRET, |secret| secret.uid() != uid).await?;
    pod.controllers.shutdown().await;
    Ok(())
}
