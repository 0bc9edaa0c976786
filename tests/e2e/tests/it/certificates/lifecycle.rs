//! The installed Concierge, with the permissions of its own account, and an externally issued
//! certificate: the reports about an unusable certificate, and a login with a certificate of a
//! public CA.

use std::process::Command;

use anyhow::Context as _;
use pinniped_e2e::walkthrough::{CONCIERGE, EXTERNAL_NAME, strategy};
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::kubectl::{self, CommandOutput};
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use super::cert_manager::generated_serves;
use crate::installed::{self, Installed, TIME_LIMIT};

const ISSUER: &str = "credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config";
const SECRET: &str = "lifecycle-serving";
const WARNING: &str = "externally provided TLS certificate may not work for clients";
const EVENTS_PERMISSION: [&str; 4] = ["rolebinding", "pinniped-concierge-events", "--namespace", "default"];

async fn put(installed: &Installed, pair: &Pair) -> anyhow::Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": SECRET, "namespace": CONCIERGE},
        "stringData": {"tls.crt": pair.certificate_pem, "tls.key": pair.private_key_pem}});
    installed.world().kubectl().apply(&secret.to_string()).await?;
    Ok(())
}

async fn configure(installed: &Installed, tls: Value) -> anyhow::Result<()> {
    let patch = json!({"spec": {"impersonationProxy": {"tls": tls}}}).to_string();
    installed.world().kubectl().output(&["patch", ISSUER, "--type=merge", "--patch", &patch]).await?;
    Ok(())
}

/// Waits for the condition, and for a strategy that works nevertheless.
async fn condition(installed: &Installed, status: &str, message: &str) -> anyhow::Result<Value> {
    wait::until_ok(TIME_LIMIT, format!("the condition to be {status} {message:?}"), async || {
        let issuer = installed.world().kubectl().output(&["get", ISSUER, "--output=json"]).await?;
        let issuer: Value = serde_json::from_str(&issuer)?;
        let conditions = issuer["status"]["conditions"].as_array().context("no conditions")?;
        let condition = conditions.iter().find(|condition| condition["type"] == "ServingCertificateValid");
        let condition = condition.context("no condition of this type")?;
        anyhow::ensure!(condition["status"] == *status && condition["message"] == *message, "{condition}");
        let strategy = strategy(&issuer, "ImpersonationProxy");
        anyhow::ensure!(strategy["reason"] == "Listening", "{strategy}");
        Ok(strategy.clone())
    })
    .await
}

/// Returns the messages of the Events about the Secret of these tests, without those of other
/// tests.
async fn events(installed: &Installed) -> anyhow::Result<Vec<String>> {
    let args =
        ["get", "events", "--namespace=default", "--field-selector=reason=TLSValidation", "--output=json"];
    let list: Value = serde_json::from_str(&installed.world().kubectl().output(&args).await?)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let ours = items.iter().filter(|event| event["involvedObject"]["name"] == "pinniped-concierge-config");
    let messages = ours.filter_map(|event| event["message"].as_str());
    Ok(messages.filter(|message| message.contains(SECRET)).map(str::to_owned).collect())
}

/// Returns how many lines of the pods' logs contain all of these words.
fn lines(installed: &Installed, words: &[&str]) -> usize {
    let logs = installed.pods().logs(CONCIERGE);
    logs.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

fn other_host(name: &str) -> String {
    format!("certificate in secret \"{SECRET}\" is valid for [{name}], not \"{EXTERNAL_NAME}\"")
}

#[tokio::test]
async fn a_certificate_for_another_host_is_reported_in_status_events_and_log() {
    let Some(installed) = installed::alone("a certificate for another host").await else { return };
    let output = reported(&installed).await;
    restore(&installed).await;
    output.unwrap();
}

async fn reported(installed: &Installed) -> anyhow::Result<()> {
    let kubectl = installed.world().kubectl();
    let authority = Authority::new("lifecycle")?;
    put(installed, &authority.server("", &["one.example.com"], &[])?).await?;
    configure(installed, json!({"secretName": SECRET})).await?;
    let message = other_host("one.example.com");
    condition(installed, "False", &message).await?;
    wait::until_ok(TIME_LIMIT, "an Event, and a line of each pod", async || {
        let events = events(installed).await?;
        anyhow::ensure!(events == [message.clone()], "{events:?}");
        let lines = lines(installed, &[WARNING, "one.example.com"]);
        anyhow::ensure!(lines == installed.running().len(), "{lines} lines");
        Ok(())
    })
    .await?;

    // With upstream's role the Concierge cannot create Events, which is not a failure.
    let binding = kubectl.output(&[&["get"], &EVENTS_PERMISSION[..], &["--output=json"]].concat()).await?;
    kubectl.output(&[&["delete"], &EVENTS_PERMISSION[..]].concat()).await?;
    let result = async {
        put(installed, &authority.server("", &["two.example.com"], &[])?).await?;
        condition(installed, "False", &other_host("two.example.com")).await?;
        wait::until_ok(TIME_LIMIT, "the missing right to be named", async || {
            let named = lines(installed, &["a permission is missing", "events.events.k8s.io"]);
            anyhow::ensure!(named == 1, "{named} times");
            Ok(())
        })
        .await?;
        anyhow::ensure!(events(installed).await?.len() == 1, "another Event");
        Ok(())
    };
    let result = result.await;
    let mut binding: Value = serde_json::from_str(&binding)?;
    binding["metadata"] = json!({"name": binding["metadata"]["name"], "namespace": "default"});
    kubectl.apply(&binding.to_string()).await?;
    result
}

#[tokio::test]
async fn certificates_of_a_public_ca_need_no_bundle() {
    let Some(installed) = installed::alone("a certificate of a public CA").await else { return };
    let output = public(&installed).await;
    restore(&installed).await;
    output.unwrap();
}

async fn public(installed: &Installed) -> anyhow::Result<()> {
    // A CA is public if it is among the roots of a client's system.
    let authority = Authority::new("public")?;
    let dir = installed.world().dir().join("lifecycle");
    std::fs::create_dir_all(&dir)?;
    let (roots, kubeconfig) = (dir.join("roots.pem"), dir.join("kubeconfig.yaml"));
    std::fs::write(&roots, &authority.certificate_pem)?;
    put(installed, &authority.server("", &[EXTERNAL_NAME], &[])?).await?;
    configure(installed, json!({"secretName": SECRET})).await?;
    let strategy = condition(installed, "True", "").await?;
    let info = &strategy["frontend"]["impersonationProxyInfo"];
    anyhow::ensure!(info["certificateAuthorityData"] == "", "{info}");
    let pinniped = async |args: &[&str], trusts: bool| -> anyhow::Result<CommandOutput> {
        let mut command = Command::new(tools::binary("pinniped")?);
        command.args(args).current_dir(&dir).env("HOME", &dir).env_remove("SSL_CERT_DIR");
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME").env_remove("SSL_CERT_FILE");
        if trusts {
            command.env("SSL_CERT_FILE", &roots);
        }
        kubectl::run(command, None).await
    };
    let admin = installed.world().kubectl().kubeconfig().display().to_string();
    let get = [
        "get",
        "kubeconfig",
        "--kubeconfig",
        &admin,
        "--concierge-mode",
        "ImpersonationProxy",
        "--concierge-authenticator-type",
        "webhook",
        "--concierge-authenticator-name",
        "local-user-authenticator",
        "--static-token",
        "pinny:password123",
    ];
    let made =
        wait::until_ok(TIME_LIMIT, "a kubeconfig", async || pinniped(&get, true).await?.success()).await?;
    anyhow::ensure!(!made.stdout.contains("certificate-authority-data"), "{}", made.stdout);
    anyhow::ensure!(!made.stdout.contains("insecure-skip-tls-verify"), "{}", made.stdout);
    std::fs::write(&kubeconfig, &made.stdout)?;
    let path = kubeconfig.display().to_string();
    let who = pinniped(&["whoami", "--kubeconfig", &path], true).await?.success()?;
    anyhow::ensure!(who.stdout.contains("Username: pinny"), "{}", who.stdout);
    // Go's client reads the same roots.
    let mut command = installed.world().kubectl().with_kubeconfig(&kubeconfig).command(&["auth", "whoami"]);
    command.env("SSL_CERT_FILE", &roots).env_remove("SSL_CERT_DIR").env("HOME", &dir);
    let who = kubectl::run(command, None).await?.success()?;
    anyhow::ensure!(who.stdout.contains("pinny"), "{}", who.stdout);

    let stranger = pinniped(&["whoami", "--kubeconfig", &path], false).await?;
    anyhow::ensure!(stranger.code != 0, "a client without the root was let in: {}", stranger.stdout);
    Ok(())
}

async fn restore(installed: &Installed) {
    generated_serves(installed).await.unwrap();
    let kubectl = installed.world().kubectl();
    kubectl
        .output(&["delete", "secret", SECRET, "--namespace", CONCIERGE, "--ignore-not-found"])
        .await
        .unwrap();
}
