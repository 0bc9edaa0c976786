//! Renewal of the proxy's serving certificate while the proxy serves.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::wait;
use serde_json::json;

use super::{Connection, Lines, Protocol, get, tls};
use crate::installed::{self, Installed, TIME_LIMIT};

/// Returns the certificate that the proxy presents.
async fn shown(installed: &Installed) -> Vec<u8> {
    let stream = tls(installed, &[b"h2"], None).await;
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn a_new_serving_certificate_is_used_for_new_connections_and_open_ones_continue() {
    let Some(installed) = installed::shared("a new serving certificate").await else { return };
    let user = "rotation-serving";
    installed.namespace(user).await;
    installed.allow(user, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}])).await;
    let pair = installed.certificate(user, None).into();
    let mut before = Connection::open(&installed, Protocol::Http2, &pair).await;
    let path = format!("/api/v1/namespaces/{user}/configmaps");
    let watch = format!("{path}?watch=true&resourceVersion=0&fieldSelector=metadata.name%3Dlater");
    let mut events = Lines::of(before.send(get(&watch)).await);
    let old = shown(&installed).await;

    let secrets = Api::<Secret>::namespaced(installed.admin().await, CONCIERGE);
    let name = "pinniped-concierge-impersonation-proxy-tls-serving-certificate";
    secrets.delete(name, &DeleteParams::default()).await.unwrap();
    // Two pods serve, and each loads the certificate independently: several handshakes in a row
    // must present the new one. A failed handshake panics in `shown`.
    let new = wait::until(TIME_LIMIT, "a new serving certificate", async || {
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(shown(&installed).await);
        }
        seen.iter().all(|leaf| *leaf != old && *leaf == seen[0]).then(|| seen.remove(0))
    });
    assert_ne!(new.await.unwrap(), old);

    // The CA stays the same, so a client with verification still connects.
    let client = installed.client(&pair).await;
    let maps = Api::<ConfigMap>::namespaced(client, user);
    let map = serde_json::from_value(json!({"metadata": {"name": "later"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    assert_eq!(events.next().await["object"]["metadata"]["name"], "later", "the old watch continues");
    assert_eq!(before.send_request(get(&path)).await.status, 200, "and the old connection");
}
