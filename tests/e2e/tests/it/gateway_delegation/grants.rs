//! Rows D1 to D4, D6 and D11: the effect of a grant on a host, and of its revocation.

use serde_json::{Value, json};

use super::cluster::{CURRENT, DESIGN, LEGACY, grant, proxy};
use super::environment::{self, Environment, down, up};

/// Returns the message about a reference that is not permitted.
pub(super) fn refused(written: &str) -> String {
    format!(
        "TLSError DelegationNotPermitted: Spec.VirtualHost.TLS Secret \"{written}\" certificate delegation not permitted"
    )
}

/// D1: a host of `app` that refers to the certificate `w` in `certs`.
struct Host {
    app: String,
    certs: String,
    host: String,
    object: Value,
    refused: String,
}

async fn host<G>(environment: &Environment<G>) -> Host {
    let cluster = &environment.cluster;
    let (app, certs, host) =
        (cluster.namespace("app").await, cluster.namespace("certs").await, cluster.host("h"));
    cluster.certificate(&certs, "w", "w").await;
    let object = proxy(&app, "p", &host, json!({"secretName": format!("{certs}/w")}));
    cluster.put(object.clone()).await;
    let refused = refused(&format!("{certs}/w"));
    Host { app, certs, host, object, refused }
}

impl Host {
    async fn is_down<G>(&self, environment: &Environment<G>) {
        environment.await_seen(&self.host, down()).await;
        environment.cluster.await_validation(&self.object, &self.refused).await;
    }

    async fn is_up<G>(&self, environment: &Environment<G>) {
        environment.await_seen(&self.host, up("w")).await;
        environment.cluster.await_validation(&self.object, "valid").await;
    }
}

#[tokio::test]
async fn d1_to_d4_a_host_is_served_exactly_while_a_grant_exists() {
    let Some(environment) = environment::shared("d1").await else { return };
    let cluster = &environment.cluster;
    let h = host(&environment).await;
    h.is_down(&environment).await;
    let granted = |entries: &[(&str, &[&str])]| grant(CURRENT, &h.certs, "grant", entries);
    let to_app = granted(&[("w", &[&h.app])]);
    let others: [Vec<(&str, &[&str])>; 2] = [vec![("different", &["*"])], vec![("w", &["other"])]];
    for other in others {
        cluster.put(to_app.clone()).await;
        h.is_up(&environment).await;
        cluster.put(granted(&other)).await;
        h.is_down(&environment).await;
    }
    cluster.put(granted(&[("w", &["*"])])).await;
    h.is_up(&environment).await;
    cluster.delete(&to_app).await;
    h.is_down(&environment).await;
}

/// The unit tests of the gateway's control plane bound the time from a change to the next table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_deleted_grant_takes_effect_before_any_later_change_in_every_replica() {
    let Some(environment) = environment::shared("d4").await else { return };
    let cluster = &environment.cluster;
    let h = host(&environment).await;
    let to_app = grant(CURRENT, &h.certs, "grant", &[("w", &[&h.app])]);
    // Another host with its own grant, which is deleted later.
    let later = cluster.host("later");
    cluster.certificate(&h.certs, "later", "later").await;
    cluster.put(proxy(&h.app, "later", &later, json!({"secretName": format!("{}/later", h.certs)}))).await;
    let later_to_app = grant(CURRENT, &h.certs, "later", &[("later", &[&h.app])]);
    for _ in 0..3 {
        cluster.put(to_app.clone()).await;
        cluster.put(later_to_app.clone()).await;
        h.is_up(&environment).await;
        environment.await_seen(&later, up("later")).await;
        let held = environment.held(&h.host).await.unwrap();
        cluster.delete(&to_app).await;
        cluster.delete(&later_to_app).await;
        environment.await_tls(&later, &later, None, "closed").await;
        assert_eq!(environment.seen(&h.host).await.unwrap(), down());
        // Open connections are closed, so no client continues with the revoked certificate.
        for connection in held {
            connection.ended().await.unwrap();
        }
    }
    h.is_down(&environment).await;
    // No pod was restarted.
    assert!(environment.running().iter().all(|(_, pod)| pod.restarts == 0));
}

#[tokio::test]
async fn d6_one_of_two_grants_is_sufficient() {
    let Some(environment) = environment::shared("d6").await else { return };
    let cluster = &environment.cluster;
    let h = host(&environment).await;
    // This host depends on the irrelevant grant: when it is no longer served, the revocation was
    // processed.
    let watched = cluster.host("watched");
    cluster
        .put(proxy(&h.app, "watched", &watched, json!({"secretName": format!("{}/watched", h.certs)})))
        .await;
    cluster.certificate(&h.certs, "watched", "watched").await;
    cluster.put(grant(CURRENT, &h.certs, "one", &[("w", &[&h.app])])).await;
    let other = grant(CURRENT, &h.certs, "other", &[("w", &["other"]), ("watched", &[&h.app])]);
    cluster.put(other.clone()).await;
    h.is_up(&environment).await;
    environment.await_seen(&watched, up("watched")).await;
    cluster.delete(&other).await;
    environment.await_seen(&watched, down()).await;
    assert_eq!(environment.seen(&h.host).await.unwrap(), up("w"));
    assert_eq!(cluster.validation(&h.object).await.unwrap(), "valid");
}

#[tokio::test]
async fn d11_grants_of_all_groups_are_equivalent() {
    let Some(environment) = environment::shared("d11").await else { return };
    let h = host(&environment).await;
    for version in [LEGACY, DESIGN, CURRENT] {
        let object = grant(version, &h.certs, "grant", &[("w", &[&h.app])]);
        environment.cluster.put(object.clone()).await;
        h.is_up(&environment).await;
        environment.cluster.delete(&object).await;
        h.is_down(&environment).await;
    }
}

#[tokio::test]
async fn kubectl_shows_the_reason_why_a_host_is_not_served() {
    let Some(environment) = environment::shared("shown").await else { return };
    let h = host(&environment).await;
    h.is_down(&environment).await;
    let get = ["get", "httpproxies.projectcontour.io", "-n", &h.app];
    let table = environment.kubectl(&get).await.unwrap();
    let words = |line: Option<&str>| {
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let secret = format!("{}/w", h.certs);
    let mut wanted = vec!["p".to_owned(), h.host.clone(), secret, "invalid".to_owned()];
    wanted.extend(words(Some("At least one error present, see Errors for details")));
    assert_eq!(words(table.lines().nth(1)), wanted, "{table}");
    let described =
        environment.kubectl(&["describe", "httpproxies.projectcontour.io", "p", "-n", &h.app]).await.unwrap();
    assert!(described.contains("DelegationNotPermitted"), "{described}");
    environment.cluster.put(grant(CURRENT, &h.certs, "grant", &[("w", &["*"])])).await;
    h.is_up(&environment).await;
    let table = environment.kubectl(&get).await.unwrap();
    assert_eq!(words(table.lines().nth(1))[3..], ["valid", "Valid", "HTTPProxy"], "{table}");
    // The status also contains the addresses of the gateway.
    let status = &environment.cluster.get(&h.object).await.unwrap()["status"];
    let wanted =
        json!([{"ip": environment::STATUS_ADDRESSES[0]}, {"hostname": environment::STATUS_ADDRESSES[1]}]);
    assert_eq!(status["loadBalancer"]["ingress"], wanted, "{status}");
}
