//! Admission objects of the cluster that match the aggregated API, which does not apply them.

use kube::core::Status;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::apis;
use crate::cli::Home;
use crate::installed::{self, NEW_LEADER_LIMIT, TIME_LIMIT};
use crate::separate_concierge::{SeparateConcierge, with_proxy};
use crate::service_account_tokens::webhook::Webhook;
use crate::shutdown;

const APP: &str = "admitting";
const FILE: &str = "pinniped.yaml";
const POLICY: &str = "admitting-policy";
const MUTATING: &str = "admitting-mutating";
const VALIDATING: &str = "admitting-validating";
const REFUSED: &str =
    "is forbidden: this API does not apply admission, and objects of these kinds may match: ";
const NAMED: &str = ". The condition AdmissionApplied of the CredentialIssuer names them";

/// One test, because each step changes the installation of the previous one.
#[tokio::test]
async fn matching_objects_are_reported_and_requests_are_refused_if_configured() {
    let Some(own) = SeparateConcierge::install(APP, &[], |text| with_proxy(&text)).await else { return };
    own.await_api().await;
    own.create_authenticator(&Webhook::start().unwrap()).await;
    await_login(&own).await;
    await_condition(&own, "NothingMatches", "no admission policy").await;
    let (problems_at_first, _) = doctor(&own).await;

    // By default, the policy is reported only.
    let (login, identity) = (format!("login.concierge.{APP}.example.com"), identity_group());
    own.world.kubectl().apply(&policy(&login).to_string()).await.unwrap();
    let object = format!("ValidatingAdmissionPolicy \"{POLICY}\"");
    await_condition(&own, "NotApplied", &object).await;
    await_login(&own).await;
    who_am_i(&own).await.unwrap();
    let (problems, finding) = doctor(&own).await;
    assert_eq!((problems, &finding["result"]), (problems_at_first, &json!("warning")), "{finding}");

    // The other mode, without one of the plug-ins. A pod becomes ready after its first decision.
    await_readiness(&own, 404).await;
    refuse(&own, "MutatingAdmissionWebhook").await;
    await_readiness(&own, 200).await;
    let status = await_refusal(&own).await;
    let resource = format!("tokencredentialrequests.{login}");
    assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
    assert_eq!(status.message, format!("{resource} {REFUSED}ValidatingAdmissionPolicy{NAMED}"));
    await_condition(&own, "Refused", &format!("not applied to {resource}, so its creation is refused: "))
        .await;
    let (problems, finding) = doctor(&own).await;
    assert_eq!((problems, &finding["result"]), (problems_at_first + 1, &json!("problem")), "{finding}");

    // Only the resource that an object matches is refused, and not because of the disabled plug-in.
    for (name, kind) in
        [(MUTATING, "MutatingWebhookConfiguration"), (VALIDATING, "ValidatingWebhookConfiguration")]
    {
        who_am_i(&own).await.unwrap();
        own.world.kubectl().apply(&webhooks(kind, name, &identity).to_string()).await.unwrap();
    }
    let waited = wait::until_ok(TIME_LIMIT, "a refusal of whoami", async || match who_am_i(&own).await {
        Err(kube::Error::Api(status)) => Ok(status.message),
        other => anyhow::bail!("{other:?}"),
    });
    let kind = "ValidatingWebhookConfiguration";
    let refused = format!("whoamirequests.{identity} {REFUSED}{kind}{NAMED}");
    assert_eq!(waited.await.unwrap(), refused);
    match send_who_am_i(&own, "?dryRun=All").await {
        Err(kube::Error::Api(status)) => assert_eq!((status.code, status.message), (403, refused)),
        other => panic!("{other:?}"),
    }
    let object = format!("{kind} \"{VALIDATING}\"");
    await_condition(&own, "Refused", &object).await;

    // Requests are served again without a restart.
    let kubectl = own.world.kubectl();
    kubectl.output(&["delete", "validatingadmissionpolicy", POLICY]).await.unwrap();
    kubectl.output(&["delete", "validatingwebhookconfiguration", VALIDATING]).await.unwrap();
    await_login(&own).await;
    await_condition(&own, "NothingMatches", "no admission policy").await;
    who_am_i(&own).await.unwrap();
    kubectl.output(&["delete", "mutatingwebhookconfiguration", MUTATING]).await.unwrap();
}

fn identity_group() -> String {
    format!("identity.concierge.{APP}.example.com")
}

fn rule(group: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]})
}

fn policy(group: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY}, "spec": {"matchConstraints": {"resourceRules": [rule(group)]},
            "validations": [{"expression": "false"}]}})
}

fn webhooks(kind: &str, name: &str, group: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "webhooks": [{"name": "webhook.admission.test", "rules": [rule(group)], "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/"}}]})
}

/// Restarts the Concierge with a configuration that refuses requests.
async fn refuse(own: &SeparateConcierge, disabled: &str) {
    let name = format!("{APP}-config");
    let map = own.get("configmap", &name).await.unwrap();
    let plugins = "aggregatedAPIServerDisableAdmissionPlugins: []";
    let text = map["data"][FILE].as_str().unwrap();
    assert_eq!(text.matches(plugins).count(), 1, "{text}");
    let text = text.replace(plugins, &plugins.replace("[]", &format!("[{disabled}]")))
        + "\naggregatedAPIServerUnappliedAdmission: refuse\n";
    let patch = json!({"data": {FILE: text}}).to_string();
    own.kubectl(&["patch", "configmap", &name, "--type=merge", "-p", &patch]).await.unwrap();
    let deployment = format!("deployment/{APP}");
    own.kubectl(&["rollout", "restart", &deployment]).await.unwrap();
    let status = own.kubectl(&["rollout", "status", &deployment, "--timeout=90s"]).await;
    own.check(status.map(drop));
}

/// Waits until the check `admission` of each pod has this status. Single checks are not open to
/// every user, so this client has all permissions.
async fn await_readiness(own: &SeparateConcierge, expected: u16) {
    let admin = own.world.control_plane().ca().client("admitting-admin", Some("system:masters")).unwrap();
    let waited = wait::until_ok(TIME_LIMIT, format!("the readiness {expected}"), async || {
        let running = installed::running(own.pods, APP).into_iter();
        let addresses: Vec<_> = running.filter_map(|(_, pod)| pod.ip).collect();
        anyhow::ensure!(!addresses.is_empty(), "no pod runs");
        for ip in addresses {
            let status = shutdown::get(ip, 10250, "/readyz/admission", Some(&admin)).await?;
            anyhow::ensure!(status == expected, "{ip} responds with {status}");
        }
        Ok(())
    });
    own.check(waited.await);
}

async fn log_in(own: &SeparateConcierge) -> anyhow::Result<Value> {
    own.log_in(&json!({"username": "admitting-pinny"})).await
}

async fn await_login(own: &SeparateConcierge) {
    let waited = wait::until_ok(TIME_LIMIT, "a login", async || {
        let status = log_in(own).await?;
        anyhow::ensure!(status["credential"]["clientCertificateData"].is_string(), "{status}");
        Ok(())
    });
    own.check(waited.await);
}

/// Waits until a login is refused, and returns the error.
async fn await_refusal(own: &SeparateConcierge) -> Box<Status> {
    let waited = wait::until_ok(TIME_LIMIT, "a refusal", async || match log_in(own).await {
        Ok(status) => anyhow::bail!("{status}"),
        Err(error) => match error.downcast::<kube::Error>()? {
            kube::Error::Api(status) if status.code == 403 => Ok(status),
            other => Err(other.into()),
        },
    });
    match waited.await {
        Ok(status) => status,
        Err(error) => panic!("{}\n{error:#}", own.pods.log_tails(APP, 30)),
    }
}

async fn who_am_i(own: &SeparateConcierge) -> Result<Value, kube::Error> {
    send_who_am_i(own, "").await
}

async fn send_who_am_i(own: &SeparateConcierge, query: &str) -> Result<Value, kube::Error> {
    let path = format!("/apis/{}/v1alpha1/whoamirequests{query}", identity_group());
    apis::post(&apis::anonymous(own.world).await, &path, &json!({})).await
}

/// Waits for the condition `AdmissionApplied` with this reason and this part of its message.
async fn await_condition(own: &SeparateConcierge, reason: &str, part: &str) {
    let resource = format!("credentialissuers.v1alpha1.config.concierge.{}", own.suffix);
    let waited = wait::until_ok(NEW_LEADER_LIMIT, format!("the reason {reason}"), async || {
        let issuer = own.get(&resource, &format!("{APP}-config")).await?;
        let mut conditions = issuer["status"]["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|condition| condition["type"] == "AdmissionApplied");
        let fits = found.is_some_and(|found| {
            found["reason"] == reason && found["message"].as_str().is_some_and(|text| text.contains(part))
        });
        anyhow::ensure!(fits, "{found:?}");
        Ok(())
    });
    own.check(waited.await);
}

/// Returns the number of problems that `pinniped doctor` counts, and the finding about admission.
async fn doctor(own: &SeparateConcierge) -> (u64, Value) {
    let home = Home::new();
    let args = ["doctor", "--concierge-api-group-suffix", &own.suffix, "--output", "json"];
    let output = home.pinniped_with(&own.world.admin_kubeconfig(), &args).await;
    let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let problems = report["problems"].as_u64().unwrap();
    assert_eq!(output.code, i32::from(problems > 0), "{output:?}");
    let mut findings = report["findings"].as_array().into_iter().flatten();
    let finding = findings.find(|finding| {
        finding["message"].as_str().is_some_and(|message| message.starts_with("AdmissionApplied"))
    });
    (problems, finding.cloned().unwrap_or_default())
}
