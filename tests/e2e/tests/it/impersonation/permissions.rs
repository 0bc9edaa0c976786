//! Permissions that change while the proxy runs.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::DeleteParams;
use pinniped_e2e::walkthrough::DECISION;
use pinniped_test_support::wait;
use serde_json::json;

use super::{Connection, Protocol, get};
use crate::installed;

/// Decisions are cached for 10 s.
const CACHED: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_granted_or_revoked_permission_takes_effect_within_the_ten_seconds_of_the_caches() {
    let Some(installed) = installed::shared("changed rights").await else { return };
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    installed.allow("rights-taken", rules.clone()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let connect = async |user: &str| {
        let pair = installed.certificate(user, None);
        Connection::open(&installed, Protocol::Http2, &pair.into()).await
    };
    let mut taken = connect("rights-taken").await;
    let mut given = connect("rights-given").await;
    assert_eq!(taken.send_request(get(path)).await.status, 200);
    let refused = |user: &str| {
        let text = "cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\"";
        (403, format!("configmaps is forbidden: User \"{user}\" {text}: {DECISION}"))
    };
    assert_eq!(given.send_request(get(path)).await.message(), refused("rights-given"));

    installed.allow("rights-given", rules).await;
    let bindings = Api::<ClusterRoleBinding>::all(installed.admin().await);
    let removed = bindings.delete("it-rights-taken-it-it-rights-taken", &DeleteParams::default()).await;
    removed.unwrap();

    let becomes_given = wait::until(CACHED, "the given right to count", async || {
        (given.send_request(get(path)).await.status == 200).then_some(())
    });
    // The proxy and the API server decide a moment apart, so at first the refusal may lack the
    // proxy's text.
    let becomes_taken = wait::until(CACHED, "the taken right to count", async || {
        let response = taken.send_request(get(path)).await;
        (response.status == 403 && response.message() == refused("rights-taken")).then_some(())
    });
    let (given, taken) = tokio::join!(becomes_given, becomes_taken);
    given.unwrap();
    taken.unwrap();
}
