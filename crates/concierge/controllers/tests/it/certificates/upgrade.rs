//! Upgrade from upstream Pinniped, with objects as upstream writes them.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use kube::api::{WatchEvent, WatchParams};

use super::*;
use crate::install::{bytes, labels};

/// The generated CA and its serving certificate for `proxy.example.com`, encoded by Go's crypto
/// packages with upstream's subjects, extensions and lifetimes.
const UPSTREAM: &str = include_str!("upstream-secrets.json");

/// Creates the objects of an older version without support for external certificates.
async fn objects_of_old_version(install: &Install) -> anyhow::Result<(Secret, Secret, Service)> {
    let pem: Value = serde_json::from_str(UPSTREAM)?;
    let owners = install.owner();
    let metadata = |name: &str| json!({"name": name, "labels": labels(), "ownerReferences": owners});
    let secret = |name: &str, type_: &str, pem: &Value| {
        serde_json::from_value::<Secret>(
            json!({"metadata": metadata(name), "type": type_, "stringData": pem}),
        )
    };
    let create = PostParams::default();
    let ca = install.secrets().create(&create, &secret("concierge-ca", "Opaque", &pem["ca"])?).await?;
    let tls = secret("concierge-tls", "kubernetes.io/tls", &pem["tls"])?;
    let tls = install.secrets().create(&create, &tls).await?;
    // Created now, because it is renewed every year.
    let signer = authority("Pinniped Impersonation Proxy Signer CA")?;
    let signer = json!({
        "caCertificate": signer.certificate_pem(),
        "caCertificatePrivateKey": signer.private_key_pem().as_str(),
    });
    install.secrets().create(&create, &secret("concierge-signer", "Opaque", &signer)?).await?;
    // From a version that did not record its keys yet.
    let mut service = json!({
        "metadata": metadata("concierge-cip"),
        "spec": {
            "type": "ClusterIP", "selector": {"app": "concierge"},
            "ports": [{"port": 443, "targetPort": 8444, "protocol": "TCP"}],
        },
    });
    service["metadata"]["annotations"] = json!({"somebody/else": "1"});
    let service = install.services().create(&create, &serde_json::from_value(service)?).await?;
    let entry = |type_: &str, rest: Value| {
        let mut entry = json!({"type": type_, "lastUpdateTime": "2023-08-09T12:00:00Z"});
        if let (Some(entry), Value::Object(rest)) = (entry.as_object_mut(), rest) {
            entry.extend(rest);
        }
        entry
    };
    let info = json!({
        "endpoint": format!("https://{HOST}"), "certificateAuthorityData": STANDARD.encode(bytes(&ca, "ca.crt")),
    });
    let strategies = json!([
        entry(
            "KubeClusterSigningCertificate",
            json!({
                "status": "Error", "reason": "CouldNotFetchKey",
                "message": "could not find a healthy kube-controller-manager pod (0 candidates)",
            })
        ),
        entry(
            "ImpersonationProxy",
            json!({
                "status": "Success", "reason": "Listening",
                "message": "impersonation proxy is ready to accept client connections",
                "frontend": {"type": "ImpersonationProxy", "impersonationProxyInfo": info},
            })
        ),
    ]);
    let (params, patch) = merge(json!({"status": {"strategies": strategies}}));
    install.issuers().patch_status("concierge-config", &params, &patch).await?;
    Ok((ca, tls, service))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_an_older_version_are_used_unchanged() -> anyhow::Result<()> {
    let control_plane = World::shared()?.control_plane();
    let install = Install::on(control_plane, "certificates-upgrade", enabled("ClusterIP", HOST)).await?;
    let (ca, tls, service) = objects_of_old_version(&install).await?;
    let strategies = install.strategies().await?;
    let pod = install.pod("pod-1");
    let mut scenario = Scenario { control_plane, install, pod, writes: Vec::new() };

    // Nothing changes except that the Service gets its bookkeeping annotations; no administrator
    // has to act.
    let served = String::from_utf8_lossy(bytes(&tls, "tls.crt")).into_owned();
    scenario.serves("the old certificate", &served).await?;
    let bundle = scenario.ready("taken over", &["patch ClusterIP"], &format!("https://{HOST}")).await?;
    assert_eq!(bundle, bytes(&ca, "ca.crt"));
    let now = |name: &'static str| scenario.install.secret(name, |_| true);
    for (name, old) in [("concierge-ca", &ca), ("concierge-tls", &tls)] {
        let now = now(name).await?;
        assert_eq!((now.uid(), now.resource_version()), (old.uid(), old.resource_version()), "{name}");
    }
    let after = scenario.install.services().get("concierge-cip").await?;
    assert_eq!(after.uid(), service.uid());
    assert_eq!(after.annotations().get("somebody/else").map(String::as_str), Some("1"));
    let books = "credentialissuer.pinniped.dev/label-keys";
    assert_eq!(after.annotations().get(books).map(String::as_str), Some(r#"["app","more"]"#));
    let entry = &scenario.install.strategies().await?[1];
    assert_eq!(Some(entry), strategies.get(1), "the entry is the same, its time too");
    assert!(conditions(&scenario.install).await?.is_empty());

    // To an external certificate and back: the bundle is the same as before, so old kubeconfigs
    // work again.
    let external = authority("external")?;
    let pair = issue(&external, &[HOST])?;
    scenario.put_pair("mine", &pair, external.certificate_pem()).await?;
    scenario.tls(json!({"secretName": "mine"})).await?;
    scenario
        .expect("external", &["delete TLS"], |entry| {
            super::bundle(entry).is_ok_and(|pem| pem == external.certificate_pem().as_bytes())
        })
        .await?;
    scenario.serves("external", &pair.certificate_pem).await?;
    scenario.tls(Value::Null).await?;
    scenario
        .expect("back", &["create TLS"], |entry| {
            super::bundle(entry).is_ok_and(|pem| pem == bytes(&ca, "ca.crt"))
        })
        .await?;
    let leaf = scenario.pod.serving.current().context("nothing is served")?;
    let roots = pinniped_pki::CaBundle::from_pem(bytes(&ca, "ca.crt"))?;
    pinniped_pki::chain::verify_server(&leaf.leaf().der, &[], &roots, Timestamp::now())?;
    let same = scenario.install.secret("concierge-ca", |_| true).await?;
    assert_eq!(same.resource_version(), ca.resource_version());

    scenario.install.configure(json!({"mode": "disabled"})).await?;
    let off = |entry: &CredentialIssuerStrategy| entry.reason == StrategyReason::Disabled;
    scenario.expect("disabled", &["delete ClusterIP", "delete TLS"], off).await?;
    let same = scenario.install.secret("concierge-ca", |_| true).await?;
    assert_eq!(same.resource_version(), ca.resource_version());
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_never_generated_if_the_first_applied_object_names_one() -> anyhow::Result<()> {
    let control_plane = World::shared()?.control_plane();
    let mut with_tls = enabled("LoadBalancer", HOST);
    with_tls["tls"] = json!({"secretName": "mine"});
    let disabled = json!({"mode": "disabled", "service": {"type": "LoadBalancer"}});
    for (name, first) in [("certificates-fresh", with_tls.clone()), ("certificates-fresh-disabled", disabled)]
    {
        let install = Install::on(control_plane, name, first).await?;
        // A watch that starts before the first pod and covers the whole test.
        let params = WatchParams::default();
        let list = install.secrets().list(&Default::default()).await?;
        let version = list.metadata.resource_version.context("no version")?;
        let mut events = install.secrets().watch(&params, &version).await?.boxed();

        let pod = install.pod("pod-1");
        let mut scenario = Scenario { control_plane, install, pod, writes: Vec::new() };
        if name == "certificates-fresh" {
            let missing = format!("{LOAD_FAILED}secret \"mine\" not found");
            scenario.error("the Secret is still to come", &["create LB"], &missing).await?;
        } else {
            let off = |entry: &CredentialIssuerStrategy| entry.reason == StrategyReason::Disabled;
            scenario.expect("disabled at first", &[], off).await?;
            scenario.install.configure(with_tls.clone()).await?;
        }
        let ca = authority("external")?;
        let pair = issue(&ca, &[HOST])?;
        scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
        scenario.serves("external", &pair.certificate_pem).await?;
        let writes: &[&str] = if name == "certificates-fresh" { &[] } else { &["create LB"] };
        let bundle = scenario.ready("external", writes, &format!("https://{HOST}")).await?;
        assert_eq!(bundle, ca.certificate_pem().as_bytes());

        let end = serde_json::from_value(json!({"metadata": {"name": "the-end"}}))?;
        scenario.install.secrets().create(&PostParams::default(), &end).await?;
        let mut names = Vec::new();
        let all = async {
            while let Some(event) = events.next().await {
                if let WatchEvent::Added(secret) = event? {
                    names.push(secret.name_any());
                }
                if names.last().is_some_and(|name| name == "the-end") {
                    return Ok(());
                }
            }
            anyhow::bail!("the watch ended")
        };
        tokio::time::timeout(PATIENCE, all).await.context("no event of the last Secret")??;
        assert!(
            names.contains(&"mine".to_owned()) && names.contains(&"concierge-signer".to_owned()),
            "{names:?}"
        );
        assert!(!names.iter().any(|name| name == "concierge-ca" || name == "concierge-tls"), "{names:?}");
        scenario.end().await;
    }
    Ok(())
}
