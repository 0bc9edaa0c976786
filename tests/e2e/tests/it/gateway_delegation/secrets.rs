//! Rows D7 to D10: a Secret that is created, changed and deleted, and the information about it that
//! is visible without a grant.

use pinniped_test_support::certs::Pair;
use serde_json::json;

use super::cluster::{CURRENT, grant, proxy, secret, serving};
use super::environment::{self, down, up};
use super::grants::refused;

fn invalid(written: &str, why: &str) -> String {
    format!("TLSError SecretNotValid: Spec.VirtualHost.TLS Secret \"{written}\" is invalid: {why}")
}

#[tokio::test]
async fn d7_d8_a_missing_secret_is_reported_only_where_its_use_is_granted() {
    let Some(environment) = environment::shared("d7").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    // The grant refers to the name, so it may exist before the Secret.
    cluster.put(grant(CURRENT, &certs, "grant", &[("granted", &[&app])])).await;
    cluster.certificate(&certs, "there", "there").await;
    let mut objects = Vec::new();
    for name in ["granted", "there", "missing"] {
        let tls = json!({"secretName": format!("{certs}/{name}")});
        let object = proxy(&app, name, &cluster.host(name), tls);
        cluster.put(object.clone()).await;
        objects.push(object);
    }
    let [granted, there, missing] = &objects[..] else { unreachable!("three objects") };
    let written = format!("{certs}/granted");
    cluster.await_validation(granted, &invalid(&written, "Secret not found")).await;
    // One Secret exists and the other does not; a namespace without a grant must not learn the
    // difference.
    cluster.await_validation(there, &refused(&format!("{certs}/there"))).await;
    cluster.await_validation(missing, &refused(&format!("{certs}/missing"))).await;
    for name in ["granted", "there", "missing"] {
        environment.await_seen(&cluster.host(name), down()).await;
    }
    cluster.certificate(&certs, "granted", "granted").await;
    environment.await_seen(&cluster.host("granted"), up("granted")).await;
    cluster.await_validation(granted, "valid").await;
}

#[tokio::test]
async fn d9_the_own_namespace_needs_no_grant_in_any_notation() {
    let Some(environment) = environment::shared("d9").await else { return };
    let cluster = &environment.cluster;
    let app = cluster.namespace("app").await;
    cluster.certificate(&app, "w", "w").await;
    for (name, written) in [("bare", "w".to_owned()), ("own", format!("{app}/w")), ("slash", "/w".to_owned())]
    {
        let object = proxy(&app, name, &cluster.host(name), json!({"secretName": written}));
        cluster.put(object.clone()).await;
        environment.await_seen(&cluster.host(name), up("w")).await;
        cluster.await_validation(&object, "valid").await;
    }
    for (name, written) in [("empty", format!("{app}/")), ("deep", format!("{app}/a/b"))] {
        let object = proxy(&app, name, &cluster.host(name), json!({"secretName": written}));
        cluster.put(object.clone()).await;
        cluster.await_validation(&object, &invalid(&written, "Secret not found")).await;
        environment.await_seen(&cluster.host(name), down()).await;
    }
}

#[tokio::test]
async fn d10_a_renewed_secret_is_served_and_a_bad_or_deleted_one_is_not() {
    let Some(environment) = environment::shared("d10").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    let (host, written) = (cluster.host("h"), format!("{certs}/w"));
    let object = proxy(&app, "p", &host, json!({"secretName": written}));
    let before = cluster.certificate(&certs, "w", "first").await;
    cluster.put(grant(CURRENT, &certs, "grant", &[("w", &[&app])])).await;
    cluster.put(object.clone()).await;
    environment.await_seen(&host, up("first")).await;

    cluster.certificate(&certs, "w", "renewed").await;
    environment.await_seen(&host, up("renewed")).await;

    let Pair { certificate_pem, private_key_pem } = serving("w");
    let other = serving("other").private_key_pem;
    let cases = [
        (
            json!({"tls.crt": "wrong", "tls.key": private_key_pem}),
            "invalid TLS certificate: failed to locate certificate",
        ),
        (
            json!({"tls.crt": certificate_pem, "tls.key": "wrong"}),
            "invalid TLS private key: failed to locate private key",
        ),
    ];
    for (data, why) in cases {
        cluster.put(secret(&certs, "w", &data)).await;
        cluster.await_validation(&object, &invalid(&written, why)).await;
        environment.await_seen(&host, down()).await;
    }
    // The key of another certificate.
    cluster.put(secret(&certs, "w", &json!({"tls.crt": certificate_pem, "tls.key": other}))).await;
    environment.await_seen(&host, down()).await;
    let validation = cluster.validation(&object).await.unwrap();
    assert!(validation.starts_with("TLSError SecretNotValid: "), "{validation}");

    cluster.certificate(&certs, "w", "again").await;
    environment.await_seen(&host, up("again")).await;
    cluster.await_validation(&object, "valid").await;
    cluster.delete(&before).await;
    environment.await_seen(&host, down()).await;
    cluster.await_validation(&object, &invalid(&written, "Secret not found")).await;
    // The grant remains valid after the deletion of the Secret.
    cluster.certificate(&certs, "w", "last").await;
    environment.await_seen(&host, up("last")).await;
    assert!(environment.running().iter().all(|(_, pod)| pod.restarts == 0));
}
