//! Connections that are passed through by the server name of the ClientHello.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::backend::Backend;
use super::environment::{self, APP, send_request, shown_by};

/// Returns the spec of an HTTPProxy like the release post's.
fn spec(host: &str, service: &str) -> Value {
    json!({
        "virtualhost": {"fqdn": host, "tls": {"passthrough": true}},
        "tcpproxy": {"services": [{"name": service, "port": 80}]},
    })
}

#[tokio::test]
async fn a_passed_through_client_receives_the_servers_own_certificate_and_presents_its_own() {
    let Some(environment) = environment::shared("passthrough").await else { return };
    let (one, two) = (environment.host("one"), environment.host("two"));
    let first = Backend::tls("first", &environment.serving("first's own", &one), &environment.ca).await;
    let second = Backend::tls("second", &environment.serving("second's own", &two), &environment.ca).await;
    let mut objects =
        [environment.service("first", first.address), environment.service("second", second.address)].concat();
    objects.push(environment.proxy("one", spec(&one, "first")));
    objects.push(environment.proxy("two", spec(&two, "second")));
    environment.apply(&objects).await;

    environment.await_served(&one, "first's own", "first to visitor about /").await;
    environment.await_served(&two, "second's own", "second to visitor about /").await;
    environment.await_status("one", "valid", "Valid HTTPProxy").await;
    assert_eq!(environment.send_plain_request(environment.door(), &one, "/").await.unwrap().status, 404);

    // Through the Service, as clients from outside connect.
    let get = ["get", "service", APP, "-n", APP, "-o", "jsonpath={.spec.clusterIP}"];
    let address = environment.world.kubectl().output(&get).await.unwrap().parse().unwrap();
    let mut stream = environment.check(environment.connect_to(SocketAddr::new(address, 443), &two).await);
    assert_eq!(shown_by(&stream), "second's own");
    assert_eq!(send_request(&mut stream, &two, "/in").await.unwrap().body, "second to visitor about /in");
}

#[tokio::test]
async fn a_missing_service_is_reported_and_served_as_soon_as_it_exists() {
    let Some(environment) = environment::shared("missing").await else { return };
    let host = environment.host("late");
    environment.apply(&[environment.proxy("late", spec(&host, "late"))]).await;
    // The text as it is written inside JSON.
    let words = format!(
        "Spec.TCPProxy unresolved service reference: service \\\"{}/late\\\" not found",
        environment.namespace
    );
    environment.await_status("late", "invalid", &words).await;
    for door in environment.doors() {
        environment.connect(door, &host).await.unwrap_err();
    }

    let late = Backend::tls("late", &environment.serving("late's own", &host), &environment.ca).await;
    environment.apply(&environment.service("late", late.address)).await;
    environment.await_served(&host, "late's own", "late to visitor about /").await;
    environment.await_status("late", "valid", "Valid HTTPProxy").await;
}
