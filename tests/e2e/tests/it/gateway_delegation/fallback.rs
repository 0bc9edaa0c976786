//! Row D16: the certificate for clients that name no host, which somebody has to delegate like any other.

use serde_json::json;

use super::cluster::{self, CURRENT, grant, proxy};
use super::environment::{self, FALLBACK, down, up};

#[tokio::test]
async fn d16_the_fallback_certificate_is_served_for_hosts_that_ask_for_it_and_may() {
    let Some(place) = environment::with_fallback("d16").await else { return };
    let cluster = &place.cluster;
    let app = cluster.namespace("app").await;
    let (namespace, name) = FALLBACK;
    cluster.put(cluster::object("v1", "Namespace", "", namespace, json!({}))).await;
    let fallback = cluster.certificate(namespace, name, "fallback").await;
    cluster.certificate(&app, "w", "w").await;
    let host = cluster.host("h");
    let object = proxy(&app, "p", &host, json!({"secretName": "w", "enableFallbackCertificate": true}));
    cluster.put(object.clone()).await;
    let written = format!("{namespace}/{name}");
    let refused = format!(
        "TLSError FallbackNotDelegated: Spec.VirtualHost.TLS Secret \"{written}\" is not configured for certificate delegation"
    );
    cluster.await_verdict(&object, &refused).await;
    place.await_seen(&host, down()).await;

    let granted = grant(CURRENT, namespace, "grant", &[(name, &[&app])]);
    cluster.put(granted.clone()).await;
    place.await_seen(&host, up("w")).await;
    cluster.await_verdict(&object, "valid").await;
    // Another name in the handshake, then this host inside, and one that nobody has.
    let unknown = cluster.host("unknown");
    place.await_tls(&unknown, &host, None, "fallback 200").await;
    place.await_tls(&unknown, &unknown, None, "fallback 404").await;

    cluster.delete(&granted).await;
    place.await_seen(&host, down()).await;
    place.await_tls(&unknown, &host, None, "closed").await;
    cluster.await_verdict(&object, &refused).await;

    cluster.delete(&fallback).await;
    cluster.put(granted.clone()).await;
    let missing = format!(
        "TLSError FallbackNotValid: Spec.Virtualhost.TLS Secret \"{written}\" fallback certificate is invalid: Secret not \
         found"
    );
    cluster.await_verdict(&object, &missing).await;
    place.await_seen(&host, down()).await;
    cluster.delete(&object).await;
    cluster.delete(&granted).await;
}
