//! A node runs a cluster as kubeadm creates it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use pinniped_node::{Node, fixture};
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::wait;

/// Runs a program in the node's network.
async fn inside(node: &Node, program: &str, args: &[&str]) -> CommandOutput {
    let mut command = node.enter(program).unwrap().into_std();
    command.args(args);
    run(command, None).await.unwrap()
}

#[tokio::test]
async fn programs_in_the_node_network_reach_services_by_name() {
    let Some(node) = fixture::shared("programs that enter resolve and reach Services by name").unwrap()
    else {
        return;
    };
    let found = inside(node, "getent", &["hosts", "kube-dns.kube-system.svc"]).await.success().unwrap();
    assert_eq!(found.stdout.split_whitespace().next(), Some("10.96.0.10"));
    // There is no route out of the network, and a connection fails at once.
    let other = inside(node, "getent", &["hosts", "example.com"]).await;
    assert_ne!(other.code, 0, "{other:?}");
    assert!(other.took < Duration::from_secs(5), "{other:?}");
    let args = ["--server=https://kubernetes.default.svc", "get", "--raw", "/readyz"];
    assert_eq!(inside(node, "kubectl", &args).await.success().unwrap().stdout, "ok");
}

#[tokio::test]
async fn the_controller_manager_is_a_static_pod_with_kubeadms_labels_and_the_pki_of_the_host() {
    let Some(node) = fixture::shared("the controller-manager is a static pod").unwrap() else { return };
    let pod = node
        .block_on_inside(|| async {
            let pods = Api::<Pod>::namespaced(node.client().await.unwrap(), "kube-system");
            pods.get(&format!("kube-controller-manager-{}", node.layout().node_name())).await.unwrap()
        })
        .unwrap();
    let labels = pod.metadata.labels.unwrap();
    assert_eq!(labels["component"], "kube-controller-manager");
    assert_eq!(labels["tier"], "control-plane");
    let spec = pod.spec.unwrap();
    let command = spec.containers[0].command.clone().unwrap();
    for flag in ["cert-file=/etc/kubernetes/pki/ca.crt", "key-file=/etc/kubernetes/pki/ca.key"] {
        assert!(command.contains(&format!("--cluster-signing-{flag}")), "{command:?}");
    }
    let volumes = spec.volumes.unwrap();
    let paths: Vec<String> = volumes.into_iter().filter_map(|v| Some(v.host_path?.path)).collect();
    assert!(paths.contains(&"/etc/kubernetes/pki".to_owned()), "{paths:?}");
    let key = std::fs::read_to_string(node.pki_dir().join("ca.key")).unwrap();
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
}

#[tokio::test]
async fn everyone_may_read_cluster_info() {
    let Some(node) = fixture::shared("everyone may read cluster-info").unwrap() else { return };
    let admin = std::fs::read_to_string(node.kubeconfig()).unwrap();
    let line = |prefix: &str| {
        let found = admin.lines().map(str::trim).find_map(|line| line.strip_prefix(prefix));
        found.unwrap().to_owned()
    };
    let map = node
        .block_on_inside(|| async {
            // Without credentials and without a trusted CA, as `kubeadm join` connects first.
            let mut config = kube::Config::new("https://10.123.0.1:6443".parse().unwrap());
            config.accept_invalid_certs = true;
            let client = kube::Client::try_from(config).unwrap();
            Api::<ConfigMap>::namespaced(client, "kube-public").get("cluster-info").await.unwrap()
        })
        .unwrap();
    let kubeconfig = &map.data.unwrap()["kubeconfig"];
    assert!(kubeconfig.contains(&line("certificate-authority-data: ")), "{kubeconfig}");
    assert!(kubeconfig.contains(&line("server: ")), "{kubeconfig}");
    assert!(!kubeconfig.contains("client-key-data"), "{kubeconfig}");
}

#[tokio::test]
async fn exec_logs_and_port_forward_reach_a_pod() {
    let Some(node) = fixture::shared("exec, logs and port-forward reach a pod").unwrap() else { return };
    let exec = ["-n", "kube-system", "exec", "deployment/coredns", "--", "/coredns", "-version"];
    let version = inside(node, "kubectl", &exec).await.success().unwrap();
    assert!(version.stdout.starts_with("CoreDNS-"), "{version:?}");
    let logs = inside(node, "kubectl", &["-n", "kube-system", "logs", "deployment/coredns"]).await;
    assert!(logs.success().unwrap().stdout.contains("CoreDNS-"));

    let mut forward = node.enter("kubectl").unwrap();
    forward
        .args(["-n", "kube-system", "port-forward", "deployment/coredns", "18181:8181"])
        .kill_on_drop(true);
    let _forward = forward.stdout(std::process::Stdio::null()).spawn().unwrap();
    let response = node
        .block_on_inside(|| async {
            wait::until_ok(Duration::from_secs(20), "the forwarded port", async || {
                use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
                let mut tcp = tokio::net::TcpStream::connect("127.0.0.1:18181").await?;
                tcp.write_all(b"GET /ready HTTP/1.0\r\n\r\n").await?;
                let mut text = String::new();
                tcp.read_to_string(&mut text).await?;
                anyhow::ensure!(text.starts_with("HTTP/1.0 200"), "{text}");
                Ok(text)
            })
            .await
        })
        .unwrap()
        .unwrap();
    assert!(response.ends_with("OK"), "{response}");
}

#[tokio::test]
async fn an_imported_image_runs_in_an_ordinary_pod() {
    let Some(node) = fixture::shared("an imported image runs in an ordinary pod").unwrap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("image.tar");
    let image = pinniped_image::Image {
        entrypoint: vec!["/wait".to_owned()],
        roots: pinniped_image::Roots::Absent,
        files: vec![pinniped_image::File::program(node.tools().join("pause"), "/wait")],
        ..pinniped_image::Image::new("example.com/imported:1")
    };
    pinniped_image::build(&image, &archive).unwrap();
    node.import_image(&archive).await.unwrap();
    let run = ["run", "imported", "--image=example.com/imported:1", "--image-pull-policy=Never"];
    inside(node, "kubectl", &run).await.success().unwrap();
    let wait = ["wait", "--for=condition=Ready", "pod/imported", "--timeout=60s"];
    inside(node, "kubectl", &wait).await.success().unwrap();
    inside(node, "kubectl", &["delete", "pod", "imported", "--now"]).await.success().unwrap();

    let missing = node.import_image(&dir.path().join("no.tar")).await.unwrap_err();
    assert!(missing.to_string().contains("there is no image archive"), "{missing}");
    std::fs::write(&archive, "no archive").unwrap();
    let broken = node.import_image(&archive).await.unwrap_err();
    assert!(broken.to_string().contains("could not import"), "{broken}");
}
