//! The names in an installation with another API group suffix. The tests of the APIs and of the
//! walk-through use the same installation, see `sites.rs`.

use http::Request;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::apis;
use crate::cli::Home;
use crate::installed::{self, TIME_LIMIT};
use crate::separate_concierge::SeparateConcierge;
use crate::service_account_tokens::webhook::{Webhook, token_of};
use crate::sites::{TUNA, tuna_concierge};

const APP: &str = TUNA.app;
const SUFFIX: &str = TUNA.suffix;

/// One test, because an installation takes seconds.
#[tokio::test]
async fn an_installation_with_another_api_group_suffix_works_in_all_parts() {
    let Some(installed) = installed::shared("another API group suffix").await else { return };
    let (own, _) = tuna_concierge(&installed).await;
    own.create_authenticator(&Webhook::start().unwrap()).await;
    names_have_the_suffix(own).await;
    only_requests_with_the_suffix_are_served(own).await;
    the_command_line_uses_the_suffix(own).await;
}

async fn names_have_the_suffix(own: &SeparateConcierge) {
    let listed = async |args: &[&str]| -> Vec<String> {
        let text = own.kubectl(args).await.unwrap();
        text.lines().filter(|name| name.ends_with(SUFFIX)).map(ToOwned::to_owned).collect()
    };
    let definitions = listed(&["get", "customresourcedefinitions", "-o", "name"]).await;
    assert_eq!(
        definitions,
        [
            "credentialissuers.config",
            "jwtauthenticators.authentication",
            "webhookauthenticators.authentication"
        ]
        .map(|name| format!("customresourcedefinition.apiextensions.k8s.io/{name}.concierge.{SUFFIX}"))
    );
    let services = listed(&["get", "apiservices", "-l", &format!("app={APP}"), "-o", "name"]).await;
    assert_eq!(
        services,
        ["identity", "login"]
            .map(|name| format!("apiservice.apiregistration.k8s.io/v1alpha1.{name}.concierge.{SUFFIX}"))
    );
    for (group, resource) in [("login", "tokencredentialrequests"), ("identity", "whoamirequests")] {
        let list: Value = serde_json::from_str(
            &own.kubectl(&["get", "--raw", &format!("/apis/{group}.concierge.{SUFFIX}/v1alpha1")])
                .await
                .unwrap(),
        )
        .unwrap();
        assert_eq!(list["groupVersion"], format!("{group}.concierge.{SUFFIX}/v1alpha1"));
        assert_eq!(list["resources"][0]["name"], resource);
    }
    let explained = ["explain", "--api-version", &format!("login.concierge.{SUFFIX}/v1alpha1")];
    let waited = wait::until_ok(TIME_LIMIT, "kubectl explain", async || {
        let text = own.kubectl(&[&explained[..], &["tokencredentialrequests.spec"]].concat()).await?;
        anyhow::ensure!(text.contains(&format!("login.concierge.{SUFFIX}")), "{text}");
        Ok(())
    });
    own.check(waited.await);
}

async fn only_requests_with_the_suffix_are_served(own: &SeparateConcierge) {
    let user = json!({"username": "tuna-pinny", "groups": ["sea"]});
    let waited = wait::until_ok(TIME_LIMIT, "a login", async || {
        let status = own.log_in(&user).await?;
        anyhow::ensure!(status["credential"]["clientCertificateData"].is_string(), "{status}");
        Ok(())
    });
    own.check(waited.await);
    // The audit event has the group of the default suffix, as upstream's.
    own.await_log(
        r#""authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator""#,
    )
    .await;

    let path = format!("/apis/login.concierge.{SUFFIX}/v1alpha1/tokencredentialrequests");
    let client = apis::anonymous(own.world).await;
    let request = |api_version: &str, group: &str| {
        json!({"apiVersion": api_version, "kind": "TokenCredentialRequest", "spec": {"token": token_of(&user),
            "authenticator": {"apiGroup": group, "kind": "WebhookAuthenticator", "name": "anybody"}}})
    };
    let ours = format!("login.concierge.{SUFFIX}/v1alpha1");
    let foreign_group = request(&ours, "authentication.concierge.pinniped.dev");
    let response = apis::post(&client, &path, &foreign_group).await.unwrap();
    assert_eq!(response["status"], json!({"message": "authentication failed"}));
    let foreign = "login.concierge.pinniped.dev/v1alpha1";
    let foreign_version = request(foreign, &format!("authentication.concierge.{SUFFIX}"));
    let error = apis::post(&client, &path, &foreign_version).await.unwrap_err().to_string();
    let registered = format!("no kind \"TokenCredentialRequest\" is registered for version \"{foreign}\"");
    assert!(error.contains(&registered), "{error}");
    let watch = Request::get(format!("{path}?watch=true")).body(Vec::new()).unwrap();
    let error = own.world.client().await.unwrap().request::<Value>(watch).await.unwrap_err().to_string();
    assert!(error.contains(&format!("tokencredentialrequests.login.concierge.{SUFFIX}")), "{error}");
}

async fn the_command_line_uses_the_suffix(own: &SeparateConcierge) {
    let (home, world) = (Home::new(), own.world);
    let token = token_of(&json!({"username": "tuna-kubectl", "groups": ["sea"]}));
    let args = [
        "--concierge-api-group-suffix",
        SUFFIX,
        "--concierge-mode",
        "ImpersonationProxy",
        "--concierge-authenticator-type",
        "webhook",
        "--concierge-authenticator-name",
        "anybody",
        "--static-token",
        &token,
    ];
    let written = home.get_kubeconfig(world, &args).await;
    assert!(written.stdout.contains(&format!("--concierge-api-group-suffix={SUFFIX}")), "{}", written.stdout);

    let output = home.kubectl(world, &["auth", "whoami", "-o", "json"], &[]).await.success().unwrap();
    let me: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(me["status"]["userInfo"]["username"], "tuna-kubectl");
    let refused = home.kubectl(world, &["get", "secrets"], &[]).await;
    assert!(refused.stderr.contains(pinniped_e2e::walkthrough::DECISION), "{}", refused.stderr);

    let output = home.pinniped_with(&home.kubeconfig(), &["whoami", "--api-group-suffix", SUFFIX]).await;
    let output = output.success().unwrap();
    let user = "Current user info:\n\nUsername: tuna-kubectl\nGroups: sea, system:authenticated\n";
    assert!(output.stdout.ends_with(user), "{}", output.stdout);
    let doctor = ["doctor", "--concierge-api-group-suffix", SUFFIX];
    let output = home.pinniped_with(&world.admin_kubeconfig(), &doctor).await;
    assert!(output.stdout.contains("strategy ImpersonationProxy works: "), "{output:?}");
}
