//! Rows D13 to D15: TCP proxying inside TLS, CA bundles of backends, and CA bundles of clients.

use pinniped_test_support::certs::Authority;
use serde_json::json;

use super::cluster::{CURRENT, grant, proxy, proxy_of, secret};
use super::environment::{self, down, ports};
use super::grants::refused;
use super::services::BACKEND_NAME;

#[tokio::test]
async fn d13_tcp_proxying_with_a_delegated_certificate_needs_the_grant_too() {
    let Some(environment) = environment::shared("d13").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    let (host, written) = (cluster.host("h"), format!("{certs}/w"));
    cluster.certificate(&certs, "w", "w").await;
    let object = proxy_of(
        &app,
        "p",
        json!({
            "virtualhost": {"fqdn": host, "tls": {"secretName": written}},
            "tcpproxy": {"services": [{"name": "web", "port": 80}]},
        }),
    );
    cluster.put(object.clone()).await;
    cluster.await_validation(&object, &refused(&written)).await;
    environment.await_seen(&host, down()).await;
    cluster.put(grant(CURRENT, &certs, "grant", &[("w", &[&app])])).await;
    // Port 80 is for HTTP requests, and this host has no routes for them.
    environment.await_seen(&host, ports("w 200", "404")).await;
    cluster.await_validation(&object, "valid").await;
}

#[tokio::test]
async fn d14_the_ca_of_a_backend_is_granted_to_the_namespace_of_the_reference() {
    let Some(environment) = environment::shared("d14").await else { return };
    let cluster = &environment.cluster;
    let (app, child) = (cluster.namespace("app").await, cluster.namespace("z").await);
    cluster.put(secret(&app, "ca", &json!({"ca.crt": environment::backend().ca}))).await;
    cluster
        .service(&child, "secure", environment::backend().tls.port(), json!({"appProtocol": "https"}))
        .await;
    let host = cluster.host("h");
    let root = proxy_of(
        &app,
        "root",
        json!({
            "virtualhost": {"fqdn": host},
            "includes": [{"name": "child", "namespace": child}],
        }),
    );
    let included = proxy_of(
        &child,
        "child",
        json!({"routes": [{"services": [{
            "name": "secure", "port": 80,
            "validation": {"caSecret": format!("{app}/ca"), "subjectName": BACKEND_NAME},
        }]}]}),
    );
    cluster.put(included.clone()).await;
    cluster.put(root.clone()).await;
    let wanted = format!(
        "TLSError CACertificateNotDelegated: service.UpstreamValidation.CACertificate Secret \"{app}/ca\" is not configured \
         for certificate delegation"
    );
    cluster.await_validation(&included, &wanted).await;
    cluster.await_validation(&root, "valid").await;
    environment.await_seen(&host, down()).await;
    // The root proxy has the Secret in its own namespace, but the namespace of the included proxy
    // counts.
    let granted = grant(CURRENT, &app, "grant", &[("ca", &[&child])]);
    cluster.put(granted.clone()).await;
    environment.await_seen(&host, ports("closed", "200")).await;
    cluster.await_validation(&included, "valid").await;
    cluster.delete(&granted).await;
    environment.await_seen(&host, down()).await;
}

#[tokio::test]
async fn d15_the_ca_of_clients_needs_a_grant_and_then_verifies_clients() {
    let Some(environment) = environment::shared("d15").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    cluster.certificate(&app, "w", "w").await;
    let clients = Authority::new("clients").unwrap();
    let host = cluster.host("h");
    let with = |validation: serde_json::Value| {
        proxy(&app, "p", &host, json!({"secretName": "w", "clientValidation": validation}))
    };
    let object = with(json!({"caSecret": format!("{certs}/ca")}));
    cluster.put(object.clone()).await;
    let not_permitted = |kind: &str, name: &str| {
        format!(
            "TLSError DelegationNotPermitted: Spec.VirtualHost.TLS {kind} Secret \"{certs}/{name}\" is invalid: certificate \
             delegation not permitted"
        )
    };
    let missing = |kind: &str, name: &str| {
        format!(
            "TLSError ClientValidationInvalid: Spec.VirtualHost.TLS client validation is invalid: invalid {kind} Secret \
             \"{certs}/{name}\": Secret not found"
        )
    };
    cluster.await_validation(&object, &not_permitted("CA", "ca")).await;
    environment.await_seen(&host, down()).await;
    let granted = grant(CURRENT, &certs, "grant", &[("ca", &[&app]), ("crl", &[&app])]);
    cluster.put(granted.clone()).await;
    cluster.await_validation(&object, &missing("CA", "ca")).await;
    environment.await_seen(&host, down()).await;

    cluster.put(secret(&certs, "ca", &json!({"ca.crt": clients.certificate_pem}))).await;
    let known = clients.client("known", None).unwrap();
    let stranger = Authority::new("clients").unwrap().client("known", None).unwrap();
    environment.await_tls(&host, &host, Some(&known), "w 200").await;
    cluster.await_validation(&object, "valid").await;
    for client in [None, Some(&stranger)] {
        // With TLS 1.3 a client learns of its rejection after the handshake.
        environment.await_tls(&host, &host, client, "w closed").await;
    }

    // Revocation lists are delegated like other Secrets, and the host is not served without them.
    let listed = with(json!({"caSecret": format!("{certs}/ca"), "crlSecret": format!("{certs}/crl")}));
    cluster.put(listed.clone()).await;
    cluster.await_validation(&listed, &missing("CRL", "crl")).await;
    environment.await_seen(&host, down()).await;
    cluster.put(grant(CURRENT, &certs, "grant", &[("ca", &[&app])])).await;
    cluster.await_validation(&listed, &not_permitted("CRL", "crl")).await;

    cluster.put(object.clone()).await;
    environment.await_tls(&host, &host, Some(&known), "w 200").await;
    cluster.delete(&granted).await;
    environment.await_seen(&host, down()).await;
    cluster.await_validation(&object, &not_permitted("CA", "ca")).await;
}
