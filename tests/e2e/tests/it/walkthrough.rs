//! The walk-through of the release post, and its failures.

use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, DECISION, Walk, strategy};
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::installed::{self, Installed, PROXY_ACCOUNT};

const ENDPOINT: &str = "https://impersonation-proxy-mtls.local";

/// One test, because each step depends on the previous one, as in the post.
#[tokio::test]
async fn a_person_logs_in_through_the_impersonation_proxy() {
    let Some(installed) = installed::shared("a person logs in through the impersonation proxy").await else {
        return;
    };
    let walk = Walk::new(installed.world(), Narrator::Silent, std::time::Instant::now()).unwrap();
    scenario(&installed, &walk).await.unwrap();
}

async fn scenario(installed: &Installed, walk: &Walk<'_>) -> anyhow::Result<()> {
    let world = installed.world();
    let key = strategy(&installed.issuer_at_first, "KubeClusterSigningCertificate");
    assert_eq!((&key["status"], &key["reason"]), (&json!("Error"), &json!("CouldNotFetchKey")));
    let proxy = strategy(&installed.issuer_at_first, "ImpersonationProxy");
    assert_eq!((&proxy["status"], &proxy["reason"]), (&json!("Error"), &json!("Disabled")));
    assert_eq!(proxy["message"], "automatically determined that impersonation proxy should be disabled");
    let secrets = &installed.secrets_at_first;
    assert!(!secrets.contains("impersonation-proxy-ca-certificate"), "{secrets}");
    assert!(!secrets.contains("impersonation-proxy-tls-serving-certificate"), "{secrets}");

    assert_authenticator_is_ready(world).await?;
    let proxy = strategy(&installed.issuer, "ImpersonationProxy");
    assert_eq!((&proxy["status"], &proxy["reason"]), (&json!("Success"), &json!("Listening")));
    assert_eq!(proxy["message"], "impersonation proxy is ready to accept client connections");
    assert_eq!(proxy["frontend"]["type"], "ImpersonationProxy");
    assert_eq!(proxy["frontend"]["impersonationProxyInfo"]["endpoint"], ENDPOINT);
    assert_cluster_ip_service(world).await?;

    let written = walk.kubeconfig().await?;
    let logged = [
        "discovered CredentialIssuer",
        "discovered Concierge endpoint",
        "discovered Concierge certificate authority bundle",
        "validated connection to the cluster",
    ];
    let found: Vec<_> = logged.iter().map(|text| written.stderr.find(text)).collect();
    assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{}", written.stderr);

    let refused = walk.refused().await?;
    assert_eq!(
        refused.stderr,
        format!(
            "Error from server (Forbidden): pods is forbidden: User \"pinny\" cannot list resource \"pods\" in API \
             group \"\" at the cluster scope: {DECISION}\n"
        )
    );

    let listed = walk.allow_and_list().await?;
    for name in ["frontend", "backend"] {
        assert!(
            listed.stdout.lines().any(|l| l.starts_with("some-app ") && l.contains(name)),
            "{}",
            listed.stdout
        );
    }
    assert_audit(world).await?;

    let whoami = walk.whoami().await?;
    assert_eq!(
        whoami.stdout,
        format!(
            "Current cluster info:\n\nName: pinniped-test-pinniped\nURL: {ENDPOINT}\n\nCurrent user info:\n\n\
             Username: pinny\nGroups: group-for-mtls, system:authenticated\n"
        )
    );
    wrong_password(world, walk).await?;
    Ok(())
}

async fn assert_authenticator_is_ready(world: &World) -> anyhow::Result<()> {
    let args = [
        "get",
        "webhookauthenticators.authentication.concierge.pinniped.dev",
        "local-user-authenticator",
        "-o",
        "json",
    ];
    let object: Value = serde_json::from_str(&world.kubectl().output(&args).await?)?;
    let condition = |kind: &str| {
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == kind).map(|c| (c["status"].clone(), c["message"].clone()))
    };
    assert_eq!(condition("Ready"), Some((json!("True"), json!("the WebhookAuthenticator is ready"))));
    let connected = (json!("True"), json!("successfully dialed webhook server"));
    assert_eq!(condition("WebhookConnectionValid"), Some(connected));
    Ok(())
}

async fn assert_cluster_ip_service(world: &World) -> anyhow::Result<()> {
    let name = "pinniped-concierge-impersonation-proxy-cluster-ip";
    let args = ["get", "service", "-n", CONCIERGE, name, "-o", "json"];
    let service: Value = serde_json::from_str(&world.kubectl().output(&args).await?)?;
    let port = &service["spec"]["ports"][0];
    assert_eq!((&port["port"], &port["targetPort"]), (&json!(443), &json!(8444)));
    assert_eq!(service["spec"]["selector"], json!({"app": "pinniped-concierge"}));
    assert!(service["metadata"]["annotations"]["credentialissuer.pinniped.dev/annotation-keys"].is_string());
    assert!(service["metadata"]["annotations"]["credentialissuer.pinniped.dev/label-keys"].is_string());
    Ok(())
}

/// Checks the audit events of the user's listing: the proxy's account impersonates the user, and
/// there is no other request. The groups distinguish the user from the one of the same name at an
/// identity provider, as whom other tests log in.
async fn assert_audit(world: &World) -> anyhow::Result<()> {
    let listing = |event: &Value| {
        event["verb"] == "list"
            && event["objectRef"]["resource"] == "pods"
            && event["impersonatedUser"]["username"] == "pinny"
            && event["impersonatedUser"]["groups"] == json!(["group-for-mtls", "system:authenticated"])
            && event["responseStatus"]["code"] == 200
    };
    let event =
        world.control_plane().await_audit_event("the user's listing", "group-for-mtls", listing).await?;
    assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
    assert_eq!(event["sourceIPs"].as_array().map(Vec::len), Some(1), "a forwarded address was passed on");
    Ok(())
}

async fn wrong_password(world: &World, walk: &Walk<'_>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(walk.user_kubeconfig())?.replace("pinny:password123", "pinny:wrong");
    let file = walk.home().join("wrong-password.yaml");
    std::fs::write(&file, text)?;
    let mut command = world.kubectl().with_kubeconfig(&file).command(&["get", "pods", "-A"]);
    command.env("HOME", walk.home());
    let CommandOutput { code, stderr, .. } = run(command, None).await?;
    assert_ne!(code, 0);
    let wanted =
        "Error: could not complete Concierge credential exchange: login failed: authentication failed";
    assert!(stderr.contains(wanted), "{stderr}");
    assert!(stderr.contains("getting credentials: exec: executable"), "{stderr}");
    Ok(())
}
