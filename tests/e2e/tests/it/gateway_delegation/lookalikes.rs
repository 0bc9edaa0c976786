//! Row D5 and the first half of D6: objects that resemble a grant but are none.

use serde_json::json;

use super::cluster::{CURRENT, grant, proxy};
use super::environment::{self, down, up};
use super::grants::refused;

#[tokio::test]
async fn d5_objects_that_resemble_a_grant_have_no_effect() {
    let Some(environment) = environment::shared("d5").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    let watch = cluster.namespace("watch").await;
    let (host, written) = (cluster.host("h"), format!("{certs}/w"));
    cluster.certificate(&certs, "w", "w").await;
    // The grant must be in the namespace of the Secret, not in that of a Secret with the same name.
    cluster.certificate(&app, "w", "other").await;
    let object = proxy(&app, "p", &host, json!({"secretName": written}));
    cluster.put(object.clone()).await;
    cluster.await_validation(&object, &refused(&written)).await;
    // A real grant is created after each of them: when it has taken effect, the other was
    // processed.
    for namespace in [&certs, &app] {
        cluster.certificate(namespace, "watched", "watched").await;
        let tls = json!({"secretName": format!("{namespace}/watched")});
        cluster.put(proxy(&watch, namespace, &cluster.host(namespace), tls)).await;
    }
    let rows: [(&str, &str, &[&str]); 6] = [
        (&certs, "w", &["*", "other"]),
        (&certs, "w", &["other", "*"]),
        (&certs, "w", &[]),
        (&certs, "*", &["*"]),
        (&certs, &written, &["*"]),
        (&app, "w", &[&app]),
    ];
    for (namespace, secret, targets) in rows {
        let granted = grant(CURRENT, namespace, "grant", &[(secret, targets), ("watched", &[&watch])]);
        let watched = cluster.host(namespace);
        environment.await_seen(&watched, down()).await;
        cluster.put(granted.clone()).await;
        environment.await_seen(&watched, up("watched")).await;
        assert_eq!(environment.seen(&host).await.unwrap(), down(), "{namespace}: {secret} {targets:?}");
        assert_eq!(
            cluster.validation(&object).await.unwrap(),
            refused(&written),
            "{namespace}: {secret} {targets:?}"
        );
        cluster.delete(&granted).await;
    }
    // The object has no status, so the problem is logged.
    let (what, object) = ("together with other namespaces", format!("\"{certs}/grant\""));
    let log = environment.log();
    assert!(log.lines().any(|line| line.contains(what) && line.contains(&object)), "{log}");
}
