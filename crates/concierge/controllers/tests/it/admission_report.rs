//! The report of admission objects on a real API server.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingWebhookConfiguration,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_concierge_domain::admission_report::CreateRefusal;
use pinniped_kube_types::condition::Condition;
use pinniped_test_support::wait;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::install::{Install, PATIENCE};

/// Waits until the condition `AdmissionApplied` passes `is_so`.
async fn condition(
    install: &Install,
    what: &str,
    is_so: impl Fn(&Condition) -> bool,
) -> anyhow::Result<Condition> {
    wait::until_ok(PATIENCE, what, async || {
        let issuer = install.issuers().get("concierge-config").await?;
        let conditions = issuer.status.map(|status| status.conditions).unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition.type_ == "AdmissionApplied");
        let found = found.context("no condition")?;
        anyhow::ensure!(is_so(&found), "{found:?}");
        Ok(found)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_objects_that_match_the_aggregated_api_are_reported() -> anyhow::Result<()> {
    let install = Install::new("admission", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    // Other tests on the same API server have objects of their own, so only names are compared.
    let resource = format!("tokencredentialrequests.login.concierge.{}", install.suffix);
    let tokens = format!("not applied to {resource}, so its creation is refused: ");
    let rule = |group: &str| json!({"apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]});
    let ours = rule(&format!("login.concierge.{}", install.suffix));
    let webhooks = |name: &str, rule: &Value| {
        json!({"metadata": {"name": name}, "webhooks": [{
            "name": "webhook.admission.test", "rules": [rule], "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "sideEffects": "None", "failurePolicy": "Ignore",
        }]})
    };
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(install.client.clone());
    let policy = json!({"metadata": {"name": "admission-policy"}, "spec": {
        "matchConstraints": {"resourceRules": [ours]}, "validations": [{"expression": "true"}],
    }});
    policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;

    let pod = install.pod("pod-1");
    let policy = "ValidatingAdmissionPolicy \"admission-policy\"";
    let reported = condition(&install, "the report at start", |found| found.message.contains(policy)).await?;
    assert_eq!((reported.status.as_str(), reported.reason.as_str()), ("False", "Refused"));
    assert!(reported.message.starts_with(&tokens), "{}", reported.message);
    // The refusals change before the report.
    let refused = |resource: &str| match pod.gate.refusals().of(resource) {
        Some(CreateRefusal::Unapplied(objects)) => objects.clone(),
        refusal => format!("{refusal:?}"),
    };
    let kind = "ValidatingAdmissionPolicy";
    assert!(refused("tokencredentialrequests").contains(kind), "{}", refused("tokencredentialrequests"));
    assert!(!refused("tokencredentialrequests").contains("admission-policy"), "clients get no names");

    // A pod that does not lead refuses as well.
    let other = install.pod("pod-2");
    let refuses = wait::until_ok(PATIENCE, "a refusal of the other pod", async || {
        let refusals = other.gate.refusals();
        let refusal = refusals.of("tokencredentialrequests");
        anyhow::ensure!(
            matches!(refusal, Some(CreateRefusal::Unapplied(kinds)) if kinds.contains(kind)),
            "{refusal:?}"
        );
        Ok(())
    });
    refuses.await?;
    assert!(pod.controllers.leadership().is_leader() && !other.controllers.leadership().is_leader());
    other.controllers.shutdown().await;

    let validating: Api<ValidatingWebhookConfiguration> = Api::all(install.client.clone());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(install.client.clone());
    let foreign = rule("foreign.admission.test");
    let create = &PostParams::default();
    validating.create(create, &serde_json::from_value(webhooks("admission-foreign", &foreign))?).await?;
    validating.create(create, &serde_json::from_value(webhooks("admission-v", &ours))?).await?;
    mutating.create(create, &serde_json::from_value(webhooks("admission-m", &ours))?).await?;
    let all = [
        "MutatingWebhookConfiguration \"admission-m\"",
        policy,
        "ValidatingWebhookConfiguration \"admission-v\"",
    ];
    let names_all = |found: &Condition| all.iter().all(|name| found.message.contains(name));
    let reported = condition(&install, "the report of all objects", names_all).await?;
    assert!(!reported.message.contains("admission-foreign"), "{}", reported.message);

    // An object that matches after a change is reported, and one that does not is no longer.
    let patch = json!({"webhooks": [{"name": "webhook.admission.test", "rules": [ours]}]});
    validating.patch("admission-foreign", &PatchParams::default(), &Patch::Strategic(&patch)).await?;
    condition(&install, "the report of the changed object", |found| {
        found.message.contains("admission-foreign")
    })
    .await?;
    let delete = DeleteParams::default();
    for name in ["admission-foreign", "admission-v"] {
        validating.delete(name, &delete).await?;
    }
    mutating.delete("admission-m", &delete).await?;
    policies.delete("admission-policy", &delete).await?;
    condition(&install, "no report", |found| !found.message.contains("\"admission-")).await?;

    // The next write of the condition waits for a webhook that does not respond.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let mut hanging = webhooks(
        "admission-hanging",
        &json!({
            "apiGroups": [format!("config.concierge.{}", install.suffix)], "apiVersions": ["*"],
            "operations": ["*"], "resources": ["credentialissuers/status"],
        }),
    );
    let url = format!("https://{}/", listener.local_addr()?);
    hanging["webhooks"][0]["clientConfig"]["url"] = url.into();
    hanging["webhooks"][0]["timeoutSeconds"] = 30.into();
    validating.create(create, &serde_json::from_value(hanging)?).await?;
    // An API server applies a new webhook a moment later.
    let mut stream = wait::until_ok(PATIENCE, "a write that waits", async || {
        let name = "admission-again";
        let _gone = mutating.delete(name, &delete).await;
        mutating.create(create, &serde_json::from_value(webhooks(name, &ours))?).await?;
        let accepted = tokio::time::timeout(Duration::from_secs(2), listener.accept()).await;
        Ok(accepted.context("no write")??.0)
    })
    .await?;
    assert!(!refused("tokencredentialrequests").contains(kind), "{}", refused("tokencredentialrequests"));
    let another = json!({"metadata": {"name": "admission-policy"}, "spec": {
        "matchConstraints": {"resourceRules": [ours]}, "validations": [{"expression": "true"}],
    }});
    policies.create(create, &serde_json::from_value(another)?).await?;
    wait::until_ok(PATIENCE, "the refusal while the write waits", async || {
        anyhow::ensure!(refused("tokencredentialrequests").contains(kind));
        Ok(())
    })
    .await?;
    let write_ends = async {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await
    };
    let ended = tokio::time::timeout(Duration::from_millis(100), write_ends).await;
    assert!(ended.is_err(), "the write has ended before the refusal: {ended:?}");
    validating.delete("admission-hanging", &delete).await?;
    mutating.delete("admission-again", &delete).await?;
    policies.delete("admission-policy", &delete).await?;
    pod.controllers.shutdown().await;
    Ok(())
}
