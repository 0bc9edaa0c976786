//! No request of one client ends the watch of another client.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pinniped_e2e::bystanders::{self, Bystanders, Report, Resets, Target};
use serde_json::json;

use crate::installed::{self, Installed};

const SEED: u64 = 19;

/// Creates a namespace with a ConfigMap that the bystanders watch, and an attacker with permission
/// to watch it, too.
async fn prepare(installed: &Installed, name: &str) -> (Target, Bystanders) {
    installed.namespace(name).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    let [bystander, attacker] = ["bystander", "attacker"].map(|who| format!("{name}-{who}"));
    installed.allow(&bystander, rules.clone()).await;
    installed.allow(&attacker, rules).await;
    let pod = installed.running().into_iter().find_map(|(_, pod)| pod.ip).expect("a pod runs");
    let target = Target {
        address: SocketAddr::from((pod, 8444)),
        attacker: installed.certificate(&attacker, None),
        seed: SEED,
    };
    touch(installed, name, 0).await;
    let path =
        format!("/api/v1/namespaces/{name}/configmaps?watch=true&fieldSelector=metadata.name%3Dwatched");
    let pair = installed.certificate(&bystander, None);
    let bystanders = Bystanders::open(&target, &pair, &path, 4, 5).await.unwrap();
    (target, bystanders)
}

async fn touch(installed: &Installed, namespace: &str, value: usize) {
    let maps = Api::<ConfigMap>::namespaced(installed.admin().await, namespace);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"},
        "data": {"value": value.to_string()}});
    maps.patch("watched", &PatchParams::apply("bystanders"), &Patch::Apply(map)).await.unwrap();
}

/// Checks that all watches are open and receive the next event.
async fn unharmed(installed: &Installed, namespace: &str, bystanders: &mut Bystanders) {
    bystanders.check().unwrap();
    let before = bystanders.received();
    touch(installed, namespace, 1).await;
    bystanders.all_receive("a change", &before).await.unwrap();
    bystanders.check().unwrap();
}

#[tokio::test]
async fn no_known_attack_ends_the_watch_of_another_user() {
    let Some(installed) = installed::shared("known attacks").await else { return };
    let (target, mut bystanders) = prepare(&installed, "known-attacks").await;
    let mut report = Report::default();
    let output = bystanders::attack(&target, &mut bystanders, 3, &mut report).await;
    println!("{report}");
    output.unwrap();
    unharmed(&installed, "known-attacks", &mut bystanders).await;
    report.attacks_arrived().unwrap();
    assert_eq!(report.count("backslashes over HTTP/1.1", 200), 0, "{report}");
}

#[tokio::test]
async fn trailers_behind_a_body_that_is_not_read_end_no_watch_of_another_user() {
    let Some(installed) = installed::shared("unread trailers").await else { return };
    let (target, mut bystanders) = prepare(&installed, "unread-trailers").await;
    let mut report = Report::default();
    let output = bystanders::trailers(&target, &mut bystanders, 800, 16, &mut report).await;
    println!("{report}");
    output.unwrap();
    unharmed(&installed, "unread-trailers", &mut bystanders).await;
    report.attacks_arrived().unwrap();
}

#[tokio::test]
async fn no_generated_request_ends_the_watch_of_another_user() {
    let Some(installed) = installed::shared("generated requests").await else { return };
    let (target, mut bystanders) = prepare(&installed, "generated-requests").await;
    println!("seed {SEED}");
    let mut report = Report::default();
    let output = bystanders::fuzz(&target, &mut bystanders, 400, 8, &mut report).await;
    println!("{report}");
    output.unwrap();
    unharmed(&installed, "generated-requests", &mut bystanders).await;
    report.attacks_arrived().unwrap();
}

#[tokio::test]
async fn a_client_that_opens_and_resets_at_a_steady_pace_ends_no_watch_of_another_user() {
    let Some(installed) = installed::shared("rapid resets").await else { return };
    let (target, mut bystanders) = prepare(&installed, "rapid-resets").await;
    for path in ["/api/v1/namespaces/rapid-resets/configmaps?watch=true", "/api/v1/configmaps"] {
        let resets =
            Resets { path: path.to_owned(), batch: 90, count: 3_000, pause: Duration::from_millis(20) };
        let done = bystanders::resets(&target, &resets).await.unwrap();
        println!("{path}: {done:?}");
        bystanders.check().unwrap();
    }
    unharmed(&installed, "rapid-resets", &mut bystanders).await;
}
