//! The proxy loses its permission to impersonate, its service account, or its signer while it
//! serves.
//!
//! These tests need the installation exclusively. The names of the file and of the tests sort last,
//! because they would otherwise wait for the long tests.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::wait;
use serde_json::json;

use super::whoami::UNAUTHORIZED;
use super::{Connection, Protocol, create_webhook_user, get, log_in, send_request, who_am_i};
use crate::installed::{self, PROXY_ACCOUNT, TIME_LIMIT};
use crate::shutdown;

#[tokio::test]
async fn without_its_own_permission_to_impersonate_the_proxy_returns_the_api_servers_refusal() {
    let Some(installed) = installed::alone("the proxy's own right is gone").await else { return };
    let user = "rights-of-proxy";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    installed.allow(user, rules).await;
    let pair = installed.certificate(user, None);
    let mut connection = Connection::open(&installed, Protocol::Http2, &pair.into()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    assert_eq!(connection.send_request(get(path)).await.status, 200);

    let name = "pinniped-concierge-impersonation-proxy";
    let bindings = Api::<ClusterRoleBinding>::all(installed.admin().await);
    let mut binding = bindings.get(name).await.unwrap();
    bindings.delete(name, &DeleteParams::default()).await.unwrap();
    let wanted = format!(
        "users \"{user}\" is forbidden: User \"{PROXY_ACCOUNT}\" cannot impersonate resource \"users\" in API group \
         \"\" at the cluster scope"
    );
    let refused = wait::until_ok(TIME_LIMIT, "the refusal of the API server", async || {
        let message = connection.send_request(get(path)).await;
        anyhow::ensure!(message.status == 403 && message.message().1 == wanted, "{message:?}");
        Ok(())
    });
    let refused = refused.await;

    // Restored before any assertion can fail, because other tests follow.
    binding.metadata.resource_version = None;
    binding.metadata.uid = None;
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    wait::until(TIME_LIMIT, "the right to be back", async || {
        (connection.send_request(get(path)).await.status == 200).then_some(())
    })
    .await
    .unwrap();
    refused.unwrap();
}

#[tokio::test]
async fn a_proxy_whose_service_account_is_deleted_is_not_ready_until_the_account_exists_again() {
    /// An idle pod is checked once a minute, and the API server caches a token.
    const DETECTION_LIMIT: Duration = Duration::from_secs(90);
    let Some(installed) = installed::alone("the proxy's service account is gone").await else { return };
    let user = "account-of-proxy";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    installed.allow(user, rules).await;
    let pair = installed.certificate(user, None);
    // Single checks are not open to every user, so this client has all permissions.
    let admin = installed.certificate("account-of-proxy-admin", Some("system:masters"));
    let path = "/api/v1/namespaces/default/configmaps";
    let addresses: Vec<_> = installed.running().into_iter().filter_map(|(_, pod)| pod.ip).collect();
    assert!(!addresses.is_empty());
    // For each pod: the proxy's response, and the readiness of the token and of the pod.
    let pods_answer = async |served: u16, ready: u16| {
        for ip in &addresses {
            let response = shutdown::get(*ip, 8444, path, Some(&pair)).await?;
            ensure!(response == served, "the proxy on {ip} responds with {response}");
            for check in ["/readyz/token", "/readyz"] {
                let response = shutdown::get(*ip, 10250, check, Some(&admin)).await?;
                ensure!(response == ready, "{check} on {ip} responds with {response}");
            }
        }
        Ok(())
    };
    wait::until_ok(TIME_LIMIT, "all pods to serve", async || pods_answer(200, 200).await).await.unwrap();

    let name = PROXY_ACCOUNT.rsplit(':').next().context("a name").unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(installed.admin().await, CONCIERGE);
    let mut account = accounts.get(name).await.unwrap();
    accounts.delete(name, &DeleteParams::default()).await.unwrap();
    let noticed =
        wait::until_ok(DETECTION_LIMIT, "all pods to be not ready", async || pods_answer(502, 500).await)
            .await;

    // Restored before any assertion can fail, because other tests follow.
    account.metadata.resource_version = None;
    account.metadata.uid = None;
    accounts.create(&PostParams::default(), &account).await.unwrap();
    wait::until_ok(DETECTION_LIMIT, "all pods to serve again", async || pods_answer(200, 200).await)
        .await
        .unwrap();
    noticed.unwrap();
}

#[tokio::test]
async fn a_new_signer_invalidates_old_credentials_at_the_next_request_and_new_logins_work() {
    let Some(installed) = installed::alone("a new signer").await else { return };
    let user = "rotation-signer";
    create_webhook_user(&installed, user, "g").await;
    let login = wait::until_ok(TIME_LIMIT, "the user to be known", async || log_in(&installed, user).await);
    let old = login.await.unwrap();
    let mut connection = Connection::open(&installed, Protocol::Http2, &old).await;
    assert_eq!(connection.send_request(who_am_i()).await.status, 201);

    let secrets = Api::<Secret>::namespaced(installed.admin().await, CONCIERGE);
    let name = "pinniped-concierge-impersonation-proxy-signer-ca-certificate";
    secrets.delete(name, &DeleteParams::default()).await.unwrap();
    let refused = wait::until(TIME_LIMIT, "the old credential to be refused", async || {
        let response = connection.send_request(who_am_i()).await;
        (response.status == 401).then_some(response.body)
    });
    assert_eq!(refused.await.unwrap(), UNAUTHORIZED);

    // Each of the two pods issues and accepts certificates; both must have loaded the new signer.
    wait::until_ok(TIME_LIMIT, "logins to work everywhere", async || {
        let new = log_in(&installed, user).await?;
        for _ in 0..4 {
            let response = send_request(&installed, &new, who_am_i()).await;
            anyhow::ensure!(response.status == 201, "{response:?}");
        }
        Ok(())
    })
    .await
    .unwrap();
    let certificate = installed.certificate("rotation-other", None).into();
    assert_eq!(send_request(&installed, &certificate, who_am_i()).await.status, 201, "of the cluster's CA");
}
