//! Events on a real API server, as `kubectl describe` shows them.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_test_support::control_plane::{ControlPlane, free_port};
use pinniped_test_support::issuer::ScriptedIssuer;
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::json;

use crate::install::{Install, PATIENCE};

/// Returns the lines of Events that `kubectl describe` shows: type, reason, count, reporter and
/// message.
async fn described(control_plane: &ControlPlane, object: &str) -> anyhow::Result<Vec<String>> {
    let text = control_plane.kubectl().output(&["describe", object]).await?;
    let (_, events) = text.split_once("\nEvents:").with_context(|| text.clone())?;
    // Type, reason, age and reporter are separated by spaces; the age has spaces if there is a
    // series, such as `5s (x2 over 8s)`.
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let from = words.iter().position(|word| *word == "pinniped-concierge")?;
        let series = words[2..from].iter().find_map(|word| word.strip_prefix("(x"));
        let count = series.map_or_else(String::new, |count| format!(" x{count}"));
        Some(format!("{} {}{count}: {}", words[0], words[1], words[from + 1..].join(" ")))
    };
    Ok(events.lines().filter_map(line).collect())
}

async fn await_events(control_plane: &ControlPlane, object: &str, expected: &[&str]) -> anyhow::Result<()> {
    wait::until_ok(PATIENCE, format!("the Events of {object}"), async || {
        let mut found = described(control_plane, object).await?;
        found.sort_unstable();
        let mut expected: Vec<&str> = expected.to_vec();
        expected.sort_unstable();
        anyhow::ensure!(
            found.len() == expected.len()
                && found.iter().zip(&expected).all(|(found, expected)| found.starts_with(expected)),
            "{found:#?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_fails_and_recovers_has_events() -> anyhow::Result<()> {
    let install = Install::new("events", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    let control_plane = World::shared()?.control_plane();
    let (leader, follower) = (install.pod("pod-1"), install.pod("pod-2"));
    let webhooks: Api<WebhookAuthenticator> = Api::all_with(install.client.clone(), &install.suffix);
    // The probe of an endpoint is a TLS handshake, so that any server will do.
    let working = format!("{}/webhook", control_plane.server());
    let failing = format!("https://127.0.0.1:{}/webhook", free_port()?);
    let mut webhook: WebhookAuthenticator = serde_json::from_value(json!({
        "metadata": {"name": "mine"},
        "spec": {
            "endpoint": failing,
            "tls": {"certificateAuthorityData": STANDARD.encode(&control_plane.ca().certificate_pem)},
        },
    }))?;
    webhook.kind = WebhookAuthenticator::KIND.to_owned();
    webhook.api_version = WebhookAuthenticator::group_version(&install.suffix);
    webhooks.create(&PostParams::default(), &webhook).await?;
    let object = format!("webhookauthenticators.authentication.concierge.{}/mine", install.suffix);
    let failed = "Warning UnableToDialServer: WebhookConnectionValid: cannot dial server: ";
    await_events(control_plane, &object, &[failed]).await?;

    let endpoint = async |endpoint: &str| {
        let patch = Patch::Merge(json!({"spec": {"endpoint": endpoint}}));
        webhooks.patch("mine", &PatchParams::default(), &patch).await.map(drop)
    };
    let ready = "Normal Ready: the WebhookAuthenticator is ready";
    endpoint(&working).await?;
    await_events(control_plane, &object, &[failed, ready]).await?;
    endpoint(&failing).await?;
    let failed_again = failed.replace("Server:", "Server x2:");
    await_events(control_plane, &object, &[&failed_again, ready]).await?;
    endpoint(&working).await?;
    let ready_again = ready.replace("Ready:", "Ready x2:");
    await_events(control_plane, &object, &[&failed_again, &ready_again]).await?;

    // Another object of this name does not have the Events of the first one.
    webhooks.delete("mine", &DeleteParams::default()).await?;
    webhook.spec.endpoint = working;
    webhooks.create(&PostParams::default(), &webhook).await?;
    await_events(control_plane, &object, &[ready]).await?;
    leader.controllers.shutdown().await;
    follower.controllers.shutdown().await;
    Ok(())
}

/// Returns type, reason, note and reporter of the Events about an object, through the API.
async fn listed(client: &kube::Client, uid: &str) -> anyhow::Result<Vec<[String; 4]>> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let all = events.list(&ListParams::default()).await?.items.into_iter();
    let about = all.filter(|event| event.regarding.as_ref().is_some_and(|it| it.uid.as_deref() == Some(uid)));
    Ok(about
        .map(|event| {
            [event.type_, event.reason, event.note, event.reporting_controller].map(Option::unwrap_or_default)
        })
        .collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jwt_authenticator_whose_issuer_fails_and_recovers_has_events() -> anyhow::Result<()> {
    let install = Install::new("jwtevents", json!({"mode": "disabled", "service": {"type": "None"}})).await?;
    let control_plane = World::shared()?.control_plane();
    let pod = install.pod("pod-1");
    let issuer = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await?;
    issuer.publish(&key_set([&Signer::generate(Algorithm::Es256, "first")]));
    let authenticators: Api<JwtAuthenticator> = Api::all_with(install.client.clone(), &install.suffix);
    let mut authenticator: JwtAuthenticator = serde_json::from_value(json!({
        "metadata": {"name": "mine"},
        "spec": {
            "issuer": issuer.url(), "audience": "cluster",
            "tls": {"certificateAuthorityData": STANDARD.encode(&issuer.ca_pem)},
        },
    }))?;
    authenticator.kind = JwtAuthenticator::KIND.to_owned();
    authenticator.api_version = JwtAuthenticator::group_version(&install.suffix);
    let created = authenticators.create(&PostParams::default(), &authenticator).await?;
    let object = format!("jwtauthenticators.authentication.concierge.{}/mine", install.suffix);
    let ready = "Normal Ready: the JWTAuthenticator is ready";
    await_events(control_plane, &object, &[ready]).await?;

    let set_issuer = async |issuer: &str| {
        let patch = Patch::Merge(json!({"spec": {"issuer": issuer}}));
        authenticators.patch("mine", &PatchParams::default(), &patch).await.map(drop)
    };
    // The server has no discovery document there.
    set_issuer(&format!("{}/missing", issuer.url())).await?;
    let note = "DiscoveryURLValid: could not perform oidc discovery on provider issuer: 404 Not Found";
    let failed = format!("Warning InvalidDiscoveryProbe: {note}");
    await_events(control_plane, &object, &[ready, &failed]).await?;
    set_issuer(&issuer.url()).await?;
    await_events(control_plane, &object, &[&ready.replace("Ready:", "Ready x2:"), &failed]).await?;

    let uid = created.metadata.uid.context("no UID")?;
    let mut listed = listed(&install.client, &uid).await?;
    listed.sort();
    let [event, failure] = listed.as_slice() else { anyhow::bail!("{listed:#?}") };
    let ready = ["Normal", "Ready", "the JWTAuthenticator is ready", "pinniped-concierge"];
    assert_eq!(event, &ready);
    assert_eq!(failure[..2], ["Warning", "InvalidDiscoveryProbe"]);
    assert!(failure[2].starts_with(note), "{failure:?}");
    assert_eq!(failure[3], "pinniped-concierge");
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_strategies_and_certificates_of_a_credential_issuer_have_events() -> anyhow::Result<()> {
    let proxy = json!({
        "mode": "enabled", "externalEndpoint": "proxy.example.com", "service": {"type": "None"},
    });
    let install = Install::new("issuerevents", proxy).await?;
    let control_plane = World::shared()?.control_plane();
    let pod = install.pod("pod-1");
    let object = format!("credentialissuers.config.concierge.{}/concierge-config", install.suffix);
    let secret = |name: &str| format!("{}/concierge-{name}", install.namespace);
    let created = |what: &str, name: &str| {
        format!("Normal CertificateCreated: created {what} in Secret {}, valid until 2", secret(name))
    };
    let serving = "the serving certificate of the aggregated API";
    let proxy_serving = "the serving certificate of the impersonation proxy";
    let api_serving = created(serving, "api-tls-serving-certificate");
    let mut expected = vec![
        api_serving.clone(),
        created("the CA of the impersonation proxy's client certificates", "signer"),
        created("the CA of the impersonation proxy's serving certificate", "ca"),
        created(proxy_serving, "tls"),
        "Normal StrategyReady: ImpersonationProxy: Listening: impersonation proxy is ready".to_owned(),
        "Warning StrategyFailed: KubeClusterSigningCertificate: CouldNotFetchKey: ".to_owned(),
    ];
    let all = async |expected: &[String]| {
        let found = wait::until_ok(PATIENCE, "the Events", async || {
            let found = described(control_plane, &object).await?;
            for prefix in expected {
                anyhow::ensure!(found.iter().any(|line| line.starts_with(prefix)), "no {prefix}: {found:#?}");
            }
            Ok(found)
        })
        .await?;
        anyhow::Ok(found)
    };
    all(&expected).await?;

    install.configure(json!({"mode": "disabled"})).await?;
    let deleted = format!(
        "Normal CertificateDeleted: deleted {proxy_serving} in Secret {}: the impersonation proxy is not wanted",
        secret("tls")
    );
    expected.extend([
        "Normal StrategyDisabled: ImpersonationProxy: Disabled: impersonation proxy was explicitly"
            .to_owned(),
        deleted,
    ]);
    all(&expected).await?;

    // A due certificate is replaced.
    let now = jiff::Timestamp::now();
    let validity = pinniped_pki::Validity::starting(
        now.checked_sub(jiff::SignedDuration::from_hours(48))?,
        std::time::Duration::from_secs(60),
    );
    let ca = pinniped_pki::CertificateAuthority::generate("old", &validity)?;
    let leaf = ca.issue_server(&["x".to_owned()], &[], &validity)?;
    let expired = json!({"data": {"tlsCertificateChain": STANDARD.encode(leaf.certificate_pem)}});
    let name = "concierge-api-tls-serving-certificate";
    install.secrets().patch(name, &PatchParams::default(), &Patch::Merge(&expired)).await?;
    let renewal = format!(
        "Normal CertificateRenewal: deleted {serving} in Secret {} for its renewal; it was valid until ",
        secret("api-tls-serving-certificate")
    );
    let found = all(&[renewal]).await?;
    let count = |found: &[String]| found.iter().filter(|line| line.starts_with(&api_serving)).count();
    if count(&found) < 2 {
        wait::until_ok(PATIENCE, "the Event of the replacement", async || {
            let found = described(control_plane, &object).await?;
            anyhow::ensure!(count(&found) == 2, "{found:#?}");
            Ok(())
        })
        .await?;
    }

    // A certificate that is not readable is never replaced.
    let garbage = json!({"data": {"tlsCertificateChain": STANDARD.encode("x")}});
    install.secrets().patch(name, &PatchParams::default(), &Patch::Merge(&garbage)).await?;
    all(&[format!(
        "Warning CertificateUnreadable: {serving} in Secret {} is not renewed: ",
        secret("api-tls-serving-certificate")
    )])
    .await?;
    pod.controllers.shutdown().await;
    Ok(())
}
