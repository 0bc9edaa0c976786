//! Objects that change while connections are open.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;
use pinniped_test_support::rounds;
use serde_json::json;

use super::backend::Backend;
use super::environment::{self, send_request};

#[tokio::test]
async fn no_connection_is_dropped_when_routes_change() {
    let Some(environment) = environment::shared("changes").await else { return };
    let (through, ended) = (environment.host("through"), environment.host("ended"));
    let own = Backend::tls("own", &environment.serving("own", &through), &environment.ca).await;
    let next = Backend::tls("next", &environment.serving("next", &through), &environment.ca).await;
    let (old, new) = (Backend::plain("old").await, Backend::plain("new").await);
    let passthrough = |service: &str| {
        let tls = json!({"fqdn": through, "tls": {"passthrough": true}});
        let services = json!([{"name": service, "port": 80}]);
        environment.proxy("through", json!({"virtualhost": tls, "tcpproxy": {"services": services}}))
    };
    let terminated = |services: serde_json::Value| {
        let tls = json!({"fqdn": ended, "tls": {"secretName": "cert"}});
        environment.proxy("ended", json!({"virtualhost": tls, "routes": [{"services": services}]}))
    };
    let mut objects = [
        environment.service("own", own.address),
        environment.service("next", next.address),
        environment.service("old", old.address),
        environment.service("new", new.address),
    ]
    .concat();
    objects.push(environment.secret("cert", &environment.serving("cert", &ended)));
    objects.push(passthrough("own"));
    objects.push(terminated(json!([{"name": "old", "port": 80}])));
    environment.apply(&objects).await;
    environment.await_served(&through, "own", "own to visitor about /").await;
    environment.await_served(&ended, "cert", "old to nobody about /").await;

    let mut passed = environment.connect(environment.door(), &through).await.unwrap();
    let mut kept = environment.connect(environment.door(), &ended).await.unwrap();
    let over = AtomicBool::new(false);
    let working = rounds::until(&over, 20, async |round| {
        let path = format!("/{round}");
        let response = send_request(&mut passed, &through, &path).await?;
        ensure!(response.body == format!("own to visitor about {path}"), "{response:?}");
        let response = send_request(&mut kept, &ended, &path).await?;
        ensure!(response.status == 200 && response.body.ends_with(&path), "{response:?}");
        Ok(())
    });
    let changing = async {
        // Hosts are added, also by another kind.
        let ingress = environment.object(
            "networking.k8s.io/v1",
            "Ingress",
            "more",
            json!({"spec": {"rules": [{
            "host": environment.host("more"), "http": {"paths": [{"path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "new", "port": {"number": 80}}}}]}}]}}),
        );
        let another = json!({"virtualhost": {"fqdn": environment.host("another")},
            "routes": [{"services": [{"name": "new", "port": 80}]}]});
        environment.apply(&[ingress, environment.proxy("another", another)]).await;
        environment.await_status("another", "valid", "Valid HTTPProxy").await;
        // Backends are added and replace others.
        let both =
            json!([{"name": "old", "port": 80, "weight": 1}, {"name": "new", "port": 80, "weight": 1}]);
        environment.apply(&[terminated(both)]).await;
        environment.await_status("ended", "valid", "Valid HTTPProxy").await;
        environment.apply(&[terminated(json!([{"name": "new", "port": 80}])), passthrough("next")]).await;
        environment.await_served(&ended, "cert", "new to nobody about /").await;
        environment.await_served(&through, "next", "next to visitor about /").await;
        // Hosts are removed.
        environment.delete("httpproxy", "another").await;
        environment.delete("ingress", "more").await;
        over.store(true, Ordering::Relaxed);
    };
    let (worked, ()) = tokio::join!(working, changing);
    environment.check(worked);
    // The same connection uses the current route of each request.
    let response = send_request(&mut kept, &ended, "/last").await.unwrap();
    assert_eq!(response.body, "new to nobody about /last");
    // The passed-through connection stays with its backend.
    assert_eq!(
        send_request(&mut passed, &through, "/last").await.unwrap().body,
        "own to visitor about /last"
    );
}
