//! Pods of kube-controller-manager as installers create them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use pinniped_kube_types::partial::Pod;
use serde_json::{Value, json};

use super::{Nodes, Observed, Settings};

pub(super) fn settings() -> Settings {
    Settings {
        namespace: "concierge".to_owned(),
        deployment_name: "agent".to_owned(),
        labels: BTreeMap::from([("app".to_owned(), "a".to_owned()), ("more".to_owned(), "b".to_owned())]),
        service_account: "agent-account".to_owned(),
        image: "image:1".to_owned(),
        image_pull_secrets: Vec::new(),
        priority_class_name: String::new(),
        run_as_user: None,
        run_as_group: None,
        deployment_strategy_type: None,
    }
}

pub(super) fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

/// Returns a pod called `name` in `phase`, created at `second`, on `node`.
pub(super) fn simple(name: &str, phase: &str, second: i64, node: &str) -> Arc<Pod> {
    let created = jiff::Timestamp::from_second(second).unwrap().to_string();
    Arc::new(pod(json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "creationTimestamp": created},
        "spec": {"containers": [{"name": "c"}], "nodeName": node},
        "status": {"phase": phase},
    })))
}

/// Returns an observation in which only the Deployment is missing: one kube-controller-manager and
/// one agent.
pub(super) fn observed() -> Observed {
    let kubeconfig = r#"{"clusters":[{"name":"","cluster":{"server":"https://api","certificate-authority-data":"Y2E="}}]}"#;
    let data = BTreeMap::from([("kubeconfig".to_owned(), kubeconfig.to_owned())]);
    Observed {
        controller_managers: Ok(vec![Arc::new(kubeadm())]),
        nodes: Nodes::NotListed,
        k3s: None,
        deployment: Ok(None),
        agents: Ok(vec![simple("agent-1", "Running", 1, "node-1")]),
        cluster_info: Ok(Some(Arc::new(ConfigMap { data: Some(data), ..ConfigMap::default() }))),
    }
}

/// kubeadm and kind: flags in the command, directories of the host.
pub(super) fn kubeadm() -> Pod {
    pod(json!({
        "metadata": {
            "name": "kube-controller-manager-kind-control-plane", "namespace": "kube-system",
            "labels": {"component": "kube-controller-manager", "tier": "control-plane"},
        },
        "spec": {
            "containers": [{
                "name": "kube-controller-manager",
                "image": "registry.k8s.io/kube-controller-manager:v1.36.3",
                "command": [
                    "kube-controller-manager", "--allocate-node-cidrs=true",
                    "--client-ca-file=/etc/kubernetes/pki/ca.crt", "--cluster-name=kubernetes",
                    "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
                    "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
                    "--controllers=*,bootstrapsigner,tokencleaner", "--kubeconfig=/etc/kubernetes/controller-manager.conf",
                    "--leader-elect=true", "--root-ca-file=/etc/kubernetes/pki/ca.crt",
                ],
                "volumeMounts": [
                    {"mountPath": "/etc/ssl/certs", "name": "ca-certs", "readOnly": true},
                    {"mountPath": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec", "name": "flexvolume-dir"},
                    {"mountPath": "/etc/kubernetes/pki", "name": "k8s-certs", "readOnly": true},
                    {"mountPath": "/etc/kubernetes/controller-manager.conf", "name": "kubeconfig", "readOnly": true},
                ],
            }],
            "hostNetwork": true, "nodeName": "kind-control-plane", "priorityClassName": "system-node-critical",
            "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
            "volumes": [
                {"hostPath": {"path": "/etc/ssl/certs", "type": "DirectoryOrCreate"}, "name": "ca-certs"},
                {"hostPath": {"path": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec", "type": "DirectoryOrCreate"}, "name": "flexvolume-dir"},
                {"hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}, "name": "k8s-certs"},
                {"hostPath": {"path": "/etc/kubernetes/controller-manager.conf", "type": "FileOrCreate"}, "name": "kubeconfig"},
            ],
        },
        "status": {"phase": "Running"},
    }))
}

/// RKE2: flags of a specific signer, and a separate mount for each file (`pkg/staticpod` of its
/// sources).
pub(super) fn rke2() -> Pod {
    let tls = "/var/lib/rancher/rke2/server/tls";
    let files = ["client-ca.key", "client-ca.nochain.crt", "server-ca.key", "server-ca.nochain.crt"];
    let name = |index: usize| format!("file{index}");
    let mounts: Vec<Value> = files
        .iter()
        .enumerate()
        .map(|(i, file)| json!({"name": name(i), "readOnly": true, "mountPath": format!("{tls}/{file}")}))
        .collect();
    let volumes: Vec<Value> = files
        .iter()
        .enumerate()
        .map(|(i, file)| json!({"name": name(i), "hostPath": {"path": format!("{tls}/{file}"), "type": "File"}}))
        .collect();
    pod(json!({
        "metadata": {
            "name": "kube-controller-manager-rke2-server", "namespace": "kube-system",
            "labels": {"component": "kube-controller-manager", "tier": "control-plane"},
        },
        "spec": {
            "containers": [{
                "name": "kube-controller-manager",
                "image": "index.docker.io/rancher/hardened-kubernetes:v1.36.3-rke2r1",
                "env": [{"name": "FILE_HASH", "value": "abc"}],
                "command": [
                    "kube-controller-manager", "--permit-port-sharing=true", "--allocate-node-cidrs=true",
                    "--bind-address=127.0.0.1",
                    format!("--cluster-signing-kube-apiserver-client-cert-file={tls}/client-ca.nochain.crt"),
                    format!("--cluster-signing-kube-apiserver-client-key-file={tls}/client-ca.key"),
                    format!("--cluster-signing-kubelet-client-cert-file={tls}/client-ca.nochain.crt"),
                    format!("--cluster-signing-kubelet-client-key-file={tls}/client-ca.key"),
                    format!("--cluster-signing-kubelet-serving-cert-file={tls}/server-ca.nochain.crt"),
                    format!("--cluster-signing-kubelet-serving-key-file={tls}/server-ca.key"),
                    format!("--cluster-signing-legacy-unknown-cert-file={tls}/server-ca.nochain.crt"),
                    format!("--cluster-signing-legacy-unknown-key-file={tls}/server-ca.key"),
                    "--controllers=*,tokencleaner,-service,-route,-cloud-node-lifecycle",
                ],
                "volumeMounts": mounts,
            }],
            "hostNetwork": true, "nodeName": "rke2-server", "priorityClassName": "system-cluster-critical",
            "volumes": volumes,
        },
        "status": {"phase": "Running"},
    }))
}
