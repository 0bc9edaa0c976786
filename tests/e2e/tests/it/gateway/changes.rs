//! Objects that change while connections are open.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;
use pinniped_test_support::rounds;
use serde_json::json;

use super::backend::Backend;
use super::environment::{self, ask};

#[tokio::test]
async fn no_connection_is_dropped_when_routes_change() {
    let Some(place) = environment::shared("changes").await else { return };
    let (through, ended) = (place.host("through"), place.host("ended"));
    let own = Backend::tls("own", &place.serving("own", &through), &place.ca).await;
    let next = Backend::tls("next", &place.serving("next", &through), &place.ca).await;
    let (old, new) = (Backend::plain("old").await, Backend::plain("new").await);
    let passthrough = |service: &str| {
        let tls = json!({"fqdn": through, "tls": {"passthrough": true}});
        let services = json!([{"name": service, "port": 80}]);
        place.proxy("through", json!({"virtualhost": tls, "tcpproxy": {"services": services}}))
    };
    let terminated = |services: serde_json::Value| {
        let tls = json!({"fqdn": ended, "tls": {"secretName": "cert"}});
        place.proxy("ended", json!({"virtualhost": tls, "routes": [{"services": services}]}))
    };
    let mut objects = [
        place.service("own", own.address),
        place.service("next", next.address),
        place.service("old", old.address),
        place.service("new", new.address),
    ]
    .concat();
    objects.push(place.secret("cert", &place.serving("cert", &ended)));
    objects.push(passthrough("own"));
    objects.push(terminated(json!([{"name": "old", "port": 80}])));
    place.apply(&objects).await;
    place.await_served(&through, "own", "own to visitor about /").await;
    place.await_served(&ended, "cert", "old to nobody about /").await;

    let mut passed = place.connect(place.door(), &through).await.unwrap();
    let mut kept = place.connect(place.door(), &ended).await.unwrap();
    let over = AtomicBool::new(false);
    let working = rounds::until(&over, 20, async |round| {
        let path = format!("/{round}");
        let answer = ask(&mut passed, &through, &path).await?;
        ensure!(answer.body == format!("own to visitor about {path}"), "{answer:?}");
        let answer = ask(&mut kept, &ended, &path).await?;
        ensure!(answer.status == 200 && answer.body.ends_with(&path), "{answer:?}");
        Ok(())
    });
    let changing = async {
        // Hosts are added, also by another kind.
        let ingress = place.object(
            "networking.k8s.io/v1",
            "Ingress",
            "more",
            json!({"spec": {"rules": [{
            "host": place.host("more"), "http": {"paths": [{"path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "new", "port": {"number": 80}}}}]}}]}}),
        );
        let another = json!({"virtualhost": {"fqdn": place.host("another")},
            "routes": [{"services": [{"name": "new", "port": 80}]}]});
        place.apply(&[ingress, place.proxy("another", another)]).await;
        place.await_status("another", "valid", "Valid HTTPProxy").await;
        // Backends are added and replace others.
        let both =
            json!([{"name": "old", "port": 80, "weight": 1}, {"name": "new", "port": 80, "weight": 1}]);
        place.apply(&[terminated(both)]).await;
        place.await_status("ended", "valid", "Valid HTTPProxy").await;
        place.apply(&[terminated(json!([{"name": "new", "port": 80}])), passthrough("next")]).await;
        place.await_served(&ended, "cert", "new to nobody about /").await;
        place.await_served(&through, "next", "next to visitor about /").await;
        // Hosts are removed.
        place.delete("httpproxy", "another").await;
        place.delete("ingress", "more").await;
        over.store(true, Ordering::Relaxed);
    };
    let (worked, ()) = tokio::join!(working, changing);
    place.check(worked);
    // The same connection uses the current route of each request.
    let answer = ask(&mut kept, &ended, "/last").await.unwrap();
    assert_eq!(answer.body, "new to nobody about /last");
    // The passed-through connection stays with its backend.
    assert_eq!(ask(&mut passed, &through, "/last").await.unwrap().body, "own to visitor about /last");
}
