//! TLS termination at the gateway, with the certificates of Secrets.

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::backend::Backend;
use super::environment::{self, send_request};
use crate::installed::TIME_LIMIT;

/// Returns a spec that routes all requests of a host to `web`.
fn spec(host: &str, secret: &str) -> Value {
    json!({
        "virtualhost": {"fqdn": host, "tls": {"secretName": secret}},
        "routes": [{"services": [{"name": "web", "port": 80}]}],
    })
}

#[tokio::test]
async fn a_host_is_served_with_its_secret_and_with_the_renewed_one() {
    let Some(environment) = environment::shared("termination").await else { return };
    let (host, other) = (environment.host("web"), environment.host("other"));
    let web = Backend::plain("web").await;
    let mut objects = environment.service("web", web.address);
    objects.push(environment.secret("cert", &environment.serving("at first", &host)));
    objects.push(environment.proxy("web", spec(&host, "cert")));
    objects.push(environment.secret("other", &environment.serving("other", &other)));
    objects.push(environment.proxy("other", spec(&other, "other")));
    environment.apply(&objects).await;
    // The gateway requests no client certificate, and passes no information about it to the
    // backend.
    environment.await_served(&host, "at first", "web to nobody about /").await;
    environment.await_served(&other, "other", "web to nobody about /").await;
    environment.await_status("web", "valid", "Valid HTTPProxy").await;

    for door in environment.doors() {
        let response = environment.send_plain_request(door, &host, "/a?b=c").await.unwrap();
        assert_eq!(response.status, 301);
        let location = format!("location: https://{host}/a?b=c");
        assert!(response.head.lines().any(|line| line.eq_ignore_ascii_case(&location)), "{}", response.head);
        // A connection is valid only for the host for which it was opened.
        let mut stream = environment.connect(door, &host).await.unwrap();
        assert_eq!(send_request(&mut stream, &other, "/").await.unwrap().status, 421);
    }

    let processes =
        || environment.running().iter().map(|(_, pod)| (pod.pid, pod.restarts)).collect::<Vec<_>>();
    let before = processes();
    environment.apply(&[environment.secret("cert", &environment.serving("renewed", &host))]).await;
    environment.await_served(&host, "renewed", "web to nobody about /").await;
    assert_eq!(processes(), before);
}

/// The unit tests of the gateway's control plane bound the time from a change to the next table.
#[tokio::test]
async fn after_a_revocation_handshakes_fail_before_any_later_change_takes_effect() {
    let Some(environment) = environment::shared("revoked").await else { return };
    let (host, later) = (environment.host("lent"), environment.host("later"));
    let web = Backend::plain("web").await;
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gateway-owner"}});
    let owned = |mut object: Value| {
        object["metadata"]["namespace"] = json!("gateway-owner");
        object
    };
    let secrets = [("cert", "lent", &host), ("later", "later", &later)];
    let secrets =
        secrets.map(|(name, shown, host)| owned(environment.secret(name, &environment.serving(shown, host))));
    let grant = |name: &str, secret: &str| {
        let delegation = json!({"spec": {"delegations": [
            {"secretName": secret, "targetNamespaces": [environment.namespace]}]}});
        owned(environment.object("projectcontour.io/v1", "TLSCertificateDelegation", name, delegation))
    };
    let grants = [grant("grant", "cert"), grant("later", "later")];
    let mut objects = environment.service("web", web.address);
    objects.push(owner);
    objects.extend(secrets);
    objects.push(environment.proxy("lent", spec(&host, "gateway-owner/cert")));
    objects.push(environment.proxy("later", spec(&later, "gateway-owner/later")));
    environment.apply(&objects).await;
    let refused = "Spec.VirtualHost.TLS Secret";
    environment.await_status("lent", "invalid", refused).await;

    for _ in 0..3 {
        environment.apply(&grants).await;
        environment.await_served(&host, "lent", "web to nobody about /").await;
        environment.await_served(&later, "later", "web to nobody about /").await;
        let client = environment.world.client().await.unwrap();
        for name in ["grant", "later"] {
            let grants = "/apis/projectcontour.io/v1/namespaces/gateway-owner/tlscertificatedelegations";
            let delete = http::Request::delete(format!("{grants}/{name}")).body(Vec::new()).unwrap();
            let _: Value = client.request(delete).await.unwrap();
        }
        for door in environment.doors() {
            let waited = wait::until(TIME_LIMIT, "the replica to refuse the later host", async || {
                environment.connect(door, &later).await.is_err().then_some(())
            });
            environment.check(waited.await);
            assert!(environment.connect(door, &host).await.is_err(), "{door}");
            assert_eq!(environment.send_plain_request(door, &host, "/").await.unwrap().status, 404);
        }
    }
    environment.await_status("lent", "invalid", "certificate delegation not permitted").await;
}
