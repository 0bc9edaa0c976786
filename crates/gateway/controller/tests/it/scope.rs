//! The namespaces that the gateway watches.

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_routing::Settings;

use super::objects::{Namespace, issue, reason};
use super::replica::{Replica, params};
use super::{gateway, plane};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegated_secret_in_a_namespace_that_is_not_watched_appears_missing() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client().await?;
    let app = Namespace::new(&client, "scope-app").await?;
    let certs = Namespace::new(&client, "scope-certs").await?;
    let other = Namespace::new(&client, "scope-other").await?;
    certs.secret("w", &issue("scope.example")?).await?;
    certs.grant("w", &["*"]).await?;
    app.host("p", "scope.example", Some("scope-certs/w")).await?;
    other.host("p", "other.scope.example", None).await?;

    // The namespace is not watched: its grants are not read, and its objects are not served.
    let replica = Replica::start(params(gateway(plane, "scope-1").await?, &[&app.name]));
    replica.ready().await?;
    assert!(replica.table()?.certificate("scope.example").is_none());
    assert!(!replica.table()?.plain("other.scope.example"));
    assert_eq!(reason(&app.await_word("p", "invalid").await?), "DelegationNotPermitted");
    replica.end().await?;

    // With restricted root namespaces, a Secret in another namespace appears missing, and a root
    // there is refused.
    let with_roots = |roots: &[&str], client| {
        let mut params = params(client, &[&app.name, &certs.name, &other.name]);
        params.settings.root_namespaces = roots.iter().map(|&name| name.to_owned()).collect();
        params
    };
    let replica = Replica::start(with_roots(&["scope-app"], gateway(plane, "scope-2").await?));
    let message = "Spec.VirtualHost.TLS Secret \"scope-certs/w\" is invalid: Secret not found";
    let is_missing = |status: &serde_json::Value| status["conditions"][0]["errors"][0]["message"] == message;
    app.await_status(super::objects::PROXY, "p", "missing its Secret", is_missing).await?;
    assert_eq!(reason(&other.await_word("p", "invalid").await?), "RootProxyNotAllowedInNamespace");
    replica.end().await?;

    let replica = Replica::start(with_roots(&["scope-app", "scope-certs"], gateway(plane, "scope-3").await?));
    replica.await_table("the host", |table| table.certificate("scope.example").is_some()).await?;
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fallback_certificate_is_read_from_any_namespace() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client().await?;
    let app = Namespace::new(&client, "fallback-app").await?;
    let certs = Namespace::new(&client, "fallback-certs").await?;
    let (own, fallback) = (issue("fallback.example")?, issue("any.example")?);
    app.secret("own", &own).await?;
    certs.secret("fb", &fallback).await?;
    let tls = serde_json::json!({"secretName": "own", "enableFallbackCertificate": true});
    let virtualhost = serde_json::json!({"fqdn": "fallback.example", "tls": tls});
    let spec = serde_json::json!({"virtualhost": virtualhost, "routes": [super::objects::direct_response()]});
    app.put(super::objects::PROXY, "p", serde_json::json!({"spec": spec})).await?;
    let mut params = params(gateway(plane, "fallback").await?, &[&app.name]);
    let secret = SecretReference::parse("fallback-certs/fb", "");
    params.settings = Settings { fallback_certificate: Some(secret), ..Settings::default() };
    let replica = Replica::start(params);
    replica.ready().await?;
    assert_eq!(reason(&app.await_word("p", "invalid").await?), "FallbackNotDelegated");
    certs.grant("fb", &["fallback-app"]).await?;
    let served = |table: &super::replica::Table| {
        table.certificate("unknown.example").as_ref() == Some(&fallback.certificate_pem)
            && table.certificate("fallback.example").as_ref() == Some(&own.certificate_pem)
    };
    replica.await_table("the fallback certificate", served).await?;
    certs.delete(super::objects::GRANT, "grant").await?;
    replica
        .await_table("nothing for unknown names", |table| table.certificate("unknown.example").is_none())
        .await?;
    replica.end().await
}
