//! Users with more groups and longer extras than fit into most servers' header limits.

use pinniped_test_support::certs::Pair;
use serde_json::{Value, json};

use super::{Connection, ORIGINAL_USER, Protocol, audited, get, send_request, with};
use crate::installed::{self, Credentials, Installed, PROXY_ACCOUNT};

/// Returns the certificate of the cluster's front proxy.
pub(super) fn front_proxy(installed: &Installed) -> Credentials {
    let pki = installed.world().dir().join("pki");
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).unwrap();
    let pair = Pair {
        certificate_pem: read("front-proxy-client.crt"),
        private_key_pem: read("front-proxy-client.key"),
    };
    pair.into()
}

fn groups(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("a-group-with-a-rather-long-name-{number:05}")).collect()
}

fn and_authenticated(mut groups: Vec<String>) -> Value {
    groups.push("system:authenticated".to_owned());
    json!(groups)
}

#[tokio::test]
async fn five_thousand_groups_and_a_long_extra_reach_the_api_server_in_order() {
    let Some(installed) = installed::shared("five thousand groups").await else { return };
    let groups = groups(5_000);
    let long = "x".repeat(200_000);
    let mut printed = vec![("x-remote-user", "large-user"), ("user-agent", "large-front/1")];
    printed.extend(groups.iter().map(|group| ("x-remote-group", group.as_str())));
    printed.push(("x-remote-extra-example.com%2flong", &long));
    let response =
        send_request(&installed, &front_proxy(&installed), with(get("/api/v1/namespaces"), &printed)).await;
    assert_eq!(response.status, 403, "{}", response.body);
    // The proxy's own review has refused it. Members of system:masters need no review.
    printed[1].1 = "large-front/2";
    printed.push(("x-remote-group", "system:masters"));
    let response =
        send_request(&installed, &front_proxy(&installed), with(get("/api/v1/namespaces"), &printed)).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let event = audited(&installed, "large-front/2").await;
    assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
    let seen = &event["impersonatedUser"];
    assert_eq!(seen["username"], "large-user");
    let mut all = groups.clone();
    all.push("system:masters".to_owned());
    assert!(seen["groups"] == and_authenticated(all), "{} groups", seen["groups"].as_array().unwrap().len());
    assert!(seen["extra"]["example.com/long"] == json!([long]));
}

#[tokio::test]
async fn five_thousand_groups_can_be_impersonated_with_permission() {
    let Some(installed) = installed::shared("five thousand impersonated groups").await else { return };
    let admin = Credentials::from(installed.certificate("large-admin", Some("system:masters")));
    let groups = groups(5_000);
    let mut acting = vec![("impersonate-user", "large-target"), ("user-agent", "large-nested/1")];
    acting.extend(groups.iter().map(|group| ("impersonate-group", group.as_str())));
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let who_am_i = super::post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &body);
    let response = send_request(&installed, &admin, with(who_am_i, &acting)).await;
    assert_eq!(response.status, 201, "{}", response.body);
    let user = &response.json()["status"]["userInfo"];
    assert!(user["groups"] == and_authenticated(groups));
    assert!(user["extra"][ORIGINAL_USER][0].as_str().unwrap().contains("\"large-admin\""));
}

#[tokio::test]
async fn many_groups_reach_the_api_server_over_http1_too() {
    let Some(installed) = installed::shared("many groups over HTTP/1.1").await else { return };
    let mut groups = groups(1_500);
    groups.push("system:masters".to_owned());
    let mut printed = vec![
        ("x-remote-user", "large-http1"),
        ("user-agent", "large-http1/1"),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ];
    printed.extend(groups.iter().map(|group| ("x-remote-group", group.as_str())));
    let path = "/api/v1/namespaces/default/pods/none/exec?command=true&stdout=true";
    let mut connection = Connection::open(&installed, Protocol::Http1, &front_proxy(&installed)).await;
    let response = connection.send_request(with(get(path), &printed)).await;
    assert_eq!(response.message(), (404, "pods \"none\" not found".to_owned()));
    let seen = audited(&installed, "large-http1/1").await["impersonatedUser"].clone();
    assert!(seen["groups"] == and_authenticated(groups));
}
