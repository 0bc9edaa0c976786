//! The impersonation proxy's objects and status on a real API server.

use std::sync::atomic::Ordering;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use pinniped_concierge_api::config::{
    CredentialIssuerStrategy, StrategyReason, StrategyStatus, StrategyType,
};
use pinniped_pki::{CaBundle, Certificate, chain};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::install::{Install, PATIENCE, Pod, bytes};

fn to_none(endpoint: &str) -> Value {
    json!({"mode": "enabled", "externalEndpoint": endpoint, "service": {"type": "None"}})
}

fn listens(strategy: &CredentialIssuerStrategy) -> bool {
    strategy.reason == StrategyReason::Listening
}

fn bundle(strategy: &CredentialIssuerStrategy) -> anyhow::Result<Vec<u8>> {
    let info = strategy.frontend.as_ref().and_then(|frontend| frontend.impersonation_proxy_info.as_ref());
    Ok(STANDARD.decode(&info.context("no frontend")?.certificate_authority_data)?)
}

fn endpoint(strategy: &CredentialIssuerStrategy) -> Option<&str> {
    Some(&strategy.frontend.as_ref()?.impersonation_proxy_info.as_ref()?.endpoint)
}

/// Waits until the pod serves a leaf of this CA.
async fn serves(pod: &Pod, ca_pem: &[u8]) -> anyhow::Result<Certificate> {
    let roots = CaBundle::from_pem(ca_pem)?;
    wait::until(PATIENCE, "a leaf of the CA to be served", async || {
        let pair = pod.serving.current()?;
        let leaf = pair.leaf().clone();
        chain::verify_server(&leaf.der, &[], &roots, jiff::Timestamp::now()).ok().map(|()| leaf)
    })
    .await
}

/// Waits for the condition `Ready`, and returns the expiry of the serving certificate.
async fn is_ready(install: &Install, wanted: (&str, &str, i64)) -> anyhow::Result<Option<Time>> {
    wait::until_ok(PATIENCE, format!("Ready to be {wanted:?}"), async || {
        let status = install.issuers().get("concierge-config").await?.status.context("no status")?;
        let found = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let found = found.context("no condition")?;
        let generation = found.observed_generation.context("no generation")?;
        let state = (found.status.as_str(), found.reason.as_str(), generation);
        anyhow::ensure!(state == wanted, "{found:?}");
        Ok(status.serving_certificate.map(|certificate| certificate.not_after))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_condition_ready_follows_the_strategies_and_the_generation() -> anyhow::Result<()> {
    let install = Install::new("ready", json!({"mode": "disabled"})).await?;
    let pod = install.pod("pod-1");
    assert_eq!(is_ready(&install, ("False", "NoWorkingStrategy", 1)).await?, None);
    install.configure(to_none("proxy.example.com")).await?;
    let expires = is_ready(&install, ("True", "Success", 2)).await?;
    let serving = pod.serving.current().context("no certificate")?;
    assert_eq!(expires.context("no expiry")?.0, serving.leaf().not_after);
    // A change that concerns one strategy is observed by all controllers.
    let patch = Patch::Merge(json!({"spec": {"serviceAccountTokens": {"mode": "disabled"}}}));
    install.issuers().patch("concierge-config", &PatchParams::default(), &patch).await?;
    is_ready(&install, ("True", "Success", 3)).await?;
    install.configure(json!({"mode": "disabled"})).await?;
    assert_eq!(is_ready(&install, ("False", "NoWorkingStrategy", 4)).await?, None);
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_without_a_service_serves_repairs_tampering_and_is_disabled() -> anyhow::Result<()> {
    let install = Install::new("none", to_none("proxy.example.com:8443")).await?;
    let pod = install.pod("pod-1");
    let ready = install.strategy("Listening", listens).await?;
    assert_eq!(ready.status, StrategyStatus::Success);
    assert_eq!(ready.message, "impersonation proxy is ready to accept client connections");
    assert_eq!(endpoint(&ready), Some("https://proxy.example.com:8443"));
    assert!(pod.proxy_runs.load(Ordering::SeqCst));
    assert!(pod.controllers.impersonator().is_ready());

    // Both strategies, in their fixed order.
    let strategies = wait::until_ok(PATIENCE, "two strategies", async || {
        let strategies = install.strategies().await?;
        anyhow::ensure!(strategies.len() == 2, "{} of them", strategies.len());
        Ok(strategies)
    })
    .await?;
    assert_eq!(strategies[0].type_, StrategyType::KubeClusterSigningCertificate);
    assert_eq!(strategies[0].reason, StrategyReason::CouldNotFetchKey);
    assert!(strategies[0].message.contains("pod (0 candidates)"), "{}", strategies[0].message);

    let ca = install.secret("concierge-ca", |_| true).await?;
    let tls = install.secret("concierge-tls", |_| true).await?;
    assert_eq!(bundle(&ready)?, bytes(&ca, "ca.crt"));
    for secret in [&ca, &tls, &install.secret("concierge-signer", |_| true).await?] {
        assert_eq!(secret.metadata.owner_references, Some(install.owner()));
        assert_eq!(secret.labels().get("more").map(String::as_str), Some("label"));
    }
    assert_eq!(tls.type_.as_deref(), Some("kubernetes.io/tls"));
    let leaf = serves(&pod, bytes(&ca, "ca.crt")).await?;
    assert_eq!(leaf.dns_names, ["proxy.example.com"]);
    assert!(pod.signer.current().is_some());

    // Garbage, a missing key, and the leaf of another CA are all replaced.
    let other = pinniped_pki::Validity::starting(jiff::Timestamp::now(), PATIENCE * 100);
    let foreign = pinniped_pki::CertificateAuthority::generate("other", &other)?.issue_server(
        &["proxy.example.com".to_owned()],
        &[],
        &other,
    )?;
    let foreign = json!({
        "tls.crt": STANDARD.encode(&foreign.certificate_pem),
        "tls.key": STANDARD.encode(foreign.private_key_pem.as_str()),
    });
    let mut current = tls;
    for damage in [json!({"tls.crt": STANDARD.encode("garbage")}), json!({"tls.key": ""}), foreign] {
        let patch = Patch::Merge(json!({ "data": damage }));
        install.secrets().patch("concierge-tls", &PatchParams::default(), &patch).await?;
        let old = current.uid();
        current = install.secret("concierge-tls", |secret| secret.uid() != old).await?;
        serves(&pod, bytes(&ca, "ca.crt")).await?;
    }

    // A deleted CA is replaced, with a leaf and a status that match the new one.
    install.secrets().delete("concierge-ca", &DeleteParams::default()).await?;
    let old = ca.uid();
    let ca = install.secret("concierge-ca", |secret| secret.uid() != old).await?;
    serves(&pod, bytes(&ca, "ca.crt")).await?;
    install
        .strategy("the new bundle", |strategy| bundle(strategy).is_ok_and(|pem| pem == bytes(&ca, "ca.crt")))
        .await?;

    // An unreadable CA is an error that names it, and nothing is overwritten.
    let patch = Patch::Merge(json!({"data": {"ca.crt": ""}}));
    install.secrets().patch("concierge-ca", &PatchParams::default(), &patch).await?;
    let failed =
        install.strategy("an error", |entry| entry.reason == StrategyReason::ErrorDuringSetup).await?;
    assert!(
        failed
            .message
            .starts_with("could not load CA: tls: failed to find any PEM data in certificate input"),
        "{}",
        failed.message
    );
    let patch = Patch::Merge(json!({"data": {"ca.crt": STANDARD.encode(bytes(&ca, "ca.crt"))}}));
    install.secrets().patch("concierge-ca", &PatchParams::default(), &patch).await?;
    install.strategy("Listening again", listens).await?;

    // Disabled: the leaf is deleted, the CA is kept, memory is cleared.
    install.configure(json!({"mode": "disabled"})).await?;
    let off = install.strategy("Disabled", |entry| entry.reason == StrategyReason::Disabled).await?;
    assert_eq!(off.message, "impersonation proxy was explicitly disabled by configuration");
    install.secret_gone("concierge-tls").await?;
    assert_eq!(install.secrets().get("concierge-ca").await?.uid(), ca.uid());
    wait::until(PATIENCE, "memory to be cleared", async || {
        let cleared = pod.serving.current().is_none() && pod.signer.current().is_none();
        (cleared && !pod.proxy_runs.load(Ordering::SeqCst)).then_some(())
    })
    .await?;

    // Enabled again, with the same CA.
    install.configure(json!({"mode": "enabled"})).await?;
    let again = install.strategy("Listening", listens).await?;
    assert_eq!(bundle(&again)?, bytes(&ca, "ca.crt"));
    serves(&pod, bytes(&ca, "ca.crt")).await?;
    pod.controllers.shutdown().await;
    assert!(!pod.proxy_runs.load(Ordering::SeqCst), "the proxy ends with the process");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_follow_the_type_and_keep_foreign_annotations() -> anyhow::Result<()> {
    let annotations = json!({"ours": "1"});
    let spec = json!({"mode": "enabled", "service": {"type": "ClusterIP", "annotations": annotations}});
    let install = Install::new("services", spec).await?;
    let pod = install.pod("pod-1");
    let ready = install.strategy("Listening", listens).await?;
    let service = install.services().get("concierge-cip").await?;
    let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone()).context("no address")?;
    assert_eq!(endpoint(&ready), Some(format!("https://{ip}").as_str()));
    assert_eq!(service.metadata.owner_references, Some(install.owner()));
    let books = |key: &str| service.annotations().get(key).map(String::as_str);
    assert_eq!(books("credentialissuer.pinniped.dev/annotation-keys"), Some(r#"["ours"]"#));
    assert_eq!(books("credentialissuer.pinniped.dev/label-keys"), Some(r#"["app","more"]"#));
    let leaf = serves(&pod, &bundle(&ready)?).await?;
    assert_eq!(leaf.ip_addresses, [ip.parse::<std::net::IpAddr>()?]);

    // The annotation of another client survives an update by the Concierge.
    let foreign = Patch::Merge(json!({"metadata": {"annotations": {"foreign": "f"}}}));
    install.services().patch("concierge-cip", &PatchParams::default(), &foreign).await?;
    install.configure(json!({"service": {"annotations": {"ours": null, "new": "2"}}})).await?;
    wait::until_ok(PATIENCE, "the annotations to follow", async || {
        let service = install.services().get("concierge-cip").await?;
        let has = |key: &str| service.annotations().contains_key(key);
        anyhow::ensure!(has("new") && has("foreign") && !has("ours"), "{:?}", service.annotations());
        Ok(())
    })
    .await?;

    // Changed to a load balancer: the other Service is deleted, and the proxy waits for the
    // address.
    install.configure(json!({"service": {"type": "LoadBalancer"}})).await?;
    let waiting = install.strategy("Pending", |entry| entry.reason == StrategyReason::Pending).await?;
    assert_eq!(waiting.message, "waiting for load balancer Service to be assigned IP or hostname");
    assert!(install.services().get_opt("concierge-cip").await?.is_none());
    let ip = World::shared()?.assign_load_balancer(&install.namespace, "concierge-lb").await?;
    let ready = install.strategy("Listening", listens).await?;
    assert_eq!(endpoint(&ready), Some(format!("https://{ip}").as_str()));

    install.configure(json!({"mode": "disabled"})).await?;
    install.strategy("Disabled", |entry| entry.reason == StrategyReason::Disabled).await?;
    wait::until_ok(PATIENCE, "the Service to be gone", async || {
        anyhow::ensure!(install.services().get_opt("concierge-lb").await?.is_none(), "still there");
        Ok(())
    })
    .await?;
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_serves_the_leaders_certificate_and_takes_over() -> anyhow::Result<()> {
    let install = Install::new("follower", to_none("proxy.example.com")).await?;
    let leader = install.pod("pod-1");
    let ready = install.strategy("Listening", listens).await?;
    let follower = install.pod("pod-2");
    let ca = bundle(&ready)?;
    let leaf = serves(&follower, &ca).await?;
    assert_eq!(Some(leaf.der), leader.serving.current().map(|pair| pair.leaf().der.clone()));
    assert!(follower.proxy_runs.load(Ordering::SeqCst));
    // Reported at the end of the pass that began to serve.
    wait::until_ok(PATIENCE, "the follower to be ready", async || {
        anyhow::ensure!(follower.controllers.impersonator().is_ready(), "not yet");
        Ok(())
    })
    .await?;
    assert!(leader.controllers.leadership().is_leader() && !follower.controllers.leadership().is_leader());
    let before = install.secret("concierge-tls", |_| true).await?;

    leader.controllers.shutdown().await;
    install.configure(json!({"externalEndpoint": "other.example.com"})).await?;
    let moved = install
        .strategy("the new endpoint", |entry| endpoint(entry) == Some("https://other.example.com"))
        .await?;
    assert_eq!(bundle(&moved)?, ca, "the CA outlives its leader");
    assert_ne!(install.secret("concierge-tls", |_| true).await?.uid(), before.uid());
    assert!(follower.controllers.leadership().is_leader());
    follower.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_external_certificate_replaces_the_generated_one_and_is_replaced_again() -> anyhow::Result<()> {
    let install = Install::new("external", to_none("proxy.example.com")).await?;
    let pod = install.pod("pod-1");
    let generated = bundle(&install.strategy("Listening", listens).await?)?;
    let before = install.secret("concierge-tls", |_| true).await?;

    // A missing Secret does not affect the served certificate.
    install.configure(json!({"tls": {"secretName": "mine"}})).await?;
    let failed =
        install.strategy("an error", |entry| entry.reason == StrategyReason::ErrorDuringSetup).await?;
    assert_eq!(
        failed.message,
        "could not load the externally provided TLS secret for the impersonation proxy: secret \"mine\" not found"
    );
    assert_eq!(install.secret("concierge-tls", |_| true).await?.uid(), before.uid());

    let validity = pinniped_pki::Validity::starting(jiff::Timestamp::now(), PATIENCE * 100);
    let authority = pinniped_pki::CertificateAuthority::generate("external", &validity)?;
    let leaf = authority.issue_server(&["proxy.example.com".to_owned()], &[], &validity)?;
    let secret = serde_json::from_value(json!({
        "metadata": {"name": "mine"}, "type": "Opaque",
        "stringData": {
            "tls.crt": leaf.certificate_pem, "tls.key": leaf.private_key_pem.as_str(),
            "ca.crt": authority.certificate_pem(),
        },
    }))?;
    install.secrets().create(&Default::default(), &secret).await?;
    let ready = install.strategy("the external bundle", listens).await?;
    assert_eq!(bundle(&ready)?, authority.certificate_pem().as_bytes());
    serves(&pod, authority.certificate_pem().as_bytes()).await?;
    install.secret_gone("concierge-tls").await?;

    // Without a bundle: the schema of this release accepts an empty one.
    let patch = Patch::Merge(json!({"data": {"ca.crt": null}}));
    install.secrets().patch("mine", &PatchParams::default(), &patch).await?;
    install.strategy("an empty bundle", |entry| bundle(entry).is_ok_and(|pem| pem.is_empty())).await?;

    // Back to the generated certificate with the original CA.
    install.configure(json!({"tls": null})).await?;
    install.strategy("the original bundle", |entry| bundle(entry).is_ok_and(|pem| pem == generated)).await?;
    serves(&pod, &generated).await?;
    assert!(install.secrets().get_opt("mine").await?.is_some(), "the administrator's Secret is left alone");
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_rejects_an_empty_bundle_is_reported_with_the_remedy() -> anyhow::Result<()> {
    let install = Install::new("strict", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    // The minimum length of upstream's definition.
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/strategies/items/properties\
                /frontend/properties/impersonationProxyInfo/properties/certificateAuthorityData/minLength";
    let strict = json!([{"op": "add", "path": path, "value": 1}]).to_string();
    let crd = format!("credentialissuers.config.concierge.{}", install.suffix);
    World::shared()?.kubectl().output(&["patch", "crd", &crd, "--type=json", "-p", &strict]).await?;
    let entry = json!({
        "type": "ImpersonationProxy", "status": "Success", "reason": "Listening", "message": "m",
        "lastUpdateTime": "2026-01-01T00:00:00Z",
        "frontend": {
            "type": "ImpersonationProxy",
            "impersonationProxyInfo": {"endpoint": "https://x", "certificateAuthorityData": ""},
        },
    });
    let loose = Patch::Merge(json!({"status": {"strategies": [entry]}}));
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    wait::until_ok(PATIENCE, "the schema to be strict", async || {
        let refused = install.issuers().patch_status("concierge-config", &dry_run, &loose).await.is_err();
        anyhow::ensure!(refused, "still loose");
        Ok(())
    })
    .await?;

    let validity = pinniped_pki::Validity::starting(jiff::Timestamp::now(), PATIENCE * 100);
    let authority = pinniped_pki::CertificateAuthority::generate("external", &validity)?;
    let leaf = authority.issue_server(&["proxy.example.com".to_owned()], &[], &validity)?;
    let secret = serde_json::from_value(json!({
        "metadata": {"name": "mine"}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": leaf.certificate_pem, "tls.key": leaf.private_key_pem.as_str()},
    }))?;
    install.secrets().create(&Default::default(), &secret).await?;
    let pod = install.pod("pod-1");
    install
        .configure(json!({
            "mode": "enabled", "externalEndpoint": "proxy.example.com", "tls": {"secretName": "mine"},
        }))
        .await?;
    let remedy = "the installed CredentialIssuer CRD does not allow an empty certificateAuthorityData: apply the CRD of \
                  this release, or set spec.impersonationProxy.tls.certificateAuthorityData";
    let refused = install.strategy("the remedy", |entry| entry.message == remedy).await?;
    assert_eq!(refused.reason, StrategyReason::ErrorDuringSetup);
    serves(&pod, authority.certificate_pem().as_bytes()).await?;

    let data = STANDARD.encode(authority.certificate_pem());
    install.configure(json!({"tls": {"certificateAuthorityData": data}})).await?;
    install.strategy("Listening", listens).await?;
    pod.controllers.shutdown().await;
    Ok(())
}
