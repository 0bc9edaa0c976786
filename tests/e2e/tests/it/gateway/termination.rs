//! TLS termination at the gateway, with the certificates of Secrets.

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

/// The unit tests of the gateway's control plane bound the time from a change to the next table.
#[tokio::test]
async fn after_a_revocation_handshakes_fail_before_any_later_change_takes_effect() {
    let Some(place) = environment::shared("revoked").await else { return };
    let (host, later) = (place.host("lent"), place.host("later"));
    let web = Backend::plain("web").await;
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gateway-owner"}});
    let owned = |mut object: Value| {
        object["metadata"]["namespace"] = json!("gateway-owner");
        object
    };
    let secrets = [("cert", "lent", &host), ("later", "later", &later)];
    let secrets = secrets.map(|(name, shown, host)| owned(place.secret(name, &place.serving(shown, host))));
    let grant = |name: &str, secret: &str| {
        let delegation = json!({"spec": {"delegations": [
            {"secretName": secret, "targetNamespaces": [place.namespace]}]}});
        owned(place.object("projectcontour.io/v1", "TLSCertificateDelegation", name, delegation))
    };
    let grants = [grant("grant", "cert"), grant("later", "later")];
    let mut objects = place.service("web", web.address);
    objects.push(owner);
    objects.extend(secrets);
    objects.push(place.proxy("lent", spec(&host, "gateway-owner/cert")));
    objects.push(place.proxy("later", spec(&later, "gateway-owner/later")));
    place.apply(&objects).await;
    let refused = "Spec.VirtualHost.TLS Secret";
    place.await_status("lent", "invalid", refused).await;

    for _ in 0..3 {
        place.apply(&grants).await;
        place.await_served(&host, "lent", "web to nobody about /").await;
        place.await_served(&later, "later", "web to nobody about /").await;
        let client = place.world.client().await.unwrap();
        for name in ["grant", "later"] {
            let grants = "/apis/projectcontour.io/v1/namespaces/gateway-owner/tlscertificatedelegations";
            let delete = http::Request::delete(format!("{grants}/{name}")).body(Vec::new()).unwrap();
            let _: Value = client.request(delete).await.unwrap();
        }
        for door in place.doors() {
            let waited = wait::until(SOON, "the replica to refuse the later host", async || {
                place.connect(door, &later).await.is_err().then_some(())
            });
            place.check(waited.await);
            assert!(place.connect(door, &host).await.is_err(), "{door}");
            assert_eq!(place.ask_plain(door, &host, "/").await.unwrap().status, 404);
        }
    }
    place.await_status("lent", "invalid", "certificate delegation not permitted").await;
}
