//! Row D12: the manifest of Contour's design document "TLS Certificate Delegation", unchanged.

use serde_json::json;

use super::cluster::{self, proxy};
use super::environment::{self, down, up};

const MANIFEST: &str = r#"
apiVersion: contour.vmware.com/v1
kind: TLSCertificateDelegation
metadata:
  name: wildcards
  namespace: kube-system
spec:
  delegations:
  - secretName: example-com-wildcard
    targetNamespaces:
    - dev-example
    - www-example
  - secretName: google-com
    targetNamespaces: ["finance"]
  - secretName: dev-wildcard
    targetNamespaces: ["*"]
"#;

/// Each namespace, and whether each of the three Secrets is delegated to it.
const GRANTED: [(&str, [bool; 3]); 4] = [
    ("dev-example", [true, false, true]),
    ("www-example", [true, false, true]),
    ("finance", [false, true, true]),
    ("anywhere", [false, false, true]),
];

#[tokio::test]
async fn d12_the_manifest_of_the_design_document_grants_the_documented_access() {
    let Some(environment) = environment::shared("d12").await else { return };
    let cluster = &environment.cluster;
    let secrets = ["example-com-wildcard", "google-com", "dev-wildcard"];
    for secret in secrets {
        cluster.certificate("kube-system", secret, secret).await;
    }
    let mut hosts = Vec::new();
    for (namespace, granted) in GRANTED {
        // The names of the document, without a prefix of this test.
        cluster.put(cluster::object("v1", "Namespace", "", namespace, json!({}))).await;
        cluster.service(namespace, "web", environment::backend().plain.port(), json!({})).await;
        for (secret, granted) in secrets.into_iter().zip(granted) {
            let host = cluster.host(&format!("{namespace}-{secret}"));
            let tls = json!({"secretName": format!("kube-system/{secret}")});
            let object = proxy(namespace, secret, &host, tls);
            cluster.put(object.clone()).await;
            hosts.push((host, object, granted.then_some(secret)));
        }
    }
    let refused = |secret: &str| {
        format!(
            "TLSError DelegationNotPermitted: Spec.VirtualHost.TLS Secret \"kube-system/{secret}\" certificate delegation \
             not permitted"
        )
    };
    for (host, object, _) in &hosts {
        let secret = object["metadata"]["name"].as_str().unwrap();
        cluster.await_validation(object, &refused(secret)).await;
        environment.await_seen(host, down()).await;
    }
    environment.world.kubectl().apply(MANIFEST).await.unwrap();
    // Granted hosts first: once they are served, the others have been processed, too.
    hosts.sort_by_key(|(_, _, granted)| granted.is_none());
    for (host, object, granted) in &hosts {
        match granted {
            Some(secret) => {
                environment.await_seen(host, up(secret)).await;
                cluster.await_validation(object, "valid").await;
            }
            None => {
                let secret = object["metadata"]["name"].as_str().unwrap();
                assert_eq!(environment.seen(host).await.unwrap(), down(), "{host}");
                assert_eq!(cluster.validation(object).await.unwrap(), refused(secret));
            }
        }
    }
    environment
        .kubectl(&[
            "delete",
            &format!("tlscertificatedelegations.{}", "contour.vmware.com"),
            "wildcards",
            "-n",
            "kube-system",
        ])
        .await
        .unwrap();
    for (host, ..) in &hosts {
        environment.await_seen(host, down()).await;
    }
    for (_, object, _) in &hosts {
        cluster.delete(object).await;
    }
}
