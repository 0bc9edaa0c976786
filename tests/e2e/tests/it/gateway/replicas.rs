//! Two replicas: both serve, one writes statuses. And a pod that cannot start.

use std::collections::BTreeSet;

use anyhow::ensure;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use super::backend::Backend;
use super::environment::{self, APP};
use crate::installed::TIME_LIMIT;

#[tokio::test]
async fn both_replicas_serve_and_the_leader_alone_writes_statuses() {
    let Some(environment) = environment::shared("replicas").await else { return };
    let leader = async || environment.leader().await;
    let leader = environment.check(wait::until_ok(TIME_LIMIT, "a leader", leader).await);
    let web = Backend::plain("web").await;
    let mut objects = environment.service("web", web.address);
    for number in 0..3 {
        let host = environment.host(&format!("web{number}"));
        objects.push(environment.secret(&format!("cert{number}"), &environment.serving("web", &host)));
        let tls = json!({"secretName": format!("cert{number}")});
        objects.push(environment.proxy(
            &format!("web{number}"),
            json!({"virtualhost": {"fqdn": host, "tls": tls}, "routes": [{"services": [{"name": "web", "port": 80}]}]}),
        ));
    }
    environment.apply(&objects).await;
    for number in 0..3 {
        environment
            .await_served(&environment.host(&format!("web{number}")), "web", "web to nobody about /")
            .await;
        environment.await_status(&format!("web{number}"), "valid", "Valid HTTPProxy").await;
    }

    // The requests that the API server received, by pod.
    let account = format!("system:serviceaccount:{APP}:{APP}");
    let mut writers = BTreeSet::new();
    for event in environment.world.control_plane().audit_events(&account).unwrap() {
        let about = &event["objectRef"];
        let reads = matches!(event["verb"].as_str(), Some("get" | "list" | "watch"));
        if event["user"]["username"] != account.as_str() || reads || about["resource"] == "leases" {
            continue;
        }
        assert_eq!((&about["subresource"], &event["verb"]), (&json!("status"), &json!("update")), "{event}");
        if about["namespace"] == environment.namespace.as_str() {
            let pod = &event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
            writers.insert(pod.as_str().unwrap().to_owned());
        }
    }
    assert_eq!(writers, BTreeSet::from([leader]));
    for (name, pod) in environment.running() {
        let door = pod.ip.unwrap();
        assert!(
            environment.metric(door, "pinniped_gateway_requests_total").await > 0,
            "{name} served no request"
        );
        assert_eq!(environment.admin(door, "/readyz").await.unwrap().status, 200, "{name}");
    }
}

#[tokio::test]
async fn the_manifest_grants_every_permission_that_the_program_needs() {
    let Some(environment) = environment::shared("rights").await else { return };
    environment.check(wait::until_ok(TIME_LIMIT, "a leader", async || environment.leader().await).await);
    let account = format!("system:serviceaccount:{APP}:{APP}");
    let refused: Vec<Value> = environment
        .world
        .control_plane()
        .audit_events(&account)
        .unwrap()
        .into_iter()
        .filter(|event| {
            let group = event["objectRef"]["apiGroup"].as_str().unwrap_or_default();
            // The kinds of Contour's first releases are in a separate manifest.
            let legacy = matches!(group, "contour.heptio.com" | "contour.vmware.com");
            event["user"]["username"] == account.as_str() && event["responseStatus"]["code"] == 403 && !legacy
        })
        .collect();
    // A pod may start before its role bindings take effect: requests that were refused then are
    // allowed by now.
    for event in refused {
        let about = &event["objectRef"];
        let text = |field: &str| about[field].as_str().unwrap_or_default().to_owned();
        let group = text("apiGroup");
        let resource =
            if group.is_empty() { text("resource") } else { format!("{}.{group}", text("resource")) };
        let namespace = format!("--namespace={}", text("namespace"));
        let subresource = format!("--subresource={}", text("subresource"));
        let as_account = format!("--as={account}");
        let send_request = [
            "auth",
            "can-i",
            event["verb"].as_str().unwrap_or_default(),
            &resource,
            &namespace,
            &subresource,
            &as_account,
        ];
        let allowed = environment.world.kubectl().run(&send_request).await.unwrap();
        assert_eq!(allowed.stdout.trim(), "yes", "{event}");
    }
}

#[tokio::test]
async fn a_port_in_use_terminates_the_program_with_an_error_that_names_the_address() {
    let Some(environment) = environment::shared("ports").await else { return };
    let path = tools::repository().join("deploy/install-pinniped-gateway.yaml").display().to_string();
    let read = ["create", "--dry-run=client", "-o", "json", "-f", &path];
    let read = environment.world.kubectl().output(&read).await.unwrap();
    let mut documents = serde_json::Deserializer::from_str(&read)
        .into_iter::<Value>()
        .map(Result::unwrap)
        .flat_map(|document| match document["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![document],
        });
    let mut deployment = documents.find(|document| document["kind"] == "Deployment").unwrap();
    // An additional pod with its own labels, so that no Service selects it.
    let name = "twice";
    deployment["metadata"]["name"] = json!(name);
    deployment["spec"]["replicas"] = json!(1);
    deployment["spec"]["selector"]["matchLabels"]["app"] = json!(name);
    deployment["spec"]["template"]["metadata"]["labels"]["app"] = json!(name);
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["args"] = json!(["--envoy-service-http-port=8443"]);
    environment.world.kubectl().apply(&deployment.to_string()).await.unwrap();
    let wanted = "could not listen on 0.0.0.0:8443";
    let waited = wait::until_ok(TIME_LIMIT, format!("{wanted:?} in the log"), async || {
        let pods = environment.pods.list(APP);
        let (_, pod) = pods.iter().find(|(pod, _)| pod.starts_with(name)).ok_or(anyhow::anyhow!("no pod"))?;
        let log = std::fs::read_to_string(&pod.log)?;
        ensure!(log.contains(wanted) && log.contains("container ended: exit status: 1"), "{log}");
        ensure!(!pod.ready, "it is ready");
        Ok(())
    });
    let output = waited.await;
    environment.world.kubectl().output(&["delete", "deployment", name, "-n", APP]).await.unwrap();
    environment.check(output);
}
