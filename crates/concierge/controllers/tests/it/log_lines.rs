//! The log lines about changes of the leader, of strategies and of authenticators, which are logged
//! at every log level.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_logging::value::ALWAYS;
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::log_events::{LogEvent, LogEvents};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::json;
use tracing::Level;

use crate::install::{Install, PATIENCE};

const OBJECT: &str = "WebhookAuthenticator/mine";

/// Waits for a line with this message which `fits`, and checks its level and its keys.
async fn line(
    lines: &LogEvents,
    message: &str,
    keys: &[&str],
    fits: impl Fn(&LogEvent) -> bool,
) -> anyhow::Result<()> {
    wait::until_ok(PATIENCE, format!("the line {message:?}"), async || {
        let all = lines.all();
        let found = all.iter().find(|line| line.field("message") == message && fits(line));
        let Some(found) = found else { anyhow::bail!("{all:#?}") };
        let found_keys: Vec<_> = found.fields.keys().map(String::as_str).collect();
        anyhow::ensure!(found.level == Level::INFO && found_keys == keys, "{found:?}");
        Ok(())
    })
    .await
}

/// Waits for a line about the authenticator.
async fn authenticator(lines: &LogEvents, message: &str, controller: &str) -> anyhow::Result<()> {
    let fits = |line: &LogEvent| line.field("object") == OBJECT && line.field("controller") == controller;
    line(lines, message, &["controller", "message", "object"], fits).await
}

#[tokio::test]
async fn changes_of_leader_strategies_and_authenticators_are_logged() -> anyhow::Result<()> {
    const FILLER: &str = "webhookcachefiller-controller";
    let lines = LogEvents::record(&[ALWAYS], Level::INFO);
    let install = Install::new("loglines", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    let control_plane = World::shared()?.control_plane();
    let pod = install.pod("pod-1");
    let leads = |line: &LogEvent| line.field("leader") == "true" && line.field("identity") == "pod-1";
    line(&lines, "leadership changed", &["identity", "leader", "lease", "message"], leads).await?;
    let is_off = |line: &LogEvent| {
        ["object", "strategy", "status", "reason"].map(|key| line.field(key))
            == ["CredentialIssuer/concierge-config", "ImpersonationProxy", "Error", "Disabled"]
    };
    let keys = ["message", "object", "reason", "status", "strategy", "text"];
    line(&lines, "strategy of the CredentialIssuer", &keys, is_off).await?;

    // The probe of an endpoint is a TLS handshake, so that any server will do.
    let working = format!("{}/webhook", control_plane.server());
    let failing = format!("https://127.0.0.1:{}/webhook", free_port()?);
    let webhooks: Api<WebhookAuthenticator> = Api::all_with(install.client.clone(), &install.suffix);
    let webhook: WebhookAuthenticator = serde_json::from_value(json!({
        "apiVersion": WebhookAuthenticator::group_version(&install.suffix),
        "kind": WebhookAuthenticator::KIND,
        "metadata": {"name": "mine"},
        "spec": {
            "endpoint": working,
            "tls": {"certificateAuthorityData": STANDARD.encode(&control_plane.ca().certificate_pem)},
        },
    }))?;
    let set_endpoint = async |endpoint: &str| {
        let patch = Patch::Merge(json!({"spec": {"endpoint": endpoint}}));
        webhooks.patch("mine", &PatchParams::default(), &patch).await.map(drop)
    };
    webhooks.create(&PostParams::default(), &webhook).await?;
    authenticator(&lines, "added an authenticator", FILLER).await?;
    let keys = ["controller", "message", "object", "reason", "text"];
    let is_ready = |line: &LogEvent| line.field("object") == OBJECT && line.field("reason") == "Ready";
    line(&lines, "status of an authenticator changed", &keys, is_ready).await?;
    set_endpoint(&format!("{working}/other")).await?;
    authenticator(&lines, "replaced an authenticator that has changed", FILLER).await?;
    set_endpoint(&failing).await?;
    authenticator(&lines, "removed an authenticator that is not valid any more", FILLER).await?;
    lines.clear();
    set_endpoint(&working).await?;
    authenticator(&lines, "added an authenticator", FILLER).await?;
    webhooks.delete("mine", &DeleteParams::default()).await?;
    authenticator(&lines, "deleting authenticator from cache", "cachecleaner-controller").await?;

    pod.controllers.shutdown().await;
    let follows = |line: &LogEvent| line.field("leader") == "false";
    line(&lines, "leadership changed", &["identity", "leader", "lease", "message"], follows).await
}
