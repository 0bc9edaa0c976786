//! Garbage collection: unused identities, expired tokens, and all objects when the strategy is
//! disabled.

use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::identity_digest::IdentityDigest;
use pinniped_concierge_domain::service_account_tokens::{Form, Maker};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::environment::{SELF_REVIEW, Tokens, account_of};
use crate::installed::TIME_LIMIT;

/// Time without progress after which the collector counts as stopped. An identity is removed at the
/// earliest a minute after its last use.
const STALLED: Duration = Duration::from_secs(180);

/// Kinds of long-lived objects.
const KINDS: [&str; 3] = ["serviceaccounts", "clusterroles", "clusterrolebindings"];

async fn left(tokens: &Tokens) -> usize {
    let mut left = tokens.count("secrets", None).await;
    for kind in KINDS {
        left += tokens.count(kind, None).await;
    }
    left
}

#[tokio::test]
async fn disabling_removes_everything_and_tokens_stop_working() {
    let Some(tokens) = Tokens::install("token-off", 2, true).await else { return };
    assert_eq!(tokens.entry().await.unwrap(), None, "off means off");
    tokens.enable(json!({})).await;
    let login = tokens.log_in(&json!({"username": "collection-off"})).await;
    tokens.who_am_i(&login).await;
    tokens.configure(json!({"mode": "disabled"})).await;
    tokens.await_strategy("Error", "Disabled", "disabled by configuration").await;
    let gone = wait::until_ok(STALLED, "the entry to go", async || {
        let entry = tokens.entry().await?;
        anyhow::ensure!(entry.is_none(), "{entry:?}");
        Ok(())
    });
    tokens.own.check(gone.await);
    assert_eq!(left(&tokens).await, 0);
    let revoked = wait::until_ok(TIME_LIMIT, "the token to stop working", async || {
        let (code, response) = tokens.send_request(&login.token, &login.headers(), SELF_REVIEW).await;
        anyhow::ensure!(code == 401, "{code} {response}");
        Ok(())
    });
    tokens.own.check(revoked.await);
    let user = json!({"username": "collection-off"});
    let line = tokens.refused(&user, &["ServiceAccountToken"]).await;
    assert_eq!(line["err"], "service account tokens are not enabled");
    let status = tokens.try_log_in(&user, &["ServiceAccountToken", "ClientCertificate"]).await.unwrap();
    assert!(status["credential"]["clientCertificateData"].is_string(), "{status}");
}

#[tokio::test]
async fn a_thousand_unused_identities_are_removed_at_a_limited_rate() {
    const USERS: usize = 1_000;
    let Some(tokens) = Tokens::install("token-idle", 2, true).await else { return };
    let settings = json!({"idleTimeoutSeconds": 60, "tokenLifetimeSeconds": 60});
    tokens.enable(settings).await;
    let used = tokens.log_in(&json!({"username": "collection-used"})).await;
    let (used_name, _) = account_of(&used);

    // Creates the objects that a thousand logins would have left long ago.
    let maker = Maker {
        namespace: tokens.users(),
        labels: [("app".to_owned(), tokens.own.app.to_owned())].into(),
        form: Form::Plain,
        name_users: false,
    };
    let client = tokens.own.world.client().await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &maker.namespace);
    let (roles, bindings) = (Api::<ClusterRole>::all(client.clone()), Api::<ClusterRoleBinding>::all(client));
    let long_ago: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let params = PostParams::default();
    futures::stream::iter(0..USERS)
        .for_each_concurrent(30, |number| {
            let user = ImpersonatedUser { username: format!("idle-{number}"), ..ImpersonatedUser::default() };
            let (maker, accounts, roles, bindings, params) = (&maker, &accounts, &roles, &bindings, &params);
            async move {
                let digest = IdentityDigest::of(&user);
                // The account first: an identity without one is an orphan, and is collected sooner.
                accounts.create(params, &maker.service_account(&digest, &user, long_ago)).await.unwrap();
                let role = roles.create(params, &maker.cluster_role(&digest, &user)).await.unwrap();
                let binding = maker.cluster_role_binding(&digest, &role.metadata.uid.unwrap());
                // The collector may have removed the account already; then there is nothing to
                // bind.
                drop(bindings.create(params, &binding).await);
            }
        })
        .await;
    // The identities in use, and those of checks of the strategy, stay.
    let mut remaining = USERS;
    while remaining > 2 {
        let fewer = wait::until_ok(STALLED, format!("fewer than {remaining} identities"), async || {
            let now = tokens.count("serviceaccounts", None).await;
            anyhow::ensure!(now < remaining, "{now} are left");
            Ok(now)
        });
        remaining = match fewer.await {
            Ok(now) => now,
            Err(error) => panic!("{}\n{error:#}", tokens.own.pods.log_tails(tokens.own.app, 30)),
        };
    }

    // From the API server's own audit log: the number of delete requests in any second.
    let app = tokens.own.app;
    let ours = format!("system:serviceaccount:{app}:{app}");
    let events = tokens.own.world.control_plane().audit_events(&ours).unwrap();
    let mut times: Vec<Timestamp> = events
        .iter()
        .filter(|event| event["user"]["username"].as_str().is_some_and(|user| user.starts_with(&ours)))
        .filter(|event| event["stage"] == "ResponseComplete" && is_collection(event))
        .map(|event| event["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap())
        .collect();
    times.sort();
    assert!(times.len() >= 3 * USERS, "{} requests", times.len());
    let most = times
        .iter()
        .enumerate()
        .map(|(at, begin)| {
            times[at..].iter().take_while(|time| time.duration_since(*begin).as_secs() < 1).count()
        })
        .max();
    println!("{} requests of the collector, at most {most:?} in a second", times.len());
    assert!(most <= Some(20), "{most:?} requests in a second");

    // A recently used identity exists until it is no longer used.
    let gone = wait::until_ok(STALLED, "the last identity to go", async || {
        let left = tokens.count("serviceaccounts", Some(&used_name)).await;
        anyhow::ensure!(left == 0, "{used_name} is there");
        Ok(())
    });
    tokens.own.check(gone.await);
    assert_eq!(tokens.count("secrets", Some(&used_name)).await, 0, "its Secret went before it");
}

/// Whether a request is one of the collector's requests for identities.
fn is_collection(event: &Value) -> bool {
    let object = &event["objectRef"];
    let verb = event["verb"].as_str().unwrap_or_default();
    let ours = object["name"].as_str().is_some_and(|name| name.starts_with("pinniped-user-"));
    ours && (verb == "delete" || verb == "get" && object["resource"] == "serviceaccounts")
}
