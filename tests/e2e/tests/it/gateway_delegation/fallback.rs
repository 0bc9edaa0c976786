//! Row D16: the fallback certificate for clients without a known host, which needs a delegation
//! like any other certificate.

use serde_json::json;

use super::cluster::{self, CURRENT, grant, proxy};
use super::environment::{self, FALLBACK, down, up};

#[tokio::test]
async fn d16_the_fallback_certificate_is_served_for_hosts_that_enable_it_with_a_grant() {
    let Some(environment) = environment::with_fallback("d16").await else { return };
    let cluster = &environment.cluster;
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
    cluster.await_validation(&object, &refused).await;
    environment.await_seen(&host, down()).await;

    let granted = grant(CURRENT, namespace, "grant", &[(name, &[&app])]);
    cluster.put(granted.clone()).await;
    environment.await_seen(&host, up("w")).await;
    cluster.await_validation(&object, "valid").await;
    // Another name in the handshake than in the request, and an unknown name.
    let unknown = cluster.host("unknown");
    environment.await_tls(&unknown, &host, None, "fallback 200").await;
    environment.await_tls(&unknown, &unknown, None, "fallback 404").await;

    cluster.delete(&granted).await;
    environment.await_seen(&host, down()).await;
    environment.await_tls(&unknown, &host, None, "closed").await;
    cluster.await_validation(&object, &refused).await;

    cluster.delete(&fallback).await;
    cluster.put(granted.clone()).await;
    let missing = format!(
        "TLSError FallbackNotValid: Spec.Virtualhost.TLS Secret \"{written}\" fallback certificate is invalid: Secret not \
         found"
    );
    cluster.await_validation(&object, &missing).await;
    environment.await_seen(&host, down()).await;
    cluster.delete(&object).await;
    cluster.delete(&granted).await;
}
