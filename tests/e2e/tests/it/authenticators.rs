//! The status of a WebhookAuthenticator, and its effect on logins.

use std::fmt::Debug;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_e2e::walkthrough::{CONCIERGE, LOCAL_USER_AUTHENTICATOR};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_test_support::certs::Authority;
use pinniped_test_support::wait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::apis::log_in;
use crate::installed::{self, Installed, TIME_LIMIT};

const ENDPOINT: &str = "https://local-user-authenticator.local-user-authenticator.svc/authenticate";
const NOT_READY: &str = "the WebhookAuthenticator is not ready: see other conditions for details";
const UNKNOWN: &str = "unable to validate; see other conditions for details";

async fn authenticators(installed: &Installed) -> Api<WebhookAuthenticator> {
    Api::all_with(installed.admin().await, &GroupSuffix::default())
}

/// Returns the webhook's CA, PEM.
async fn webhook_ca(installed: &Installed) -> String {
    let args = [
        "get",
        "secret",
        "local-user-authenticator-tls-serving-certificate",
        "-n",
        LOCAL_USER_AUTHENTICATOR,
        "-o",
        "jsonpath={.data.caCertificate}",
    ];
    let data = installed.world().kubectl().output(&args).await.unwrap();
    String::from_utf8(STANDARD.decode(data).unwrap()).unwrap()
}

async fn create(api: &Api<WebhookAuthenticator>, name: &str, spec: Value) {
    let object = json!({"apiVersion": "authentication.concierge.pinniped.dev/v1alpha1",
        "kind": "WebhookAuthenticator", "metadata": {"name": name}, "spec": spec});
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Waits until the status is about the current generation and as wanted: the phase, and for each
/// condition (by type) status, reason and message.
pub(crate) async fn await_status<K>(api: &Api<K>, name: &str, phase: &str, wanted: &[[&str; 4]])
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    wait::until_ok(TIME_LIMIT, format!("the status of {name}"), async || {
        let object = api.get(name).await?;
        let value = serde_json::to_value(&object)?;
        let conditions = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found: Vec<[&str; 4]> = conditions
            .iter()
            .map(|c| {
                ["type", "status", "reason", "message"].map(|member| c[member].as_str().unwrap_or_default())
            })
            .collect();
        let fresh = conditions.iter().all(|c| c["observedGeneration"].as_i64() == object.meta().generation);
        anyhow::ensure!(
            found == wanted && fresh && value["status"]["phase"] == phase,
            "{:#}\nwanted {wanted:#?}",
            value["status"]
        );
        Ok(())
    })
    .await
    .unwrap();
}

const READY: [[&str; 4]; 5] = [
    ["AuthenticatorValid", "True", "Success", "authenticator initialized"],
    ["EndpointURLValid", "True", "Success", "spec.endpoint is a valid URL"],
    ["Ready", "True", "Success", "the WebhookAuthenticator is ready"],
    ["TLSConfigurationValid", "True", "Success", "spec.tls is valid: using configured CA bundle"],
    ["WebhookConnectionValid", "True", "Success", "successfully dialed webhook server"],
];

/// Returns the conditions when the connection fails.
fn cannot_dial(message: &str) -> [[&str; 4]; 5] {
    let mut wanted = READY;
    wanted[0] = ["AuthenticatorValid", "Unknown", "UnableToValidate", UNKNOWN];
    wanted[2] = ["Ready", "False", "NotReady", NOT_READY];
    wanted[4] = ["WebhookConnectionValid", "False", "UnableToDialServer", message];
    wanted
}

/// Returns the conditions when the CA bundle is invalid.
fn bad_tls(message: &str) -> [[&str; 4]; 5] {
    let mut wanted = READY;
    wanted[0] = ["AuthenticatorValid", "Unknown", "UnableToValidate", UNKNOWN];
    wanted[2] = ["Ready", "False", "NotReady", NOT_READY];
    wanted[3] = ["TLSConfigurationValid", "False", "InvalidTLSConfig", message];
    wanted[4] = ["WebhookConnectionValid", "Unknown", "UnableToValidate", UNKNOWN];
    wanted
}

#[tokio::test]
async fn the_status_reports_the_problem_of_a_webhook() {
    let Some(installed) = installed::shared("the status of webhooks").await else { return };
    let api = authenticators(&installed).await;
    let ca = STANDARD.encode(webhook_ca(&installed).await);
    let other = STANDARD.encode(Authority::new("another").unwrap().certificate_pem);
    let with_ca = |ca: &str| json!({"endpoint": ENDPOINT, "tls": {"certificateAuthorityData": ca}});
    let down = "cannot dial server: dial tcp 127.0.0.1:1: connect: connection refused";
    let untrusted = "cannot dial server: tls: failed to verify certificate: x509: certificate signed by unknown authority";
    let no_base64 = "spec.tls.certificateAuthorityData is invalid: illegal base64 data at input byte 3";
    let no_pem = "spec.tls.certificateAuthorityData is invalid: no base64-encoded PEM certificates found in 8 bytes \
                  of data (PEM certificates must begin with \"-----BEGIN CERTIFICATE-----\")";
    let mut both = with_ca(&ca);
    both["tls"]["certificateAuthorityDataSource"] = json!({"kind": "Secret", "name": "n", "key": "k"});
    let twice = "spec.tls is invalid: both tls.certificateAuthorityDataSource and tls.certificateAuthorityData provided";
    let cases = [
        ("status-ready", with_ca(&ca), "Ready", READY),
        (
            "status-down",
            json!({"endpoint": "https://127.0.0.1:1/x", "tls": {"certificateAuthorityData": ca}}),
            "Error",
            cannot_dial(down),
        ),
        ("status-wrong-ca", with_ca(&other), "Error", cannot_dial(untrusted)),
        ("status-no-base64", with_ca("abc$"), "Error", bad_tls(no_base64)),
        ("status-no-pem", with_ca("YWJjZA=="), "Error", bad_tls(no_pem)),
        ("status-both", both, "Error", bad_tls(twice)),
    ];
    for (name, spec, ..) in &cases {
        create(&api, name, spec.clone()).await;
    }
    for (name, _, phase, wanted) in &cases {
        await_status(&api, name, phase, wanted).await;
    }
    let resource = "webhookauthenticators.v1alpha1.authentication.concierge.pinniped.dev";
    let table = installed.world().kubectl().output(&["get", resource]).await.unwrap();
    for (name, spec, phase, _) in &cases {
        let row = table.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells[1..3], [spec["endpoint"].as_str().unwrap(), phase], "{row}");
    }

    // An authenticator that is not ready takes no part in logins, and takes part again when it is
    // corrected.
    let client = installed.admin().await;
    let failed = json!({"message": "authentication failed"});
    assert_eq!(log_in(&client, "pinny:password123", "status-wrong-ca").await.unwrap()["status"], failed);
    let patch = Patch::Merge(json!({"spec": with_ca(&ca)}));
    api.patch("status-wrong-ca", &PatchParams::default(), &patch).await.unwrap();
    await_status(&api, "status-wrong-ca", "Ready", &READY).await;
    await_login(&client, "status-wrong-ca", true).await;

    for (name, ..) in &cases {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
    await_login(&client, "status-wrong-ca", false).await;
}

/// Waits until ten logins in a row succeed or fail as `works` specifies: every replica must have
/// the change.
async fn await_login(client: &kube::Client, authenticator: &str, works: bool) {
    wait::until_ok(TIME_LIMIT, format!("logins through {authenticator}"), async || {
        for _ in 0..10 {
            let status = log_in(client, "pinny:password123", authenticator).await?["status"].clone();
            anyhow::ensure!(status["credential"].is_object() == works, "{}", status["message"]);
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_edited_status_is_restored() {
    let Some(installed) = installed::shared("an edited status").await else { return };
    let api = authenticators(&installed).await;
    let ca = STANDARD.encode(webhook_ca(&installed).await);
    create(&api, "edited", json!({"endpoint": ENDPOINT, "tls": {"certificateAuthorityData": ca}})).await;
    await_status(&api, "edited", "Ready", &READY).await;
    let patch = json!({"status": {"phase": "Error", "conditions": [{"type": "Ready", "status": "False",
        "reason": "Whim", "message": "by hand", "lastTransitionTime": "2026-11-21T10:00:00Z"}]}});
    api.patch_status("edited", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    await_status(&api, "edited", "Ready", &READY).await;
    api.delete("edited", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_ca_may_be_in_a_secret_or_config_map_and_its_changes_take_effect() {
    let Some(installed) = installed::shared("CA data sources").await else { return };
    let kubectl = installed.world().kubectl();
    let api = authenticators(&installed).await;
    let ca = webhook_ca(&installed).await;
    let data = |value: &str| json!({"good": value, "empty": "", "garbage": "this is no certificate"});
    for (kind, more) in [
        ("ConfigMap", json!({"data": data(&ca)})),
        ("Secret", json!({"type": "Opaque", "stringData": data(&ca)})),
        ("Secret", json!({"type": "example.com/other", "stringData": data(&ca)})),
    ] {
        let mut object = more;
        let name = if object["type"] == "example.com/other" { "wrong-type" } else { "ca-source" };
        object["apiVersion"] = json!("v1");
        object["kind"] = json!(kind);
        object["metadata"] = json!({"name": name, "namespace": CONCIERGE});
        kubectl.apply(&object.to_string()).await.unwrap();
    }
    let source = |kind: &str, name: &str, key: &str| {
        json!({"endpoint": ENDPOINT,
            "tls": {"certificateAuthorityDataSource": {"kind": kind, "name": name, "key": key}}})
    };
    let tail = "(PEM certificates must begin with \"-----BEGIN CERTIFICATE-----\")";
    let cases = [
        ("source-secret", source("Secret", "ca-source", "good"), None),
        ("source-configmap", source("ConfigMap", "ca-source", "good"), None),
        (
            "source-no-configmap",
            source("ConfigMap", "no-such", "bar"),
            Some(
                "failed to get configmap \"pinniped-concierge/no-such\": configmap \"no-such\" not found"
                    .to_owned(),
            ),
        ),
        (
            "source-no-secret",
            source("Secret", "no-such", "bar"),
            Some(
                "failed to get secret \"pinniped-concierge/no-such\": secret \"no-such\" not found"
                    .to_owned(),
            ),
        ),
        (
            "source-no-key",
            source("Secret", "ca-source", "bar"),
            Some("key \"bar\" not found in secret \"pinniped-concierge/ca-source\"".to_owned()),
        ),
        (
            "source-empty",
            source("ConfigMap", "ca-source", "empty"),
            Some("key \"empty\" has empty value in configmap \"pinniped-concierge/ca-source\"".to_owned()),
        ),
        (
            "source-garbage",
            source("Secret", "ca-source", "garbage"),
            Some(format!(
                "key \"garbage\" with 22 bytes of data in secret \"pinniped-concierge/ca-source\" is not a PEM-encoded \
                 certificate {tail}"
            )),
        ),
        (
            "source-type",
            source("Secret", "wrong-type", "good"),
            Some(
                "secret \"pinniped-concierge/wrong-type\" of type \"example.com/other\" cannot be used as a \
                 certificate authority data source"
                    .to_owned(),
            ),
        ),
    ];
    for (name, spec, _) in &cases {
        create(&api, name, spec.clone()).await;
    }
    for (name, _, problem) in &cases {
        match problem {
            None => await_status(&api, name, "Ready", &READY).await,
            Some(problem) => {
                let message = format!("spec.tls.certificateAuthorityDataSource is invalid: {problem}");
                await_status(&api, name, "Error", &bad_tls(&message)).await;
            }
        }
    }

    // A change of the source takes effect without a change of the authenticator, in both
    // directions.
    let garbage = json!({"data": {"good": "no longer"}}).to_string();
    let patch = ["patch", "configmap", "ca-source", "-n", CONCIERGE, "--type=merge", "-p"];
    kubectl.output(&[&patch[..], &[&garbage]].concat()).await.unwrap();
    let message = format!(
        "spec.tls.certificateAuthorityDataSource is invalid: key \"good\" with 9 bytes of data in configmap \
         \"pinniped-concierge/ca-source\" is not a PEM-encoded certificate {tail}"
    );
    await_status(&api, "source-configmap", "Error", &bad_tls(&message)).await;
    let good = json!({"data": {"good": ca}}).to_string();
    kubectl.output(&[&patch[..], &[&good]].concat()).await.unwrap();
    await_status(&api, "source-configmap", "Ready", &READY).await;

    for (name, ..) in &cases {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}
