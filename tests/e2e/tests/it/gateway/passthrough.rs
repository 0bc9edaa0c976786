//! Connections that are passed through by the server name of the ClientHello.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::backend::Backend;
use super::environment::{self, APP, ask, shown_by};

/// Returns the spec of an HTTPProxy like the release post's.
fn spec(host: &str, service: &str) -> Value {
    json!({
        "virtualhost": {"fqdn": host, "tls": {"passthrough": true}},
        "tcpproxy": {"services": [{"name": service, "port": 80}]},
    })
}

#[tokio::test]
async fn a_passed_through_client_receives_the_servers_own_certificate_and_presents_its_own() {
    let Some(place) = environment::shared("passthrough").await else { return };
    let (one, two) = (place.host("one"), place.host("two"));
    let first = Backend::tls("first", &place.serving("first's own", &one), &place.ca).await;
    let second = Backend::tls("second", &place.serving("second's own", &two), &place.ca).await;
    let mut objects =
        [place.service("first", first.address), place.service("second", second.address)].concat();
    objects.push(place.proxy("one", spec(&one, "first")));
    objects.push(place.proxy("two", spec(&two, "second")));
    place.apply(&objects).await;

    place.await_served(&one, "first's own", "first to visitor about /").await;
    place.await_served(&two, "second's own", "second to visitor about /").await;
    place.await_status("one", "valid", "Valid HTTPProxy").await;
    assert_eq!(place.ask_plain(place.door(), &one, "/").await.unwrap().status, 404);

    // Through the Service, as clients from outside connect.
    let get = ["get", "service", APP, "-n", APP, "-o", "jsonpath={.spec.clusterIP}"];
    let address = place.world.kubectl().output(&get).await.unwrap().parse().unwrap();
    let mut stream = place.check(place.connect_to(SocketAddr::new(address, 443), &two).await);
    assert_eq!(shown_by(&stream), "second's own");
    assert_eq!(ask(&mut stream, &two, "/in").await.unwrap().body, "second to visitor about /in");
}

#[tokio::test]
async fn a_missing_service_is_reported_and_served_as_soon_as_it_exists() {
    let Some(place) = environment::shared("missing").await else { return };
    let host = place.host("late");
    place.apply(&[place.proxy("late", spec(&host, "late"))]).await;
    // The text as it is written inside JSON.
    let words = format!(
        "Spec.TCPProxy unresolved service reference: service \\\"{}/late\\\" not found",
        place.namespace
    );
    place.await_status("late", "invalid", &words).await;
    for door in place.doors() {
        place.connect(door, &host).await.unwrap_err();
    }

    let late = Backend::tls("late", &place.serving("late's own", &host), &place.ca).await;
    place.apply(&place.service("late", late.address)).await;
    place.await_served(&host, "late's own", "late to visitor about /").await;
    place.await_status("late", "valid", "Valid HTTPProxy").await;
}
