use k8s_openapi::api::apps::v1::{DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::super::deployment::{Settings, wanted};
use super::super::fixtures::{kubeadm, rke2, settings};
use super::*;

/// Returns the wanted Deployment as an API server stores it: with defaults, a status and additions
/// of other clients.
fn existing() -> Deployment {
    let mut value = serde_json::to_value(wanted(&settings(), &kubeadm())).unwrap();
    value["metadata"]["uid"] = json!("uid-1");
    value["metadata"]["resourceVersion"] = json!("7");
    value["metadata"]["annotations"] = json!({"deployment.kubernetes.io/revision": "1"});
    value["metadata"]["labels"]["others"] = json!("x");
    value["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "c", "uid": "u"}]);
    let spec = &mut value["spec"];
    spec["progressDeadlineSeconds"] = json!(600);
    spec["revisionHistoryLimit"] = json!(10);
    spec["strategy"] =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
    let pod = &mut spec["template"]["spec"];
    pod["dnsPolicy"] = json!("ClusterFirst");
    pod["schedulerName"] = json!("default-scheduler");
    pod["serviceAccount"] = json!("agent-account");
    pod["containers"][0]["terminationMessagePath"] = json!("/dev/termination-log");
    pod["containers"][0]["resources"]["limits"]["memory"] = json!("33554432");
    value["status"] = json!({"replicas": 1, "readyReplicas": 1});
    serde_json::from_value(value).unwrap()
}

fn changed(change: impl FnOnce(&mut DeploymentSpec)) -> Deployment {
    let mut existing = existing();
    let mut spec = serde_json::from_value(existing.spec).unwrap();
    change(&mut spec);
    existing.spec = serde_json::to_value(spec).unwrap();
    existing
}

fn pod(spec: &mut DeploymentSpec) -> &mut PodSpec {
    spec.template.spec.as_mut().unwrap()
}

fn step_to(existing: &Deployment, settings: &Settings) -> Step {
    step(Some(existing), wanted(settings, &kubeadm()))
}

#[test]
fn a_missing_deployment_is_created() {
    let wanted = wanted(&settings(), &kubeadm());
    assert_eq!(step(None, wanted.clone()), Step::Create(Box::new(wanted)));
}

#[test]
fn defaults_and_additions_of_other_clients_are_not_a_difference() {
    assert_eq!(step_to(&existing(), &settings()), Step::Nothing);
    let more_mounts = changed(|spec| {
        let mounts = pod(spec).containers[0].volume_mounts.get_or_insert_default();
        let mut injected = mounts[0].clone();
        injected.name = "injected".to_owned();
        mounts.push(injected);
    });
    assert_eq!(step_to(&more_mounts, &settings()), Step::Nothing);
}

#[test]
fn a_difference_replaces_the_spec_and_keeps_additions_to_the_metadata() {
    let existing = changed(|spec| spec.replicas = Some(0));
    let Step::Replace(updated) = step_to(&existing, &settings()) else { panic!("no update") };
    let wanted = wanted(&settings(), &kubeadm());
    assert_eq!(updated.spec, wanted.spec);
    assert_eq!(updated.metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(updated.metadata.owner_references, existing.metadata.owner_references);
    assert_eq!(updated.metadata.annotations, existing.metadata.annotations);
    let labels = updated.metadata.labels.unwrap();
    assert_eq!(
        labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>(),
        ["app=a", "more=b", "others=x"]
    );
}

#[test]
fn every_wanted_field_is_repaired() {
    type Change = fn(&mut DeploymentSpec);
    let changes: [(&str, Change); 14] = [
        ("replicas", |spec| spec.replicas = Some(2)),
        ("minReadySeconds", |spec| spec.min_ready_seconds = None),
        ("image", |spec| pod(spec).containers[0].image = Some("other".to_owned())),
        ("command", |spec| pod(spec).containers[0].command = Some(vec!["sh".to_owned()])),
        ("env", |spec| pod(spec).containers[0].env.as_mut().unwrap()[0].value = Some("/x".to_owned())),
        ("limits", |spec| {
            let resources = pod(spec).containers[0].resources.as_mut().unwrap();
            resources.limits.as_mut().unwrap().insert("cpu".to_owned(), Quantity("1".to_owned()));
        }),
        ("requests", |spec| pod(spec).containers[0].resources.as_mut().unwrap().requests = None),
        ("nodeName", |spec| pod(spec).node_name = Some("elsewhere".to_owned())),
        ("tolerations", |spec| pod(spec).tolerations = None),
        ("hostNetwork", |spec| pod(spec).host_network = None),
        ("hostPID", |spec| pod(spec).host_pid = Some(true)),
        ("automount", |spec| pod(spec).automount_service_account_token = None),
        ("user", |spec| pod(spec).security_context.as_mut().unwrap().run_as_user = Some(1)),
        ("mount", |spec| {
            // A mount that is not read-only must match exactly too.
            pod(spec).containers[0].volume_mounts.as_mut().unwrap()[1].read_only = Some(true);
        }),
    ];
    for (what, change) in changes {
        let existing = changed(change);
        assert!(matches!(step_to(&existing, &settings()), Step::Replace(_)), "{what}");
    }
    let moved = step(Some(&existing()), wanted(&settings(), &rke2()));
    assert!(matches!(moved, Step::Replace(_)), "another template");
}

#[test]
fn labels_of_the_deployment_are_repaired() {
    let mut existing = existing();
    existing.metadata.labels.as_mut().unwrap().remove("more");
    assert!(matches!(step_to(&existing, &settings()), Step::Replace(_)));
}

#[test]
fn four_members_must_match_exactly() {
    let with_class = Settings { priority_class_name: "high".to_owned(), ..settings() };
    let classy = changed(|spec| pod(spec).priority_class_name = Some("high".to_owned()));
    assert!(matches!(step_to(&existing(), &with_class), Step::Replace(_)), "class added");
    assert_eq!(step_to(&classy, &with_class), Step::Nothing);
    assert!(matches!(step_to(&classy, &settings()), Step::Replace(_)), "class taken away");

    let labelled = changed(|spec| {
        let labels = spec.template.metadata.as_mut().unwrap().labels.as_mut().unwrap();
        labels.insert("app".to_owned(), "a".to_owned());
    });
    assert!(matches!(step_to(&labelled, &settings()), Step::Replace(_)), "a label too many");

    let recreate = Settings { deployment_strategy_type: Some("Recreate".to_owned()), ..settings() };
    let recreated = changed(|spec| {
        spec.strategy =
            Some(DeploymentStrategy { type_: Some("Recreate".to_owned()), ..DeploymentStrategy::default() });
    });
    assert!(matches!(step_to(&existing(), &recreate), Step::Replace(_)), "strategy set");
    assert_eq!(step_to(&recreated, &recreate), Step::Nothing);
    assert!(matches!(step_to(&recreated, &settings()), Step::Replace(_)), "strategy taken away");
    let rolling = Settings { deployment_strategy_type: Some("RollingUpdate".to_owned()), ..settings() };
    assert_eq!(step_to(&existing(), &rolling), Step::Nothing, "the default by its name");
}

#[test]
fn another_selector_recreates_the_deployment() {
    let old = changed(|spec| {
        // A selector as in old versions.
        spec.selector.match_labels.as_mut().unwrap().insert("app".to_owned(), "a".to_owned());
    });
    let wanted = wanted(&settings(), &kubeadm());
    let id = ObjectId { uid: "uid-1".to_owned(), resource_version: "7".to_owned() };
    assert_eq!(step_to(&old, &settings()), Step::Recreate(id, Box::new(wanted)));
}
