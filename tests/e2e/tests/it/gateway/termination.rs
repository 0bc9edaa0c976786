//! TLS termination at the gateway, with the certificates of Secrets.

use std::time::{Duration, Instant};

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::backend::Backend;
use super::environment::{self, ask};
use crate::installed::SOON;

/// Returns a spec that routes all requests of a host to `web`.
fn spec(host: &str, secret: &str) -> Value {
    json!({
        "virtualhost": {"fqdn": host, "tls": {"secretName": secret}},
        "routes": [{"services": [{"name": "web", "port": 80}]}],
    })
}

#[tokio::test]
async fn a_host_is_served_with_its_secret_and_with_the_renewed_one() {
    let Some(place) = environment::shared("termination").await else { return };
    let (host, other) = (place.host("web"), place.host("other"));
    let web = Backend::plain("web").await;
    let mut objects = place.service("web", web.address);
    objects.push(place.secret("cert", &place.serving("at first", &host)));
    objects.push(place.proxy("web", spec(&host, "cert")));
    objects.push(place.secret("other", &place.serving("other", &other)));
    objects.push(place.proxy("other", spec(&other, "other")));
    place.apply(&objects).await;
    // The gateway requests no client certificate, and passes no information about it to the
    // backend.
    place.await_served(&host, "at first", "web to nobody about /").await;
    place.await_served(&other, "other", "web to nobody about /").await;
    place.await_status("web", "valid", "Valid HTTPProxy").await;

    for door in place.doors() {
        let answer = place.ask_plain(door, &host, "/a?b=c").await.unwrap();
        assert_eq!(answer.status, 301);
        let location = format!("location: https://{host}/a?b=c");
        assert!(answer.head.lines().any(|line| line.eq_ignore_ascii_case(&location)), "{}", answer.head);
        // A connection is valid only for the host for which it was opened.
        let mut stream = place.connect(door, &host).await.unwrap();
        assert_eq!(ask(&mut stream, &other, "/").await.unwrap().status, 421);
    }

    let processes = || place.running().iter().map(|(_, pod)| (pod.pid, pod.restarts)).collect::<Vec<_>>();
    let before = processes();
    place.apply(&[place.secret("cert", &place.serving("renewed", &host))]).await;
    place.await_served(&host, "renewed", "web to nobody about /").await;
    assert_eq!(processes(), before);
}

#[tokio::test]
async fn after_a_revocation_handshakes_fail_within_a_second() {
    let Some(place) = environment::shared("revoked").await else { return };
    let host = place.host("lent");
    let web = Backend::plain("web").await;
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gateway-owner"}});
    let owned = |mut object: Value| {
        object["metadata"]["namespace"] = json!("gateway-owner");
        object
    };
    let secret = owned(place.secret("cert", &place.serving("lent", &host)));
    let delegation = json!({"spec": {"delegations": [
        {"secretName": "cert", "targetNamespaces": [place.namespace]}]}});
    let grant = owned(place.object("projectcontour.io/v1", "TLSCertificateDelegation", "grant", delegation));
    let mut objects = place.service("web", web.address);
    objects.extend([owner, secret, place.proxy("lent", spec(&host, "gateway-owner/cert"))]);
    place.apply(&objects).await;
    let refused = "Spec.VirtualHost.TLS Secret";
    place.await_status("lent", "invalid", refused).await;

    // The fastest of several attempts, because the machine may be busy for a while.
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        place.apply(std::slice::from_ref(&grant)).await;
        place.await_served(&host, "lent", "web to nobody about /").await;
        let client = place.world.client().await.unwrap();
        let path = "/apis/projectcontour.io/v1/namespaces/gateway-owner/tlscertificatedelegations/grant";
        let delete = http::Request::delete(path).body(Vec::new()).unwrap();
        let _: Value = client.request(delete).await.unwrap();
        let revoked = Instant::now();
        let waited = wait::until(SOON, "all replicas to refuse the handshake", async || {
            for door in place.doors() {
                if place.connect(door, &host).await.is_ok() {
                    return None;
                }
            }
            Some(revoked.elapsed())
        });
        quickest = quickest.min(place.check(waited.await));
        for door in place.doors() {
            assert_eq!(place.ask_plain(door, &host, "/").await.unwrap().status, 404);
        }
    }
    assert!(quickest < Duration::from_secs(1), "it took {quickest:?}");
    place.await_status("lent", "invalid", "certificate delegation not permitted").await;
}
