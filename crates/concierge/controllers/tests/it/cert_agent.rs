//! The agent's Deployment, the key and the strategy on a real API server. The tests simulate the
//! kubelet.

mod cluster;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_concierge_api::config::{StrategyReason, StrategyStatus};
use pinniped_concierge_controllers::kube_cert_agent::exec::{AgentExec as _, ApiServerExec};
use pinniped_concierge_domain::strategy::kube_cert_agent::{AgentPod, Settings};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::install::PATIENCE;
use cluster::{Agent, Cluster, DEPLOYMENT, authority, printed, set_phase};

const EXTRACT: &str =
    "could not extract Kubernetes API endpoint info from kube-public/cluster-info configmap: ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_manager_pod_causes_the_agents_deployment() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    let install = cluster.install("deployment").await?;
    let agent = Agent::new();
    let pod = install.pod_with("pod-1", install.agent_settings(), agent.clone());

    let none = install
        .await_message(
            "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the expected \
             behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)",
        )
        .await?;
    assert_eq!((none.status, none.reason), (StrategyStatus::Error, StrategyReason::CouldNotFetchKey));
    let model = cluster.controller_manager("kcm-1", "node-1").await?;
    install.await_message("could not find a healthy kube-controller-manager pod (1 candidate)").await?;
    cluster.controller_manager("kcm-2", "node-1").await?;
    install.await_message("could not find a healthy kube-controller-manager pod (2 candidates)").await?;
    assert!(install.deployments().get_opt(DEPLOYMENT).await?.is_none());

    set_phase(&cluster.controller_managers(), "kcm-1", "Running").await?;
    let deployment = install.agent_deployment("the Deployment", |_| true).await?;
    let model = serde_json::to_value(model)?;
    assert_eq!(deployment.metadata.owner_references, Some(install.owner()));
    assert_eq!(serde_json::to_value(deployment.labels())?, json!({"app": "concierge", "more": "label"}));
    assert_eq!(
        serde_json::to_value(&deployment.spec)?,
        json!({
            "minReadySeconds": 10,
            "progressDeadlineSeconds": 600,
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"kube-cert-agent.pinniped.dev": "v3"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {
                "metadata": {"labels": {"kube-cert-agent.pinniped.dev": "v3", "more": "label"}},
                "spec": {
                    "automountServiceAccountToken": false,
                    "containers": [{
                        "name": "sleeper",
                        "image": "agent:1",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["pinniped-concierge-kube-cert-agent", "sleep"],
                        "env": [
                            {"name": "CERT_PATH", "value": "/etc/kubernetes/pki/ca.crt"},
                            {"name": "KEY_PATH", "value": "/etc/kubernetes/pki/ca.key"},
                        ],
                        "resources": {
                            "limits": {"cpu": "20m", "memory": "32Mi"}, "requests": {"cpu": "0", "memory": "32Mi"},
                        },
                        "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File",
                        "volumeMounts": model["spec"]["containers"][0]["volumeMounts"],
                    }],
                    "dnsPolicy": "ClusterFirst",
                    "hostNetwork": true,
                    "nodeName": "node-1",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "restartPolicy": "Always",
                    "schedulerName": "default-scheduler",
                    "securityContext": {"runAsUser": 0, "runAsGroup": 0},
                    "serviceAccount": "default",
                    "serviceAccountName": "default",
                    "terminationGracePeriodSeconds": 0,
                    "tolerations": model["spec"]["tolerations"],
                    "volumes": model["spec"]["volumes"],
                },
            },
        })
    );
    install.await_message("could not find a healthy agent pod (1 candidate)").await?;
    assert!(agent.calls().is_empty());
    // Further passes do not change it.
    assert_eq!(install.agent_deployment("the same", |_| true).await?.metadata.generation, Some(1));
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_loads_the_key_and_the_leader_reports_it() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    let install = cluster.install("key").await?;
    let (agent, others) = (Agent::new(), Agent::new());
    agent.set_output("garbage");
    let leader = install.pod_with("pod-1", install.agent_settings(), agent.clone());
    wait::until(PATIENCE, "a leader", async || leader.controllers.leadership().is_leader().then_some(()))
        .await?;
    cluster.controller_manager("kcm", "node-1").await?;
    set_phase(&cluster.controller_managers(), "kcm", "Running").await?;
    let name = install.run_agent().await?;

    // The address and CA for clients.
    let missing = "failed to get kube-public/cluster-info configmap: configmap \"cluster-info\" not found";
    assert_eq!(install.await_message(missing).await?.reason, StrategyReason::CouldNotGetClusterInfo);
    for (data, problem) in [
        (json!({"other": "x"}), "missing \"kubeconfig\" key"),
        (json!({"kubeconfig": "just words"}), "key \"kubeconfig\" does not contain a valid kubeconfig"),
        (json!({"kubeconfig": "{}"}), "kubeconfig in key \"kubeconfig\" does not contain any clusters"),
    ] {
        cluster.cluster_info(data).await?;
        let entry = install.await_message(&format!("{EXTRACT}{problem}")).await?;
        assert_eq!(entry.reason, StrategyReason::CouldNotGetClusterInfo);
    }
    assert!(agent.calls().is_empty(), "the key is of no use yet");

    // The output of the agent.
    let from = format!("agent pod {}/{name}", install.namespace);
    let (ca, other) = (authority("cluster CA"), authority("another CA"));
    let leaf_like = json!({"tls.crt": "!", "tls.key": ""}).to_string().into_bytes();
    cluster.cluster_info_of("https://one").await?;
    install
        .await_message(&format!(
            "failed to decode signing cert/key JSON from {from}: invalid character at line 1 column 1"
        ))
        .await?;
    for (output, wanted) in [
        (
            leaf_like,
            format!("failed to decode signing cert base64 from {from}: illegal base64 data at input byte 0"),
        ),
        (
            printed(&ca, &other),
            format!(
                "failed to set signing cert/key content from {from}: concierge-kube-signing-cert: attempt to set \
                 invalid key pair: tls: private key does not match public key"
            ),
        ),
    ] {
        agent.set_output(output);
        // An event triggers a pass without waiting for the delay after a failure.
        cluster.cluster_info_of(&format!("https://{}", wanted.len())).await?;
        assert_eq!(install.await_message(&wanted).await?.reason, StrategyReason::CouldNotFetchKey);
        assert!(leader.kube_signer.current().is_none());
    }
    agent.set_output(printed(&ca, &ca));
    others.set_output(printed(&ca, &ca));
    cluster.cluster_info_of("https://two").await?;
    // A retry after the last failure may read the key before the new address is observed.
    let entry = install.await_log_at("key was fetched successfully", "https://two").await?;
    assert_eq!((entry.status, entry.reason), (StrategyStatus::Success, StrategyReason::FetchedKey));
    assert_eq!(
        serde_json::to_value(&entry.frontend)?,
        json!({
            "type": "TokenCredentialRequestAPI",
            "tokenCredentialRequestInfo": {"server": "https://two", "certificateAuthorityData": "Y2E="},
        })
    );
    let held = leader.kube_signer.current().context("the leader's key")?;
    assert_eq!(held.certificate_pem(), ca.certificate_pem());

    // A follower reads the key as well, although it may not write.
    let follower = install.pod_with("pod-2", install.agent_settings(), others.clone());
    wait::until(PATIENCE, "the follower's key", async || follower.kube_signer.current().map(drop)).await?;
    assert!(!follower.controllers.leadership().is_leader());

    // No event causes another read from the same pod for a while.
    let calls = agent.calls();
    cluster.cluster_info_of("https://three").await?;
    install.await_log_at("key was fetched successfully", "https://three").await?;
    assert_eq!(agent.calls(), calls);

    // A loaded key is kept even if it can no longer be read.
    cluster.remove_controller_managers().await?;
    let gone = install.agent_strategy("no pod", |entry| entry.message.contains("(0 candidates)")).await?;
    assert_eq!(gone.frontend, None);
    assert!(leader.kube_signer.current().is_some() && follower.kube_signer.current().is_some());
    follower.controllers.shutdown().await;
    leader.controllers.shutdown().await;
    Ok(())
}

/// The Node has the labels and annotations of a k3s server, but the cluster is not k3s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_runs_on_the_node_of_a_k3s_server() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    cluster.k3s_server("node-2", &["server", "--https-listen-port", "7443"]).await?;
    let install = cluster.install("k3s").await?;
    let agent = Agent::new();
    let ca = authority("k3s-client-ca");
    agent.set_output(printed(&ca, &ca));
    let pod = install.pod_with("pod-1", install.agent_settings(), agent.clone());

    let deployment = install.agent_deployment("the Deployment", |_| true).await?;
    let spec = serde_json::to_value(&deployment.spec)?["template"]["spec"].take();
    let tls = "/var/lib/rancher/k3s/server/tls";
    assert_eq!(spec["nodeName"], "node-2");
    assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(
        spec["containers"][0]["env"],
        json!([
            {"name": "CERT_PATH", "value": format!("{tls}/client-ca.nochain.crt")},
            {"name": "KEY_PATH", "value": format!("{tls}/client-ca.key")},
        ])
    );
    let only_these = ["client-ca.nochain.crt", "client-ca.key"]
        .map(|file| json!({"path": format!("{tls}/{file}"), "type": "File"}));
    let volumes = spec["volumes"].as_array().context("volumes")?;
    assert_eq!(volumes.iter().map(|volume| volume["hostPath"].clone()).collect::<Vec<_>>(), only_these);

    install.run_agent().await?;
    let entry = install.await_message("key was fetched successfully").await?;
    let info = serde_json::to_value(&entry.frontend)?["tokenCredentialRequestInfo"].take();
    assert_eq!(info["server"], "https://127.0.0.1:7443");
    let published = info["certificateAuthorityData"].as_str().context("a CA")?;
    use base64::Engine as _;
    let published = base64::engine::general_purpose::STANDARD.decode(published)?;
    assert_eq!(String::from_utf8(published)?.trim(), cluster.plane.ca().certificate_pem.trim());
    assert!(pod.kube_signer.current().is_some());
    pod.controllers.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deployment_follows_the_configuration_and_is_repaired() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    let install = cluster.install("update").await?;
    cluster.controller_manager("kcm", "node-1").await?;
    set_phase(&cluster.controller_managers(), "kcm", "Running").await?;
    // Deployments of old versions have a selector with more labels.
    let mut old = old_deployment();
    old["metadata"]["annotations"] = json!({"others": "x"});
    let old: Deployment = serde_json::from_value(old)?;
    let old = install.deployments().create(&PostParams::default(), &old).await?;

    let pod = install.pod_with("pod-1", install.agent_settings(), Agent::new());
    let new = install.agent_deployment("another Deployment", |new| new.uid() != old.uid()).await?;
    assert_eq!(
        serde_json::to_value(&new.spec.as_ref().context("spec")?.selector)?,
        json!({"matchLabels": {"kube-cert-agent.pinniped.dev": "v3"}})
    );
    assert_eq!(new.metadata.owner_references, Some(install.owner()));

    // Changes of other clients are reverted; additions are kept.
    let patch = json!({
        "metadata": {"annotations": {"others": "y"}, "labels": {"more": "changed"}},
        "spec": {"template": {"spec": {"hostPID": true, "containers": [{"name": "sleeper", "image": "evil:1"}]}}},
    });
    install.deployments().patch(DEPLOYMENT, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
    let repaired = install
        .agent_deployment("a repaired Deployment", |deployment| {
            let value = serde_json::to_value(deployment).unwrap_or_default();
            let pod = &value["spec"]["template"]["spec"];
            pod["containers"][0]["image"] == "agent:1"
                && pod["hostPID"] == Value::Null
                && value["metadata"]["labels"]["more"] == "label"
        })
        .await?;
    assert_eq!(repaired.uid(), new.uid());
    assert_eq!(repaired.annotations().get("others").map(String::as_str), Some("y"));
    pod.controllers.shutdown().await;

    // Each restart has another configuration.
    let class = |name: &str| Settings { priority_class_name: name.into(), ..install.agent_settings() };
    let recreate = Settings { deployment_strategy_type: Some("Recreate".into()), ..install.agent_settings() };
    let restarts = [
        (class("system-node-critical"), "/template/spec/priorityClassName", json!("system-node-critical")),
        (class(""), "/template/spec/priorityClassName", Value::Null),
        (recreate, "/strategy", json!({"type": "Recreate"})),
        (
            install.agent_settings(),
            "/strategy",
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}),
        ),
    ];
    for (settings, pointer, wanted) in restarts {
        let pod = install.pod_with("pod-1", settings, Agent::new());
        let changed = install
            .agent_deployment(pointer, |deployment| {
                let spec = serde_json::to_value(&deployment.spec).unwrap_or_default();
                spec.pointer(pointer).unwrap_or(&Value::Null) == &wanted
            })
            .await?;
        assert_eq!(changed.uid(), new.uid(), "updated in place");
        pod.controllers.shutdown().await;
    }
    Ok(())
}

fn old_deployment() -> Value {
    let labels = json!({"kube-cert-agent.pinniped.dev": "v3", "app": "concierge", "more": "label"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DEPLOYMENT},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "sleeper", "image": "old"}]}},
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_avoids_a_cordoned_node() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    let install = cluster.install("cordon").await?;
    for (name, node) in [("kcm-1", "node-1"), ("kcm-2", "node-2")] {
        cluster.controller_manager(name, node).await?;
        set_phase(&cluster.controller_managers(), name, "Running").await?;
    }
    let on = |node: &'static str| {
        move |deployment: &Deployment| {
            let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            pod.and_then(|pod| pod.node_name.as_deref()) == Some(node)
        }
    };
    for (cordoned, wanted) in [("node-1", "node-2"), ("node-2", "node-1")] {
        cluster.cordon("node-1", cordoned == "node-1").await?;
        cluster.cordon("node-2", cordoned == "node-2").await?;
        // Nodes are not watched; this triggers the controller, as the events of a busy cluster do.
        let pod = install.pod_with("pod-1", install.agent_settings(), Agent::new());
        install.agent_deployment(wanted, on(wanted)).await?;
        pod.controllers.shutdown().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_exec_has_the_error_text_of_kubernetes() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    let install = cluster.install("exec").await?;
    cluster.controller_manager("kcm", "node-1").await?;
    set_phase(&cluster.controller_managers(), "kcm", "Running").await?;
    cluster.cluster_info_of("https://one").await?;
    let pod = install.pod("pod-1");
    let name = install.run_agent().await?;
    let entry = install
        .agent_strategy("an unreachable kubelet", |entry| entry.message.contains("127.0.0.1:1"))
        .await?;
    let (namespace, prefix) = (&install.namespace, "could not exec into agent pod");
    assert!(entry.message.starts_with(&format!("{prefix} {namespace}/{name}: ")), "{}", entry.message);
    assert_eq!(entry.reason, StrategyReason::CouldNotFetchKey);
    pod.controllers.shutdown().await;

    // An account without permissions, and a deleted pod.
    let run = async |client: kube::Client, name: &str| {
        let agent = AgentPod { namespace: namespace.clone(), name: name.to_owned(), uid: String::new() };
        ApiServerExec::new(client).print(&agent).await.map(drop)
    };
    let unprivileged = cluster.plane.client_as("nobody", &[]).await?;
    let error = run(unprivileged, &name).await.expect_err("forbidden");
    assert!(error.is_forbidden());
    assert_eq!(
        error.to_string(),
        format!(
            "pods \"{name}\" is forbidden: User \"nobody\" cannot create resource \"pods/exec\" in API group \"\" in the \
             namespace \"{namespace}\""
        )
    );
    let error = run(cluster.client.clone(), "gone").await.expect_err("not found");
    assert_eq!(error.to_string(), "pods \"gone\" not found");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_agent_pods_of_old_versions_are_deleted() -> anyhow::Result<()> {
    let cluster = Cluster::turn().await?;
    let install = cluster.install("legacy").await?;
    let make = async |name: &str, labels: Value| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "x", "image": "x"}]},
        });
        wait::until_ok(PATIENCE, "a pod", async || {
            let pod: Pod = serde_json::from_value(pod.clone())?;
            Ok(install.pods().create(&PostParams::default(), &pod).await?)
        })
        .await
    };
    make("legacy-1", json!({"kube-cert-agent.pinniped.dev": "true", "app": "concierge", "more": "label"}))
        .await?;
    make(
        "of-another-installation",
        json!({"kube-cert-agent.pinniped.dev": "true", "app": "other", "more": "label"}),
    )
    .await?;
    make("present", json!({"kube-cert-agent.pinniped.dev": "v3", "app": "concierge", "more": "label"}))
        .await?;
    let pod = install.pod("pod-1");
    let gone = async |name: &str| {
        wait::until_ok(PATIENCE, name, async || {
            anyhow::ensure!(install.pods().get_opt(name).await?.is_none(), "still there");
            Ok(())
        })
        .await
    };
    gone("legacy-1").await?;
    // A pod that is created later is deleted too; when it is gone, the others have been processed.
    make("legacy-2", json!({"kube-cert-agent.pinniped.dev": "true", "app": "concierge", "more": "label"}))
        .await?;
    gone("legacy-2").await?;
    for name in ["of-another-installation", "present"] {
        assert!(install.pods().get_opt(name).await?.is_some(), "{name}");
        install.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    pod.controllers.shutdown().await;
    Ok(())
}
