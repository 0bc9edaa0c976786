//! Renders the chart in `deploy/chart` with the real Helm, and compares it with the manifests and
//! with kustomize.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Output};

use pinniped_test_support::tools::{self, helm};
use serde_json::{Value, json};

use crate::{difference, documents};

const CHART: &str = "deploy/chart";
/// The values from which the manifests are rendered.
const MANIFESTS: &str = "ci/manifests-values.yaml";
/// Flag with which Helm assumes that the cluster has the definition of the CredentialIssuer.
pub(crate) const DEFINED: &str = "--api-versions=config.concierge.pinniped.dev/v1alpha1/CredentialIssuer";
const CREDENTIAL_ISSUER: &str = "CredentialIssuer pinniped-concierge-config";
pub(crate) const CONFIGURATION: &str = "ConfigMap pinniped-concierge/pinniped-concierge-config";

type Objects = BTreeMap<String, Value>;

fn run(program: &PathBuf, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).current_dir(documents::path(CHART)).output();
    output.unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Runs a program in the chart's folder and returns its output.
fn succeed(program: &PathBuf, args: &[&str]) -> String {
    let output = run(program, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Renders the chart as a release in the namespace of the manifests.
pub(crate) fn render(helm: &PathBuf, args: &[&str]) -> Vec<Value> {
    let release = ["template", "pinniped-concierge", ".", "--namespace=pinniped-concierge"];
    documents::parse(&succeed(helm, &[&release, args].concat()), &format!("{args:?}"))
}

fn hook(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"]["helm.sh/hook"].as_str()
}

/// Returns the objects of the release itself, which has no hooks for them.
fn objects(helm: &PathBuf, args: &[&str]) -> Objects {
    let objects = render(helm, args).into_iter();
    documents::by_identity(objects.filter(|object| hook(object).is_none()).collect())
}

/// Returns all objects of the manifests.
fn manifests() -> Objects {
    let mut files: Vec<_> = std::fs::read_dir(documents::path("deploy"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    files.sort();
    assert!(files.len() > 5 && files.iter().all(|name| name.starts_with("install-")), "{files:?}");
    documents::by_identity(files.iter().flat_map(|name| documents::all(&format!("deploy/{name}"))).collect())
}

fn assert_same(what: &str, wanted: &Objects, found: &Objects) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(wanted), names(found), "{what}");
    for (identity, object) in wanted {
        difference::assert_exactly(identity, &difference::of(object, &found[identity]), &[]);
    }
}

/// Removes the labels for tools from an object and from the template of its pods.
fn without_tool_labels(mut object: Value) -> Value {
    for path in ["/metadata", "/spec/template/metadata"] {
        if let Some(labels) = object.pointer_mut(&format!("{path}/labels")).and_then(Value::as_object_mut) {
            labels.retain(|label, _| !for_tools(label));
            if labels.is_empty() {
                object.pointer_mut(path).unwrap().as_object_mut().unwrap().remove("labels");
            }
        }
    }
    object
}

fn for_tools(label: &str) -> bool {
    label.starts_with("app.kubernetes.io/") || label == "helm.sh/chart"
}

#[test]
fn the_manifests_are_the_chart_rendered_for_kubectl() {
    let Some(helm) = helm("the manifests are the chart") else { return };
    assert_same("manifests", &manifests(), &objects(&helm, &["--values", MANIFESTS, DEFINED]));
}

#[test]
fn the_copies_for_kustomize_are_the_manifests() {
    let manifests = manifests();
    let copies = [
        "base/definitions.yaml",
        "base/concierge.yaml",
        "components/service-account-tokens/objects.yaml",
        "components/local-user-authenticator/objects.yaml",
        "components/gateway/objects.yaml",
    ];
    for copy in copies {
        let copied = documents::by_identity(documents::all(&format!("deploy/kustomize/{copy}")));
        assert!(!copied.is_empty(), "{copy}");
        for (identity, object) in copied {
            assert_eq!(manifests.get(&identity), Some(&object), "{copy}: {identity}");
        }
    }
}

#[test]
fn kustomize_and_the_chart_render_the_same_objects() {
    let Some(helm) = helm("kustomize renders the objects of the chart") else { return };
    let kubectl = tools::control_plane().unwrap().join("kubectl");
    let off = "--set=crds.legacy=false,gateway.legacy=false";
    let alone = "--set=serviceAccountTokens.enabled=false,localUserAuthenticator.enabled=false,\
                 gateway.enabled=false,crds.httpProxy=false,crds.tlsCertificateDelegation=false";
    let table: [(&str, &[&str]); 4] = [
        ("base", &[alone]),
        ("overlays/restricted", &[alone, "--set=config.kubeCertAgent.enabled=false"]),
        ("overlays/demo", &[alone, "--set=localUserAuthenticator.enabled=true"]),
        ("overlays/complete", &[]),
    ];
    for (folder, values) in table {
        let path = documents::path("deploy/kustomize").join(folder);
        let kustomized = succeed(&kubectl, &["kustomize", path.to_str().unwrap()]);
        let kustomized = documents::parse(&kustomized, folder).into_iter().map(without_tool_labels);
        let rendered = objects(&helm, &[&["--values", MANIFESTS, DEFINED, off], values].concat());
        assert_same(folder, &rendered, &documents::by_identity(kustomized.collect()));
    }
}

#[test]
fn a_release_differs_from_the_manifests_only_in_the_marks_of_helm() {
    let Some(helm) = helm("a release has the objects of the manifests") else { return };
    let manifests = manifests();
    let mut kept = Vec::new();
    for (identity, mut object) in objects(&helm, &[DEFINED]) {
        let path = match identity.as_str() {
            "ClusterRole pinniped-concierge-metrics-reader" => Some("/metrics"),
            "ClusterRole pinniped-concierge-debug-state-reader" => Some("/debug/state"),
            _ => None,
        };
        if let Some(path) = path {
            let rules = json!([{"nonResourceURLs": [path], "verbs": ["get"]}]);
            assert_eq!(object["rules"], rules);
            continue;
        }
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm", "{identity}");
        for path in ["/metadata", "/spec/template/metadata"] {
            let Some(metadata) = object.pointer_mut(path).and_then(Value::as_object_mut) else { continue };
            let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
                continue;
            };
            annotations.remove("checksum/config");
            if annotations.remove("helm.sh/resource-policy").is_some_and(|policy| policy == "keep") {
                kept.push(identity.clone());
            }
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
        assert_eq!(without_tool_labels(object), manifests[&identity], "{identity}");
    }
    assert_eq!(
        kept,
        [
            CREDENTIAL_ISSUER,
            "CustomResourceDefinition credentialissuers.config.concierge.pinniped.dev",
            "CustomResourceDefinition jwtauthenticators.authentication.concierge.pinniped.dev",
            "CustomResourceDefinition webhookauthenticators.authentication.concierge.pinniped.dev",
        ]
    );
}

/// Helm cannot install an object whose definition is in the same release.
#[test]
fn the_credential_issuer_is_created_by_a_hook_until_its_definition_is_served() {
    let Some(helm) = helm("the CredentialIssuer of a first install") else { return };
    let hooks = |args: &[&str]| -> Vec<String> {
        let objects = render(&helm, args).into_iter().filter(|o| o["kind"] == "CredentialIssuer");
        objects.map(|object| hook(&object).unwrap_or("none").to_owned()).collect()
    };
    assert_eq!(hooks(&[]), ["post-install,post-upgrade", "post-delete"]);
    assert_eq!(hooks(&[DEFINED]), ["none", "post-delete"]);
    // Without the definition, the object cannot be created to be deleted.
    assert_eq!(hooks(&[DEFINED, "--set=crds.keep=false"]), ["none"]);
    assert_eq!(hooks(&["--set=credentialIssuer.create=false"]), [""; 0]);
    let created = render(&helm, &[]).into_iter().find(|o| hook(o) == Some("post-install,post-upgrade"));
    let metadata = &created.unwrap()["metadata"];
    // The marks of the release, which make it a regular object at the next upgrade.
    assert_eq!(metadata["labels"]["app.kubernetes.io/managed-by"], "Helm");
    assert_eq!(metadata["annotations"]["meta.helm.sh/release-name"], "pinniped-concierge");
    assert_eq!(metadata["annotations"]["meta.helm.sh/release-namespace"], "pinniped-concierge");
}

#[test]
fn no_selector_has_a_label_of_tools_or_of_values() {
    let Some(helm) = helm("labels of selectors") else { return };
    let mut selectors = 0;
    for (identity, object) in objects(&helm, &["--values=ci/all-values.yaml", DEFINED]) {
        assert_eq!(object["metadata"]["labels"]["example.com/team"], "access", "{identity}");
        for path in ["/spec/selector/matchLabels", "/spec/selector", "/spec/podSelector/matchLabels"] {
            let Some(selector) = object.pointer(path).and_then(Value::as_object) else { continue };
            if selector.contains_key("matchLabels") {
                continue;
            }
            selectors += 1;
            let labels: Vec<_> = selector.keys().collect();
            let known = ["app", "deployment.pinniped.dev", "kube-cert-agent.pinniped.dev"];
            assert!(labels.iter().all(|label| known.contains(&label.as_str())), "{identity}: {labels:?}");
        }
    }
    // Three Deployments, four Services, two budgets, three policies, two monitors.
    assert_eq!(selectors, 14);
}

#[test]
fn the_image_is_named_once() {
    let Some(helm) = helm("the image of all pods") else { return };
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let table = [
        (String::new(), pinniped_image::REFERENCE.to_owned()),
        (
            format!("--set=image.repository=example.com/p,image.tag=v1,image.digest={digest}"),
            format!("example.com/p:v1@{digest}"),
        ),
    ];
    for (values, wanted) in table {
        let args = ["--values", MANIFESTS, DEFINED, &values];
        let objects = objects(&helm, &args[..args.len() - usize::from(values.is_empty())]);
        // The agent has the image of the Concierge's container.
        assert!(objects[CONFIGURATION]["data"]["pinniped.yaml"]["kubeCertAgent"].get("image").is_none());
        let images = objects.values().filter_map(|o| o.pointer("/spec/template/spec/containers/0/image"));
        assert_eq!(images.collect::<Vec<_>>(), vec![wanted.as_str(); 3]);
    }
}

/// Every key of the page is set in `ci/all-values.yaml`, or has a default in the chart.
#[test]
fn every_setting_of_the_reference_page_is_a_value() {
    let Some(helm) = helm("settings of the Concierge as values") else { return };
    let objects = objects(&helm, &["--values=ci/all-values.yaml", DEFINED]);
    let configuration = &objects[CONFIGURATION]["data"]["pinniped.yaml"];
    let page = documents::text("docs/reference/configuration.md");
    let table = page.lines().skip_while(|line| !line.starts_with("| Key |")).skip(2);
    let mut keys = 0;
    for row in table.take_while(|line| line.starts_with('|')) {
        let cell = row.split('|').nth(1).unwrap();
        let mut parent = "";
        for name in cell.split('`').skip(1).step_by(2) {
            let path = match name.strip_prefix('.') {
                Some(name) => format!("{parent}.{name}"),
                None => name.to_owned(),
            };
            parent = name.rsplit_once('.').map_or(parent, |(parent, _)| parent);
            let pointer = format!("/{}", path.trim_end_matches(".*").replace('.', "/"));
            assert!(configuration.pointer(&pointer).is_some(), "{path} of {row}");
            keys += 1;
        }
    }
    assert!(keys > 25, "{keys}");
}

#[test]
fn the_files_of_the_audit_log_fit_into_its_volume_by_default() {
    let Some(helm) = helm("the files of the audit log") else { return };
    let audit = "config.audit.proxiedRequests";
    let values =
        [format!("--set={audit}.policy.rules[0].level=Metadata"), format!("--set={audit}.log.path=/d/a")];
    let objects = objects(&helm, &["--values", MANIFESTS, DEFINED, &values[0], &values[1]]);
    let log = &objects[CONFIGURATION]["data"]["pinniped.yaml"]["audit"]["proxiedRequests"]["log"];
    // The default size of the Concierge.
    let megabytes = log.get("maxSizeMegabytes").map_or(100, |size| size.as_u64().unwrap());
    assert!((log["maxBackups"].as_u64().unwrap() + 1) * megabytes < 1 << 10, "{log}");
}

#[test]
fn recordings_and_the_audit_log_have_the_volume_of_the_values_and_only_if_they_are_written() {
    let Some(helm) = helm("the volumes of recordings and of the audit log") else { return };
    let concierge = "Deployment pinniped-concierge/pinniped-concierge";
    let recording = ["config.recording.sessions", "directory=/data", "recordings", "2Gi"];
    let audit = ["config.audit.proxiedRequests", "log.path=/data/audit.log", "audit-log", "1Gi"];
    for [key, path, name, size] in [recording, audit] {
        let path = format!("--set={key}.{path}");
        let policy = "--set=config.audit.proxiedRequests.policy.rules[0].level=Metadata";
        let claim = format!("--set={key}.volume.persistentVolumeClaim.claimName=c");
        for (values, wanted) in [
            (vec![], None),
            (vec![&*path, policy], Some(json!({"name": name, "emptyDir": {"sizeLimit": size}}))),
            // A default volume would be merged with this one.
            (
                vec![&*path, policy, &*claim],
                Some(json!({"name": name, "persistentVolumeClaim": {"claimName": "c"}})),
            ),
        ] {
            let objects = objects(&helm, &[&["--values", MANIFESTS, DEFINED], &values[..]].concat());
            let pod = &objects[concierge]["spec"]["template"]["spec"];
            let named =
                |list: &Value| list.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned();
            let mount = named(&pod["containers"][0]["volumeMounts"]);
            let mount = mount.as_ref().map(|mount| mount["mountPath"].as_str().unwrap());
            assert_eq!(mount, wanted.as_ref().map(|_| "/data"), "{values:?}");
            assert_eq!(named(&pod["volumes"]), wanted, "{values:?}");
            let group = pod["securityContext"]["fsGroup"].as_u64();
            assert_eq!(group, wanted.as_ref().map(|_| 65532), "{values:?}");
        }
    }
}

#[test]
fn values_with_unknown_names_or_wrong_types_are_refused() {
    let Some(helm) = helm("the schema of the values") else { return };
    for (value, message) in [
        ("concierge.replica=3", "replica"),
        ("config.maxConnection=3", "maxConnection"),
        ("config.credentialLifetimeSeconds=1", "credentialLifetimeSeconds"),
        ("config.kubeCertAgent.deploymentStrategyType=Never", "deploymentStrategyType"),
        ("concierge.replicas=two", "replicas"),
        ("image.digest=latest", "digest"),
        ("name=Not_A_Name", "name"),
        ("config.recording.sessions.mode=required", "directory is required with mode"),
        ("config.audit.proxiedRequests.webhook.kubeconfigSecret=a", "policy is required"),
    ] {
        let output = run(&helm, &["template", "pinniped-concierge", ".", "--set", value]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(message), "{value}: {errors}");
    }
}

#[test]
fn helm_lints_the_chart_with_each_file_of_values() {
    let Some(helm) = helm("lint of the chart") else { return };
    succeed(&helm, &["lint", "--strict", "."]);
    for file in [MANIFESTS, "ci/restricted-values.yaml", "ci/all-values.yaml"] {
        succeed(&helm, &["lint", "--strict", ".", "--values", file]);
    }
}

#[test]
fn without_the_agent_the_namespace_is_restricted_and_nothing_can_be_executed() {
    let Some(helm) = helm("the restricted variant") else { return };
    let objects = objects(&helm, &["--values=ci/restricted-values.yaml", DEFINED]);
    let namespace = &objects["Namespace pinniped-concierge"]["metadata"]["labels"];
    assert_eq!(namespace["pod-security.kubernetes.io/enforce"], "restricted");
    for (identity, object) in &objects {
        assert!(!identity.contains("kube-cert-agent"), "{identity}");
        assert!(object["metadata"]["namespace"] != "kube-system" || object["rules"].is_null(), "{identity}");
        for rule in object["rules"].as_array().into_iter().flatten() {
            let names = |field: &str, name: &str| {
                rule[field].as_array().is_some_and(|all| all.iter().any(|one| one == name))
            };
            assert!(!names("resources", "pods/exec"), "{identity}: {rule}");
            assert!(!(names("resources", "deployments") && names("verbs", "create")), "{identity}: {rule}");
        }
    }
}

#[test]
fn a_second_concierge_has_names_groups_and_labels_of_its_own() {
    let Some(helm) = helm("names of a second Concierge") else { return };
    let args = [
        "--set=name=other,config.apiGroupSuffix=example.com,serviceAccountTokens.enabled=true",
        "--api-versions=config.concierge.example.com/v1alpha1/CredentialIssuer",
    ];
    let known = |text: &str| {
        // The program, the namespace of this release, and annotations that only name a purpose.
        text.replace("ghcr.io/pinniped-rs/pinniped-server", "")
            .replace("pinniped-concierge", "")
            .replace("deployment.pinniped.dev", "")
            .replace("impersonation-proxy.concierge.pinniped.dev/serviceaccount", "")
    };
    for (identity, object) in objects(&helm, &args) {
        assert_eq!(object["metadata"]["labels"]["app"], "other", "{identity}");
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(!name.contains("pinniped") || name.ends_with(".concierge.example.com"), "{identity}");
        assert!(!known(&object.to_string()).contains("pinniped.dev"), "{identity}: {object}");
    }
}
