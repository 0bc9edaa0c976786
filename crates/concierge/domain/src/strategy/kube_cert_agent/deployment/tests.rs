use serde_json::{Value, json};

use super::super::fixtures::{kubeadm, pod, rke2, settings};
use super::*;

fn environment(pod: &Pod) -> (String, String) {
    let wanted = wanted(&settings(), pod);
    let variables = &wanted.spec["template"]["spec"]["containers"][0]["env"];
    assert_eq!(variables.as_array().unwrap().len(), 2);
    let value = |index: usize, name: &str| {
        assert_eq!(variables[index]["name"], name);
        variables[index]["value"].as_str().unwrap().to_owned()
    };
    (value(0, "CERT_PATH"), value(1, "KEY_PATH"))
}

#[test]
fn the_agent_runs_beside_kubeadms_controller_manager() {
    let wanted = serde_json::to_value(wanted(&settings(), &kubeadm())).unwrap();
    let model = kubeadm().spec.unwrap();
    assert_eq!(
        wanted,
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "agent", "namespace": "concierge", "labels": {"app": "a", "more": "b"}},
            "spec": {
                "replicas": 1,
                "minReadySeconds": 10,
                "selector": {"matchLabels": {"kube-cert-agent.pinniped.dev": "v3"}},
                "template": {
                    "metadata": {"labels": {"kube-cert-agent.pinniped.dev": "v3", "more": "b"}},
                    "spec": {
                        "automountServiceAccountToken": false,
                        "containers": [{
                            "name": "sleeper",
                            "image": "image:1",
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["pinniped-concierge-kube-cert-agent", "sleep"],
                            "env": [
                                {"name": "CERT_PATH", "value": "/etc/kubernetes/pki/ca.crt"},
                                {"name": "KEY_PATH", "value": "/etc/kubernetes/pki/ca.key"},
                            ],
                            "resources": {
                                "limits": {"cpu": "20m", "memory": "32Mi"},
                                "requests": {"cpu": "0", "memory": "32Mi"},
                            },
                            "volumeMounts": model.containers.unwrap()[0].volume_mounts,
                        }],
                        "hostNetwork": true,
                        "nodeName": "kind-control-plane",
                        "restartPolicy": "Always",
                        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
                        "serviceAccountName": "agent-account",
                        "terminationGracePeriodSeconds": 0,
                        "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
                        "volumes": model.volumes,
                    },
                },
            },
        })
    );
}

#[test]
fn the_deployment_follows_the_configuration() {
    let settings = Settings {
        labels: BTreeMap::new(),
        image_pull_secrets: vec!["one".to_owned(), "two".to_owned()],
        priority_class_name: "important".to_owned(),
        run_as_user: Some(1),
        run_as_group: Some(2),
        deployment_strategy_type: Some("Recreate".to_owned()),
        ..settings()
    };
    let wanted = serde_json::to_value(wanted(&settings, &rke2())).unwrap();
    let (spec, pod) = (&wanted["spec"], &wanted["spec"]["template"]["spec"]);
    assert_eq!(wanted["metadata"].get("labels"), None);
    assert_eq!(spec["template"]["metadata"]["labels"], json!({"kube-cert-agent.pinniped.dev": "v3"}));
    assert_eq!(spec["strategy"], json!({"type": "Recreate"}));
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "one"}, {"name": "two"}]));
    assert_eq!(pod["priorityClassName"], "important");
    assert_eq!(pod["securityContext"], json!({"runAsUser": 1, "runAsGroup": 2, "runAsNonRoot": true}));
}

#[test]
fn an_explicit_user_id_of_zero_is_root() {
    let settings = Settings { run_as_user: Some(0), ..settings() };
    let spec = wanted(&settings, &kubeadm()).spec;
    let context = &spec["template"]["spec"]["securityContext"];
    assert_eq!(*context, json!({"runAsUser": 0, "runAsGroup": 0}));
}

#[test]
fn copied_members_are_complete_including_unknown_fields() {
    let copied = json!({
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "a", "operator": "of a later version"}],
        "volumes": [{"name": "a", "kindOfALaterVersion": {"deep": [1, {"er": null}]}}],
    });
    let mounts = json!([{"name": "a", "mountPath": "/a", "modeOfALaterVersion": "x"}]);
    let mut model = copied.clone();
    model["containers"] = json!([{"name": "kube-controller-manager", "volumeMounts": mounts}]);
    let spec = wanted(&settings(), &pod(json!({"spec": model}))).spec;
    let pod = &spec["template"]["spec"];
    for (member, value) in copied.as_object().unwrap() {
        assert_eq!(pod[member], *value, "{member}");
    }
    assert_eq!(pod["containers"][0]["volumeMounts"], mounts);
}

#[test]
fn the_paths_of_each_installers_layout_are_found() {
    let tls = "/var/lib/rancher/rke2/server/tls";
    assert_eq!(
        environment(&rke2()),
        (format!("{tls}/client-ca.nochain.crt"), format!("{tls}/client-ca.key"))
    );
    let containers = |containers: Value| pod(json!({"spec": {"containers": containers}}));
    let paths = |cert: &str, key: &str| (cert.to_owned(), key.to_owned());
    let fallback = || paths("/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key");
    let cases = [
        (pod(json!({})), fallback()),
        (containers(json!([])), fallback()),
        (containers(json!([{"name": "a"}])), fallback()),
        // A program that contains several others (kops, hyperkube): the flags may be in the
        // arguments.
        (
            containers(json!([{
                "name": "a", "command": ["/hyperkube", "kube-controller-manager"],
                "args": ["--v=2", "--cluster-signing-cert-file", "/a.crt", "--cluster-signing-key-file=/a.key"],
            }])),
            paths("/a.crt", "/a.key"),
        ),
        // A flag and its value may be split between command and arguments.
        (
            containers(
                json!([{"name": "a", "command": ["x", "--cluster-signing-cert-file"], "args": ["/a.crt"]}]),
            ),
            paths("/a.crt", "/etc/kubernetes/ca/ca.key"),
        ),
        // Each path is searched independently; an empty value counts as absent.
        (
            containers(json!([
                {"name": "a", "args": ["--cluster-signing-cert-file=", "--cluster-signing-key-file=/a.key"]},
                {"name": "b", "args": ["--cluster-signing-cert-file=/b.crt", "--cluster-signing-key-file=/b.key"]},
            ])),
            paths("/b.crt", "/a.key"),
        ),
        // The general flag takes precedence over the flag of the signer for API clients.
        (
            containers(json!([{"name": "a", "args": [
                "--cluster-signing-kube-apiserver-client-cert-file=/client.crt", "--cluster-signing-cert-file=/a.crt",
                "--cluster-signing-kube-apiserver-client-key-file=/client.key",
            ]}])),
            paths("/a.crt", "/client.key"),
        ),
        // A shell script is not parsed for flags.
        (
            containers(
                json!([{"name": "a", "command": ["/bin/sh", "-c", "exec kcm --cluster-signing-cert-file=/a.crt"]}]),
            ),
            fallback(),
        ),
    ];
    for (pod, wanted) in cases {
        assert_eq!(environment(&pod), wanted, "{pod:?}");
    }
}

#[test]
fn the_deployment_has_the_prefix_without_the_dash_as_its_name() {
    for (prefix, name) in
        [("agent-", "agent"), ("agent", "agent"), ("agent--", "agent-"), ("-", ""), ("", "")]
    {
        assert_eq!(deployment_name(prefix), name);
    }
}
