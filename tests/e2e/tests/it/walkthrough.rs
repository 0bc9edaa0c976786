//! The walk-through of the release post, and its failures.

use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{DECISION, Names, Walk, strategy};
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::installed::{self, Walked};
use crate::sites::{self, Site};

/// One test, because each step depends on the previous one, as in the post.
#[tokio::test]
async fn a_person_logs_in_through_the_impersonation_proxy() {
    let Some(installed) = installed::shared("a person logs in through the impersonation proxy").await else {
        return;
    };
    let walk = Walk::new(installed.world(), Narrator::Silent, std::time::Instant::now()).unwrap();
    scenario(installed.world(), &installed.walked, &walk).await.unwrap();
}

#[tokio::test]
async fn a_person_logs_in_with_another_api_group_suffix() {
    let Some(installed) = installed::shared("a person logs in with another suffix").await else { return };
    let Site { world, walked, .. } = sites::tuna(&installed).await;
    let walk = sites::tuna_walk(world).unwrap();
    scenario(world, walked, &walk).await.unwrap();
}

async fn scenario(world: &World, walked: &Walked, walk: &Walk<'_>) -> anyhow::Result<()> {
    let Names { user, group, external_name, .. } = walked.names;
    let endpoint = format!("https://{external_name}");
    let key = strategy(&walked.issuer_at_first, "KubeClusterSigningCertificate");
    assert_eq!((&key["status"], &key["reason"]), (&json!("Error"), &json!("CouldNotFetchKey")));
    let proxy = strategy(&walked.issuer_at_first, "ImpersonationProxy");
    assert_eq!((&proxy["status"], &proxy["reason"]), (&json!("Error"), &json!("Disabled")));
    assert_eq!(proxy["message"], "automatically determined that impersonation proxy should be disabled");
    let secrets = &walked.secrets_at_first;
    assert!(!secrets.contains("impersonation-proxy-ca-certificate"), "{secrets}");
    assert!(!secrets.contains("impersonation-proxy-tls-serving-certificate"), "{secrets}");

    assert_authenticator_is_ready(world, walked.names).await?;
    let proxy = strategy(&walked.issuer, "ImpersonationProxy");
    assert_eq!((&proxy["status"], &proxy["reason"]), (&json!("Success"), &json!("Listening")));
    assert_eq!(proxy["message"], "impersonation proxy is ready to accept client connections");
    assert_eq!(proxy["frontend"]["type"], "ImpersonationProxy");
    assert_eq!(proxy["frontend"]["impersonationProxyInfo"]["endpoint"], endpoint);
    assert_cluster_ip_service(world, walked.names).await?;

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
            "Error from server (Forbidden): pods is forbidden: User \"{user}\" cannot list resource \"pods\" in API \
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
    assert_audit(world, walked.names).await?;

    let whoami = walk.whoami().await?;
    assert_eq!(
        whoami.stdout,
        format!(
            "Current cluster info:\n\nName: pinniped-test-pinniped\nURL: {endpoint}\n\nCurrent user info:\n\n\
             Username: {user}\nGroups: {group}, system:authenticated\n"
        )
    );
    wrong_password(world, walk, user).await?;
    Ok(())
}

async fn assert_authenticator_is_ready(world: &World, names: Names) -> anyhow::Result<()> {
    let resource = format!("webhookauthenticators.{}", names.group_of("authentication"));
    let args = ["get", &resource, "local-user-authenticator", "-o", "json"];
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

async fn assert_cluster_ip_service(world: &World, names: Names) -> anyhow::Result<()> {
    let name = names.object("impersonation-proxy-cluster-ip");
    let args = ["get", "service", "-n", names.app, &name, "-o", "json"];
    let service: Value = serde_json::from_str(&world.kubectl().output(&args).await?)?;
    let port = &service["spec"]["ports"][0];
    assert_eq!((&port["port"], &port["targetPort"]), (&json!(443), &json!(8444)));
    assert_eq!(service["spec"]["selector"], json!({"app": names.app}));
    assert!(service["metadata"]["annotations"]["credentialissuer.pinniped.dev/annotation-keys"].is_string());
    assert!(service["metadata"]["annotations"]["credentialissuer.pinniped.dev/label-keys"].is_string());
    Ok(())
}

/// Checks the audit events of the user's listing: the proxy's account impersonates the user, and
/// there is no other request. The groups distinguish the user from the one of the same name at an
/// identity provider, as whom other tests log in.
async fn assert_audit(world: &World, names: Names) -> anyhow::Result<()> {
    let Names { app, user, group, .. } = names;
    let listing = |event: &Value| {
        event["verb"] == "list"
            && event["objectRef"]["resource"] == "pods"
            && event["impersonatedUser"]["username"] == user
            && event["impersonatedUser"]["groups"] == json!([group, "system:authenticated"])
            && event["responseStatus"]["code"] == 200
    };
    let event = world.control_plane().await_audit_event("the user's listing", group, listing).await?;
    let account = format!("system:serviceaccount:{app}:{}", names.object("impersonation-proxy"));
    assert_eq!(event["user"]["username"], account);
    assert_eq!(event["sourceIPs"].as_array().map(Vec::len), Some(1), "a forwarded address was passed on");
    Ok(())
}

async fn wrong_password(world: &World, walk: &Walk<'_>, user: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(walk.user_kubeconfig())?
        .replace(&format!("{user}:password123"), &format!("{user}:wrong"));
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
