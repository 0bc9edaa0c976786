//! Rows I: Ingress objects, with an annotation as today's API server accepts it, and with a slash
//! as older API servers did.

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::cluster::{CURRENT, Cluster, grant, object, secret, serving};
use super::environment::{self, CLASS, Environment, STATUS_ADDRESSES, Seen, down, ports};
use super::etcd;
use crate::installed::TIME_LIMIT;

const CERTIFICATE_NAMESPACE: &str = "projectcontour.io/tls-cert-namespace";

fn ingress(namespace: &str, name: &str, annotations: Value, mut spec: Value) -> Value {
    spec["ingressClassName"] = json!(CLASS);
    let mut object = object("networking.k8s.io/v1", "Ingress", namespace, name, json!({}));
    object["metadata"]["annotations"] = annotations;
    object["spec"] = spec;
    object
}

fn rule(host: &str) -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    json!({"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}})
}

fn with_tls(host: &str, secret: &str) -> Value {
    json!({"rules": [rule(host)], "tls": [{"hosts": [host], "secretName": secret}]})
}

/// Returns the expected result when only requests without TLS are served.
fn only_plain() -> Seen {
    ports("closed", "200")
}

fn both(certificate: &str) -> Seen {
    ports(&format!("{certificate} 200"), "200")
}

/// Creates namespaces `app` and `certs`, with the certificate `w` in the second.
async fn namespaces(cluster: &Cluster) -> (String, String) {
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    cluster.certificate(&certs, "w", "w").await;
    (app, certs)
}

#[tokio::test]
async fn i1_i2_i3_by_annotation_a_grant_decides_over_https_and_nothing_else() {
    let Some(environment) = environment::shared("i1").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = namespaces(cluster).await;
    let hosts = [
        ("simple", json!({}), only_plain(), both("w")),
        (
            "forced",
            json!({"ingress.kubernetes.io/force-ssl-redirect": "true"}),
            ports("closed", "301"),
            ports("w 200", "301"),
        ),
        ("secure", json!({"kubernetes.io/ingress.allow-http": "false"}), down(), ports("w 200", "404")),
    ];
    for (name, annotations, ..) in &hosts {
        let mut annotations = annotations.clone();
        annotations[CERTIFICATE_NAMESPACE] = json!(certs);
        cluster.put(ingress(&app, name, annotations, with_tls(&cluster.host(name), "w"))).await;
    }
    for (name, _, without, _) in &hosts {
        environment.await_seen(&cluster.host(name), without.clone()).await;
    }
    let reported = format!("certificate delegation not permitted for Secret \\\"{certs}/w\\\"");
    wait::until(TIME_LIMIT, "the log to say why", async || {
        environment.log().contains(&reported).then_some(())
    })
    .await
    .unwrap();
    let granted = grant(CURRENT, &certs, "grant", &[("w", &[&app])]);
    cluster.put(granted.clone()).await;
    for (name, _, _, with) in &hosts {
        environment.await_seen(&cluster.host(name), with.clone()).await;
    }
    cluster.delete(&granted).await;
    for (name, _, without, _) in &hosts {
        environment.await_seen(&cluster.host(name), without.clone()).await;
    }
}

#[tokio::test]
async fn an_ingress_gets_the_addresses_of_the_gateway() {
    let Some(environment) = environment::shared("told").await else { return };
    let cluster = &environment.cluster;
    let (app, _) = namespaces(cluster).await;
    let ours = ingress(&app, "ours", json!({}), json!({"rules": [rule(&cluster.host("ours"))]}));
    let mut foreign = ingress(&app, "foreign", json!({}), json!({"rules": [rule(&cluster.host("foreign"))]}));
    foreign["spec"]["ingressClassName"] = json!("other");
    cluster.put(foreign.clone()).await;
    cluster.put(ours.clone()).await;
    let wanted = json!([{"ip": STATUS_ADDRESSES[0]}, {"hostname": STATUS_ADDRESSES[1]}]);
    let reported = wait::until_ok(TIME_LIMIT, "the status", async || {
        let status = cluster.get(&ours).await?["status"].clone();
        anyhow::ensure!(status["loadBalancer"]["ingress"] == wanted, "{status}");
        Ok(())
    });
    reported.await.unwrap();
    // An existing Ingress of another controller stays unchanged.
    assert_eq!(cluster.get(&foreign).await.unwrap()["status"]["loadBalancer"], json!({}));
    assert_eq!(environment.seen(&cluster.host("foreign")).await.unwrap(), down());
    assert_eq!(environment.seen(&cluster.host("ours")).await.unwrap(), only_plain());
}

/// Writes a name with a slash into a stored Ingress.
async fn store_with_slash<G>(environment: &Environment<G>, stored: &Value, written: &str) {
    let mut object = environment.cluster.get(stored).await.unwrap();
    object["spec"]["tls"][0]["secretName"] = json!(written);
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    // The API server adds these members when it reads the object.
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let name = |field: &str| stored["metadata"][field].as_str().unwrap();
    etcd::replace(environment.world, &etcd::ingress_key(name("namespace"), name("name")), &object)
        .await
        .unwrap();
    let read = environment.cluster.get(stored).await.unwrap();
    assert_eq!(
        read["spec"]["tls"][0]["secretName"], written,
        "the API server does not read what was written: {read}"
    );
}

#[tokio::test]
async fn i4_an_ingress_with_a_slash_is_rejected_when_new_and_accepted_when_stored() {
    let Some(environment) = environment::shared("i4").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = namespaces(cluster).await;
    let written = format!("{certs}/w");
    let refused = ingress(&app, "refused", json!({}), with_tls(&cluster.host("refused"), &written));
    let error = format!("{:#}", cluster.apply(&refused).await.unwrap_err());
    assert!(error.contains("spec.tls[0].secretName"), "{error}");

    // The slash takes precedence over a different annotation.
    let annotated = json!({CERTIFICATE_NAMESPACE: "elsewhere"});
    let hosts = [("bare", json!({})), ("annotated", annotated)].map(|(name, annotations)| {
        let host = cluster.host(name);
        (ingress(&app, name, annotations, with_tls(&host, "absent")), host)
    });
    for (stored, host) in &hosts {
        cluster.put(stored.clone()).await;
        environment.await_seen(host, only_plain()).await;
        store_with_slash(&environment, stored, &written).await;
    }
    let granted = grant(CURRENT, &certs, "grant", &[("w", &[&app])]);
    cluster.put(granted.clone()).await;
    for (stored, host) in &hosts {
        environment.await_seen(host, both("w")).await;
        // Its status can be written nevertheless.
        let reported = wait::until_ok(TIME_LIMIT, "the status", async || {
            let status = cluster.get(stored).await?["status"].clone();
            anyhow::ensure!(status["loadBalancer"]["ingress"][0]["ip"] == STATUS_ADDRESSES[0], "{status}");
            Ok(())
        });
        reported.await.unwrap();
    }
    cluster.delete(&granted).await;
    for (_, host) in &hosts {
        environment.await_seen(host, only_plain()).await;
    }
}

#[tokio::test]
async fn i10_an_unusable_secret_disables_https_only_and_only_until_it_is_corrected() {
    let Some(environment) = environment::shared("i10").await else { return };
    let cluster = &environment.cluster;
    let (app, _) = namespaces(cluster).await;
    let mut other_type = secret(&app, "type", &json!({".dockerconfigjson": "{}"}));
    other_type["type"] = json!("kubernetes.io/dockerconfigjson");
    cluster.put(other_type.clone()).await;
    let key = serving("x").private_key_pem;
    cluster.put(secret(&app, "content", &json!({"tls.crt": "wrong", "tls.key": key}))).await;
    for name in ["type", "content"] {
        let host = cluster.host(name);
        cluster.put(ingress(&app, name, json!({}), with_tls(&host, name))).await;
        environment.await_seen(&host, only_plain()).await;
    }
    // The type of a Secret is immutable, but the Secret can be replaced.
    cluster.delete(&other_type).await;
    for name in ["type", "content"] {
        cluster.certificate(&app, name, "fixed").await;
        environment.await_seen(&cluster.host(name), both("fixed")).await;
    }
}
