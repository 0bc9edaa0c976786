//! Unusual users, users with too much data, and a cluster that lacks prerequisites of the strategy.

use pinniped_test_support::{tools, wait};
use serde_json::json;

use super::environment::{Tokens, account_of, shared};
use crate::installed::TIME_LIMIT;

const TOKEN: &[&str] = &["ServiceAccountToken"];

#[tokio::test]
async fn unusual_names_are_impersonated_unchanged() {
    let Some(tokens) = shared().await else { return };
    let long = "n".repeat(300);
    for name in
        ["odd/with/slashes", "Odd With Spaces", "ödd-ピニー@example.com", &long, "odd:colon%2F\"quote\""]
    {
        let user = json!({"username": name, "groups": [format!("group of {name}")]});
        let login = tokens.log_in(&user).await;
        let me = tokens.who_am_i(&login).await;
        assert_eq!(me["username"], name);
        assert_eq!(me["groups"][0], format!("group of {name}"));
    }
    // Names that differ only by case are two users.
    let small = tokens.log_in(&json!({"username": "odd-case"})).await;
    let large = tokens.log_in(&json!({"username": "Odd-Case"})).await;
    assert_ne!(account_of(&small).0, account_of(&large).0);
    tokens.who_am_i(&small).await;
    let headers = [("Impersonate-User".to_owned(), "Odd-Case".to_owned())];
    let (code, message) = tokens.send_request(&small.token, &headers, "/api/v1/pods").await;
    assert_eq!(code, 403);
    assert!(message.as_str().unwrap().contains("cannot impersonate"), "{message}");
}

#[tokio::test]
async fn users_that_must_not_be_impersonated_get_no_token_and_the_audit_log_contains_the_reason() {
    let Some(tokens) = shared().await else { return };
    let many: Vec<String> = (0..2_000).map(|n| format!("department-{n:04}-r")).collect();
    for (user, why) in [
        (json!({"username": ""}), "empty username is not allowed"),
        (json!({"username": "system:anonymous"}), "is reserved for Kubernetes"),
        (json!({"username": "system:node:n"}), "is reserved for Kubernetes"),
        (json!({"username": "system:serviceaccount:a:b"}), "is reserved for Kubernetes"),
        (
            json!({"username": "bad-m", "groups": ["system:masters"]}),
            "group \"system:masters\" is not allowed",
        ),
        (json!({"username": "bad-g", "groups": [""]}), "group \"\" is not allowed"),
        (json!({"username": "bad-any", "groups": ["a", "*"]}), "it stands for every group"),
        (json!({"username": "bad-k", "extra": {"plain": ["v"]}}), "must be a domain-prefixed path"),
        (json!({"username": "bad-n\n"}), "cannot be a header's value"),
        (json!({"username": "bad-large", "groups": many}), "more than the limit of 65536 (2000 groups)"),
    ] {
        let line = tokens.refused(&user, TOKEN).await;
        assert_eq!(line["reason"], "unsupported value in userInfo returned by authenticator");
        assert!(line["err"].as_str().unwrap().contains(why), "{line}");
    }
}

#[tokio::test]
async fn missing_prerequisites_are_reported_with_their_remedy() {
    let Some(tokens) = Tokens::install("token-missing", 1, false).await else { return };
    let file = "install-pinniped-concierge-service-account-tokens.yaml";
    // The strategy reports nothing and requests nothing while its mode is disabled.
    assert_eq!(tokens.entry().await.unwrap(), None);
    tokens.configure(json!({"mode": "enabled"})).await;
    let missing = format!(
        "there is no ServiceAccount \"token-missing/token-missing-service-account-tokens\": apply {file}"
    );
    tokens.await_strategy("Error", "ErrorDuringSetup", &missing).await;
    let line = tokens.refused(&json!({"username": "missing"}), TOKEN).await;
    assert!(line["err"].as_str().unwrap().contains(&missing), "{line}");

    tokens.opt_in().await;
    tokens.await_strategy("Success", "Listening", "service account token exchange is ready").await;
    tokens.configure(json!({"mode": "enabled", "namespace": "default"})).await;
    let forbidden = format!("in namespace default: apply {file}");
    tokens.await_strategy("Error", "ErrorDuringSetup", &forbidden).await;
    tokens.enable(json!({})).await;
}

#[tokio::test]
async fn a_definition_without_the_strategy_disables_it_and_is_logged() {
    let Some(tokens) = Tokens::install("token-old-crd", 1, true).await else { return };
    // Our definition without the strategy in its enums, as in a mixture of our definitions and
    // upstream's.
    let file = tools::repository().join("deploy/crds/config.concierge.pinniped.dev_credentialissuers.yaml");
    let group = format!("concierge.{}", tokens.own.suffix);
    let ours = std::fs::read_to_string(file).unwrap().replace("concierge.pinniped.dev", &group);
    let value = |line: &&str| line.trim() != "- ServiceAccountToken";
    let older = ours.lines().filter(value).collect::<Vec<_>>().join("\n");
    assert_eq!(older.lines().count() + 2, ours.lines().count(), "frontend and strategy");
    let kubectl = tokens.own.world.kubectl();
    kubectl.apply(&older).await.unwrap();
    let entry = json!({"status": {"strategies": [{"type": "ServiceAccountToken", "status": "Error",
        "reason": "Pending", "message": "m", "lastUpdateTime": "2026-01-01T00:00:00Z"}]}});
    let (resource, name) = tokens.issuer();
    let served = wait::until_ok(TIME_LIMIT, "the definition to be served", async || {
        let args =
            ["patch", &resource, &name, "--subresource=status", "--type=merge", "--dry-run=server", "-p"];
        let output = kubectl.run(&[&args[..], &[&entry.to_string()]].concat()).await?;
        anyhow::ensure!(output.stderr.contains("Unsupported value"), "{}{}", output.stdout, output.stderr);
        Ok(())
    });
    served.await.unwrap();
    tokens.configure(json!({"mode": "enabled", "namespace": tokens.users()})).await;
    let wanted = "does not have a strategy, so it stays disabled";
    let printed = wait::until(TIME_LIMIT, "a log line", async || {
        tokens.own.pods.logs(tokens.own.app).contains(wanted).then_some(())
    });
    tokens.own.check(printed.await);
    assert_eq!(tokens.entry().await.unwrap(), None);
    let line = tokens.refused(&json!({"username": "old-definition"}), TOKEN).await;
    assert_eq!(line["err"], "service account tokens are not enabled");
    // The strategy works after the definition is replaced.
    kubectl.apply(&ours).await.unwrap();
    tokens.configure(json!({"mode": "enabled", "tokenLifetimeSeconds": 120})).await;
    tokens.await_strategy("Success", "Listening", "service account token exchange is ready").await;
}
