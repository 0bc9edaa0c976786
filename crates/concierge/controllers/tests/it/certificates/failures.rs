//! Writes that the API server refuses, and existing objects that block a write.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;

use super::*;

/// Refuses an operation on one object.
struct Refusal {
    policies: Api<ValidatingAdmissionPolicy>,
    bindings: Api<ValidatingAdmissionPolicyBinding>,
    name: String,
}

impl Refusal {
    async fn new(install: &Install, operation: &str, object: &str) -> anyhow::Result<Self> {
        let own = format!("request.namespace == '{}' && request.name == '{object}'", install.namespace);
        Self::of(install, operation, object, ("", "v1", &["secrets", "services"]), &own).await
    }

    async fn of(
        install: &Install,
        operation: &str,
        object: &str,
        (group, version, resources): (&str, &str, &[&str]),
        own: &str,
    ) -> anyhow::Result<Self> {
        let name = format!("{}-{}-{object}", install.namespace, operation.to_lowercase());
        let refusal = Self {
            policies: Api::all(install.client.clone()),
            bindings: Api::all(install.client.clone()),
            name,
        };
        let policy = serde_json::from_value(json!({
            "metadata": {"name": refusal.name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [group], "apiVersions": [version], "operations": [operation],
                    "resources": resources,
                }]},
                "matchConditions": [{"name": "ours", "expression": own}],
                "validations": [{"expression": "false", "message": "not today"}],
            },
        }))?;
        let binding = serde_json::from_value(json!({
            "metadata": {"name": refusal.name},
            "spec": {"policyName": refusal.name, "validationActions": ["Deny"]},
        }))?;
        refusal.policies.create(&PostParams::default(), &policy).await?;
        refusal.bindings.create(&PostParams::default(), &binding).await?;
        Ok(refusal)
    }

    async fn end(self) -> anyhow::Result<()> {
        self.bindings.delete(&self.name, &DeleteParams::default()).await?;
        self.policies.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn has_refusal(entry: &CredentialIssuerStrategy) -> bool {
    entry.reason == StrategyReason::ErrorDuringSetup && entry.message.contains("not today")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_may_not_be_written_are_an_error_until_they_may() -> anyhow::Result<()> {
    let control_plane = World::shared()?.control_plane();
    let proxy = json!({"mode": "disabled", "service": {"type": "None"}});
    let install = Install::on(control_plane, "certificates-refused", proxy).await?;
    for (object, dry_run) in [("concierge-ca", "Opaque"), ("concierge-tls", "kubernetes.io/tls")] {
        let refusal = Refusal::new(&install, "CREATE", object).await?;
        let secret = serde_json::from_value(json!({
            "metadata": {"name": object}, "type": dry_run, "data": {"tls.crt": "", "tls.key": ""},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        wait::until(PATIENCE, "the policy to be in effect", async || {
            install.secrets().create(&params, &secret).await.is_err().then_some(())
        })
        .await?;
        let pod = install.pod("pod-1");
        install.configure(enabled("None", HOST)).await?;
        install.strategy("refused", has_refusal).await?;
        assert!(pod.serving.current().is_none());
        refusal.end().await?;
        install.strategy("allowed", |entry| endpoint(entry).is_some()).await?;
        install.configure(json!({"mode": "disabled", "externalEndpoint": null})).await?;
        install.strategy("off", |entry| entry.reason == StrategyReason::Disabled).await?;
        pod.controllers.shutdown().await;
        install.secrets().delete("concierge-ca", &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_may_not_be_deleted_are_an_error_until_they_may() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("undeletable", enabled("None", HOST)).await?;
    scenario.ready("at first", &["create CA", "create TLS"], &format!("https://{HOST}")).await?;
    let before = scenario.served();
    let refusal = Refusal::new(&scenario.install, "DELETE", "concierge-tls").await?;
    let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
    wait::until(PATIENCE, "the policy to be in effect", async || {
        scenario.install.secrets().delete("concierge-tls", &params).await.is_err().then_some(())
    })
    .await?;
    scenario.install.configure(json!({"externalEndpoint": "other.example.com"})).await?;
    scenario.install.strategy("refused", has_refusal).await?;
    assert_eq!(scenario.served(), before, "the served certificate does not change");

    // An external certificate is served nevertheless; only the cleanup fails and is reported.
    let ca = authority("external")?;
    let pair = issue(&ca, &["other.example.com"])?;
    scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
    scenario.tls(json!({"secretName": "mine"})).await?;
    let prefix = "unable to remove generated TLS secret with name concierge-tls: ";
    scenario.install.strategy("refused", |entry| entry.message.starts_with(prefix)).await?;
    scenario.serves("external", &pair.certificate_pem).await?;
    refusal.end().await?;
    scenario.install.strategy("allowed", |entry| endpoint(entry).is_some()).await?;
    scenario.absent("concierge-tls").await?;
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_block_a_write_make_the_strategy_pending() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("in-the-way", enabled("None", HOST)).await?;
    scenario.ready("at first", &["create CA", "create TLS"], &format!("https://{HOST}")).await?;
    // A finalizer keeps the old Secret under the name of the new one.
    let finalizers = |names: Value| merge(json!({"metadata": {"finalizers": names}}));
    let (params, keep) = finalizers(json!(["example.com/keep"]));
    scenario.install.secrets().patch("concierge-tls", &params, &keep).await?;
    scenario.install.configure(json!({"externalEndpoint": "other.example.com"})).await?;
    let waiting =
        scenario.install.strategy("already exists", |entry| entry.reason == StrategyReason::Pending).await?;
    let texts = [
        "secrets \"concierge-tls\" already exists",
        "object is being deleted: secrets \"concierge-tls\" already exists",
    ];
    assert!(texts.contains(&waiting.message.as_str()), "{}", waiting.message);
    assert!(waiting.frontend.is_none());
    let (params, let_go) = finalizers(json!(null));
    scenario.install.secrets().patch("concierge-tls", &params, &let_go).await?;
    scenario.install.strategy("free", |entry| endpoint(entry) == Some("https://other.example.com")).await?;
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_served_while_the_status_may_not_be_written() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("status", enabled("None", HOST)).await?;
    scenario.ready("at first", &["create CA", "create TLS"], &format!("https://{HOST}")).await?;
    let before = scenario.served();
    let group = format!("config.concierge.{}", scenario.install.suffix);
    let resources = ["credentialissuers/status"];
    let refusal =
        Refusal::of(&scenario.install, "UPDATE", "status", (&group, "v1alpha1", &resources), "true").await?;
    let (params, patch) = merge(json!({"status": {"strategies": []}}));
    let params = PatchParams { dry_run: true, ..params };
    wait::until(PATIENCE, "the policy to be in effect", async || {
        let issuers = scenario.install.issuers();
        issuers.patch_status("concierge-config", &params, &patch).await.is_err().then_some(())
    })
    .await?;
    scenario.install.configure(json!({"externalEndpoint": "other.example.com"})).await?;
    wait::until(PATIENCE, "another certificate to be served", async || {
        (scenario.served() != before).then_some(())
    })
    .await?;
    let strategies = scenario.install.strategies().await?;
    assert!(
        strategies.iter().any(|entry| endpoint(entry) == Some("https://proxy.example.com")),
        "{strategies:?}"
    );
    refusal.end().await?;
    scenario.ready("allowed", &["delete TLS", "create TLS"], "https://other.example.com").await?;
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_served_while_the_signer_is_invalid_and_the_old_one_keeps_signing()
-> anyhow::Result<()> {
    let mut scenario = Scenario::new("signer", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    scenario.ready("at first", &["create CA", "create TLS"], &ready).await?;
    let (served, signer) = (scenario.served(), scenario.pod.signer.current().context("no signer")?);
    let good = scenario.install.secret("concierge-signer", |_| true).await?;
    let (params, bad) = merge(json!({"data": {"caCertificatePrivateKey": STANDARD.encode("x")}}));
    scenario.install.secrets().patch("concierge-signer", &params, &bad).await?;
    let message = "could not set the impersonator's credential signing secret: impersonation-proxy-signing-cert: attempt \
                   to set invalid key pair: tls: failed to find any PEM data in key input";
    scenario.error("bad", &[], message).await?;
    assert_eq!(scenario.served(), served);
    let still = scenario.pod.signer.current().context("no signer")?;
    assert_eq!(still.certificate_pem(), signer.certificate_pem());

    // The same after a restart: the proxy serves, and no signer is loaded.
    scenario.pod.controllers.shutdown().await;
    scenario.pod = scenario.install.pod("pod-2");
    scenario.serves("a new pod", &served.context("nothing was served")?).await?;
    assert!(scenario.pod.signer.current().is_none());
    let (params, mended) = merge(json!({ "data": good.data }));
    scenario.install.secrets().patch("concierge-signer", &params, &mended).await?;
    scenario.ready("mended", &[], &ready).await?;
    assert!(scenario.pod.signer.current().is_some());
    scenario.end().await;
    Ok(())
}
