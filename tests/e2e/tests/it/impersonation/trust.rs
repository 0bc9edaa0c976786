//! Changes of the cluster's trusted authorities while connections are open.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pinniped_test_support::certs::Authority;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::{Connection, Protocol, audited, get, large::front_proxy, who_am_i, with};
use crate::installed::{self, Installed, TIME_LIMIT};

const NAME: &str = "extension-apiserver-authentication";

/// The ConfigMap with the trusted authorities, and functions to change it.
struct Trust(Api<ConfigMap>);

impl Trust {
    async fn of(installed: &Installed) -> Self {
        Self(Api::namespaced(installed.admin().await, "kube-system"))
    }

    async fn read(&self, key: &str) -> String {
        self.0.get(NAME).await.unwrap().data.unwrap()[key].clone()
    }

    async fn write(&self, key: &str, value: &str) {
        let patch = Patch::Merge(json!({"data": {key: value}}));
        self.0.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
    }
}

async fn name_of(connection: &mut Connection, headers: &[(&str, &str)]) -> Option<Value> {
    let response = connection.send_request(with(who_am_i(), headers)).await;
    (response.status == 201)
        .then(|| response.json()["status"]["kubernetesUserInfo"]["user"]["username"].clone())
}

#[tokio::test]
async fn an_added_or_removed_client_ca_applies_to_the_next_request_on_open_connections() {
    let Some(installed) = installed::alone("a client CA that comes and goes").await else { return };
    let trust = Trust::of(&installed).await;
    let other = Authority::new("another-client-ca").unwrap();
    let pair = other.client("trust-user", None).unwrap();
    let mut connection = Connection::open(&installed, Protocol::Http2, &pair.into()).await;
    assert_eq!(connection.send_request(get("/version")).await.status, 401);

    let before = trust.read("client-ca-file").await;
    trust.write("client-ca-file", &format!("{before}{}", other.certificate_pem)).await;
    let known =
        wait::until(TIME_LIMIT, "the new CA to count", async || name_of(&mut connection, &[]).await).await;
    assert_eq!(known.unwrap(), "trust-user");
    let mut old =
        Connection::open(&installed, Protocol::Http2, &installed.certificate("trust-old", None).into()).await;
    assert_eq!(name_of(&mut old, &[]).await.unwrap(), "trust-old");

    trust.write("client-ca-file", &before).await;
    wait::until(TIME_LIMIT, "the CA to count no longer", async || {
        (connection.send_request(get("/version")).await.status == 401).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(name_of(&mut old, &[]).await.unwrap(), "trust-old");
}

#[tokio::test]
async fn header_names_of_the_front_proxy_follow_the_cluster() {
    let Some(installed) = installed::alone("header names of the front proxy").await else { return };
    let trust = Trust::of(&installed).await;
    let keys = [
        ("requestheader-username-headers", r#"["X-Remote-User","X-Trust-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group","X-Trust-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-","X-Trust-Extra-"]"#),
    ];
    let mut before = Vec::new();
    for (key, _) in keys {
        before.push((key, trust.read(key).await));
    }
    let printed = [
        ("x-trust-user", "trust-front"),
        ("x-trust-group", "g"),
        ("x-trust-extra-k", "v"),
        ("user-agent", "trust-front/1"),
    ];
    let mut connection = Connection::open(&installed, Protocol::Http2, &front_proxy(&installed)).await;
    assert_eq!(name_of(&mut connection, &printed).await, None);
    for (key, value) in keys {
        trust.write(key, value).await;
    }
    let named = wait::until(TIME_LIMIT, "the new header names to count", async || {
        let user = name_of(&mut connection, &printed).await?;
        let group = [("x-trust-user", "u"), ("x-trust-group", "g"), ("x-trust-extra-k", "v")];
        let response = connection.send_request(with(who_am_i(), &group)).await.json();
        let seen = &response["status"]["kubernetesUserInfo"]["user"];
        (seen["groups"][0] == "g" && seen["extra"]["k"][0] == "v").then_some(user)
    });
    assert_eq!(named.await.unwrap(), "trust-front");
    // A user cannot set this header, and it is not forwarded.
    let response = {
        let pair = installed.certificate("trust-client", None);
        let mut client = Connection::open(&installed, Protocol::Http2, &pair.into()).await;
        let printed = [("x-trust-user", "root"), ("user-agent", "trust-client/1")];
        name_of(&mut client, &printed).await
    };
    assert_eq!(response.unwrap(), "trust-client");
    let event = audited(&installed, "trust-client/1").await;
    assert_eq!(event["impersonatedUser"]["username"], "trust-client");

    for (key, value) in before {
        trust.write(key, &value).await;
    }
    wait::until(Duration::from_secs(30), "the old header names to be all", async || {
        name_of(&mut connection, &printed).await.is_none().then_some(())
    })
    .await
    .unwrap();
}
