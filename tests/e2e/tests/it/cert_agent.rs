//! The controller of the kube-cert-agent in the installed programs, with the permissions of the
//! manifests and our own connection pool.
//!
//! There is no kubelet here to serve an exec; these tests check how far the controller gets. The
//! tests on a one-node cluster run a complete agent.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::pods::NODE_NAME;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::installed::{self, Installed, TIME_LIMIT};

const ACCOUNT: &str = "system:serviceaccount:pinniped-concierge:pinniped-concierge";
const DEPLOYMENT: &str = "pinniped-concierge-kube-cert-agent";
/// The feature gate of an API server that requires `create` for exec over a WebSocket.
const WEB_SOCKET_NEEDS_CREATE: &str = "AuthorizePodWebsocketUpgradeCreatePermission";
const ROLE: &str = "pinniped-concierge-aggregated-api-server";

#[tokio::test]
async fn the_agent_is_deployed_and_queried_with_the_shipped_permissions_and_a_missing_one_is_reported_once() {
    let Some(installed) =
        installed::alone("the agent is deployed and asked with the shipped permissions").await
    else {
        return;
    };
    let done = scenario(&installed).await;
    clean_up(&installed).await.unwrap();
    done.unwrap();
}

async fn scenario(installed: &Installed) -> anyhow::Result<()> {
    let (client, kubectl) = (installed.admin().await, installed.world().kubectl());
    let kube_system: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let pods: Api<Pod> = Api::namespaced(client.clone(), CONCIERGE);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), CONCIERGE);

    kube_system.create(&PostParams::default(), &serde_json::from_value(controller_manager())?).await?;
    run(&kube_system, "kube-controller-manager-world").await?;
    let deployment = wait::until_ok(TIME_LIMIT, "the agent's Deployment", async || {
        Ok(deployments.get(DEPLOYMENT).await?)
    })
    .await?;
    let value = serde_json::to_value(&deployment)?;
    let pod = &value["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], pinniped_image::REFERENCE);
    assert_eq!(pod["serviceAccountName"], "pinniped-concierge-kube-cert-agent");
    assert_eq!(pod["nodeName"], NODE_NAME);
    assert_eq!(value["metadata"]["ownerReferences"][0]["name"], "pinniped-concierge");

    let agents = ListParams::default().labels("kube-cert-agent.pinniped.dev=v3");
    let agent = wait::until_ok(TIME_LIMIT, "the agent's pod", async || {
        let all = pods.list(&agents).await?;
        anyhow::ensure!(!all.items.is_empty(), "none");
        Ok(all.items[0].name_any())
    })
    .await?;
    run(&pods, &agent).await?;
    await_log(
        installed,
        "failed to get kube-public/cluster-info configmap: configmap \"cluster-info\" not found",
    )
    .await?;
    wake(installed, 0).await?;
    let unreachable = format!("could not exec into agent pod {CONCIERGE}/{agent}: ");
    let dialled = wait::until_ok(TIME_LIMIT, "a kubelet that does not answer", async || {
        let message = message(installed).await?;
        anyhow::ensure!(message.starts_with(&unreachable), "{message}");
        Ok(message)
    })
    .await?;
    assert!(dialled.ends_with("dial tcp 10.123.0.1:10250: connect: connection refused"), "{dialled}");

    // The shipped verb is `create`. With `get` alone a WebSocket is refused, and so is SPDY, whose
    // refusal names the verb. Before 1.35, `get` was sufficient for a WebSocket.
    let needs_create = installed.world().control_plane().has_feature(WEB_SOCKET_NEEDS_CREATE).await?;
    let insufficient = if needs_create { "get" } else { "delete" };
    let wanted = format!(
        "could not exec into agent pod {CONCIERGE}/{agent}: pods \"{agent}\" is forbidden: \
         User \"{ACCOUNT}\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"{CONCIERGE}\""
    );
    allow_exec(installed, &json!([insufficient])).await?;
    wait::until_ok(TIME_LIMIT, &wanted, async || {
        // An event triggers a sync without the delay after a failure.
        wake(installed, 1).await?;
        let message = message(installed).await?;
        anyhow::ensure!(message == wanted, "{message}");
        Ok(())
    })
    .await?;
    // The line about the new status of the strategy has the text, too.
    let said = || {
        let escaped = wanted.replace('"', "\\\"");
        let is_error = |line: &&str| line.contains("\"Unhandled Error\"") && line.contains(&escaped);
        installed.pods().logs(CONCIERGE).lines().filter(is_error).count()
    };
    wait::until(TIME_LIMIT, "each pod to name the verb", async || (said() >= 2).then_some(())).await?;
    let denied = refused_execs(installed)?;
    wait::until_ok(TIME_LIMIT, "more tries", async || {
        wake(installed, 1).await?;
        let now = refused_execs(installed)?;
        anyhow::ensure!(now >= denied + 8, "{now} after {denied}");
        Ok(())
    })
    .await?;
    assert_eq!(said(), 2, "once in each of two pods, however often it is tried");
    // With both verbs the exec uses a WebSocket.
    allow_exec(installed, &json!(["get", "create"])).await?;
    wait::until_ok(TIME_LIMIT, "a kubelet that does not answer", async || {
        wake(installed, 2).await?;
        let message = message(installed).await?;
        anyhow::ensure!(message.starts_with(&unreachable) && message.contains("dial tcp"), "{message}");
        Ok(())
    })
    .await?;
    allow_exec(installed, &json!(["create"])).await?;
    kubectl
        .output(&[
            "delete",
            "pod",
            "--grace-period=0",
            "--force",
            "-n",
            "kube-system",
            "kube-controller-manager-world",
        ])
        .await?;
    await_log(
        installed,
        "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the expected \
         behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)",
    )
    .await
}

async fn clean_up(installed: &Installed) -> anyhow::Result<()> {
    let kubectl = installed.world().kubectl();
    allow_exec(installed, &json!(["create"])).await?;
    for object in [
        ["pod", "kube-controller-manager-world", "kube-system"],
        ["configmap", "cluster-info", "kube-public"],
        ["deployment", DEPLOYMENT, CONCIERGE],
    ] {
        let [kind, name, namespace] = object;
        kubectl
            .output(&["delete", kind, name, "-n", namespace, "--ignore-not-found", "--wait=false"])
            .await?;
    }
    let pods: Api<Pod> = Api::namespaced(installed.admin().await, CONCIERGE);
    let agents = ListParams::default().labels("kube-cert-agent.pinniped.dev=v3");
    wait::until_ok(TIME_LIMIT, "no agent to be left", async || {
        pods.delete_collection(&DeleteParams::default().grace_period(0), &agents).await?;
        anyhow::ensure!(pods.list(&agents).await?.items.is_empty(), "some are there");
        Ok(())
    })
    .await
}

fn controller_manager() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kube-controller-manager-world", "labels": {"component": "kube-controller-manager"}},
        "spec": {
            "automountServiceAccountToken": false, "nodeName": NODE_NAME,
            "containers": [{"name": "kcm", "image": "kcm:1", "command": ["kube-controller-manager"]}],
        },
    })
}

async fn run(pods: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    let status = json!({"status": {"phase": "Running"}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

/// Triggers a sync by publishing a different cluster address each time.
async fn wake(installed: &Installed, round: usize) -> anyhow::Result<()> {
    let server = format!("https://{round}.{}", jiff::Timestamp::now().as_nanosecond());
    let kubeconfig = json!({"clusters": [{"name": "", "cluster": {"server": server, "certificate-authority-data": "Y2E="}}]});
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": kubeconfig.to_string()},
    });
    installed.world().kubectl().apply(&config_map.to_string()).await.map(drop)
}

/// Grants the Concierge exactly these verbs on `pods/exec`.
async fn allow_exec(installed: &Installed, verbs: &Value) -> anyhow::Result<()> {
    let kubectl = installed.world().kubectl();
    let role: Value =
        serde_json::from_str(&kubectl.output(&["get", "role", ROLE, "-n", CONCIERGE, "-o", "json"]).await?)?;
    let mut rules = role["rules"].clone();
    let all = rules.as_array_mut().ok_or_else(|| anyhow::anyhow!("no rules"))?;
    let exec = all.iter_mut().find(|rule| rule["resources"] == json!(["pods/exec"]));
    exec.ok_or_else(|| anyhow::anyhow!("no rule for pods/exec"))?["verbs"] = verbs.clone();
    let patch = json!({"rules": rules}).to_string();
    kubectl.output(&["patch", "role", ROLE, "-n", CONCIERGE, "--type=merge", "-p", &patch]).await.map(drop)
}

/// Returns how often an exec of the Concierge was refused.
fn refused_execs(installed: &Installed) -> anyhow::Result<usize> {
    let events = installed.world().control_plane().audit_events(ACCOUNT)?;
    let denied = |event: &&Value| {
        event["user"]["username"] == ACCOUNT
            && event["objectRef"]["subresource"] == "exec"
            && event["responseStatus"]["code"] == 403
    };
    Ok(events.iter().filter(denied).count())
}

async fn message(installed: &Installed) -> anyhow::Result<String> {
    // The full resource name, because other tests have the same kind under other suffixes.
    let kind = "credentialissuers.config.concierge.pinniped.dev";
    let jsonpath = "-o=jsonpath={.status.strategies[?(@.type==\"KubeClusterSigningCertificate\")].message}";
    installed.world().kubectl().output(&["get", kind, "pinniped-concierge-config", jsonpath]).await
}

async fn await_log(installed: &Installed, wanted: &str) -> anyhow::Result<()> {
    wait::until_ok(TIME_LIMIT, wanted, async || {
        let message = message(installed).await?;
        anyhow::ensure!(message == wanted, "{message}");
        Ok(())
    })
    .await
}
