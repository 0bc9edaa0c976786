//! The walk-through in pods of our own image: the steps of `cargo xtask demo --node`, with further
//! checks.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, DECISION, LOCAL_USER_AUTHENTICATOR, Serving, Walk, strategy};
use pinniped_node::{Node, fixture};
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// Locked while the product is installed on the shared node, which has room for one install at a
/// time.
pub(crate) static INSTALL: Mutex<()> = Mutex::const_new(());

/// Builds the product's image in a folder, and imports it into the node.
pub(crate) async fn import_product(node: &Node, folder: &Path) -> anyhow::Result<()> {
    let image = folder.join("image.tar");
    pinniped_image::product(&tools::image_bin_dir()?, &image)?;
    node.import_image(&image).await
}

const ENDPOINT: &str = "https://impersonation-proxy-mtls.local";

/// One test, because each step depends on the previous one, as in the tutorial and the post.
#[tokio::test]
async fn a_person_logs_in_with_the_clusters_key_and_then_through_the_proxy() {
    let Some(node) =
        fixture::shared("a person logs in with the cluster's key and through the proxy").unwrap()
    else {
        return;
    };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();
    if let Err(error) = scenario(node, &environment, &walk).await {
        panic!("{}\n{error:#}", pod_logs(&environment).await);
    }
}

async fn scenario(node: &Node, environment: &OnNode<'_>, walk: &Walk<'_>) -> anyhow::Result<()> {
    walk.install().await?;
    both_replicas_run_as_nobody(environment).await?;
    one_of_them_holds_the_lease(environment).await?;
    the_state_of_each_pod_is_shown(environment).await?;
    walk.create_user().await?;
    walk.await_cluster_key().await?;
    let issuer = walk.show_credential_issuer().await?;
    the_clusters_key_is_used_and_the_proxy_is_off(node, &issuer["status"]["strategies"])?;
    let secrets = kubectl(environment, &["get", "secrets", "-n", CONCIERGE, "-o", "name"]).await?;
    for generated in ["impersonation-proxy-ca-certificate", "impersonation-proxy-tls-serving-certificate"] {
        assert!(!secrets.contains(generated), "{secrets}");
    }
    walk.create_authenticator().await?;
    walk.create_workload().await?;

    walk.create_tutorial_user().await?;
    let written = walk.kubeconfig_without_proxy().await?;
    assert!(written.stdout.contains("server: https://10.123.0.1:6443"), "{}", written.stdout);
    walk.refused_without_proxy().await?;
    walk.allow_and_list_without_proxy().await?;
    let kubeconfig = walk.tutorial_kubeconfig();
    // Five minutes back and five ahead.
    credential_is_signed_by_the_cluster(node, environment, &kubeconfig, 600).await?;

    let serving = walk.make_certificates().await?;
    let issuer = walk.enable_proxy(&serving).await?;
    assert_eq!(strategy(&issuer, "KubeClusterSigningCertificate")["reason"], "FetchedKey");
    let Serving::Secret { authority, .. } = &serving else { panic!("{serving:?}") };
    let frontend = json!({"type": "ImpersonationProxy", "impersonationProxyInfo":
        {"endpoint": ENDPOINT, "certificateAuthorityData": authority}});
    assert_eq!(strategy(&issuer, "ImpersonationProxy")["frontend"], frontend);

    walk.kubeconfig().await?;
    let refused = walk.refused().await?;
    assert_eq!(
        refused.stderr,
        format!(
            "Error from server (Forbidden): pods is forbidden: User \"pinny\" cannot list resource \"pods\" in API \
             group \"\" at the cluster scope: {DECISION}\n"
        )
    );
    let listed = walk.allow_and_list().await?;
    for pod in ["frontend", "backend"] {
        let line = listed.stdout.lines().find(|line| line.starts_with("some-app ") && line.contains(pod));
        assert!(
            line.is_some_and(|line| line.contains("1/1") && line.contains("Running")),
            "{}",
            listed.stdout
        );
    }
    let whoami = walk.whoami().await?;
    assert_eq!(
        whoami.stdout,
        format!(
            "Current cluster info:\n\nName: kubernetes-pinniped\nURL: {ENDPOINT}\n\nCurrent user info:\n\n\
             Username: pinny\nGroups: group-for-mtls, system:authenticated\n"
        )
    );
    assert_eq!(&walk.check_bundles().await?, authority);
    nothing_restarted(environment).await?;
    walk.remove().await
}

/// Runs an administrator's kubectl, which must succeed.
pub(crate) async fn kubectl(environment: &OnNode<'_>, args: &[&str]) -> anyhow::Result<String> {
    let step = Step::inside(environment, environment.kubectl().command(args));
    Ok(step.run(None).await?.success()?.stdout)
}

async fn get(environment: &OnNode<'_>, args: &[&str]) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&kubectl(environment, &[&["get", "-o", "json"], args].concat()).await?)?)
}

async fn both_replicas_run_as_nobody(environment: &OnNode<'_>) -> anyhow::Result<()> {
    let selector = "deployment.pinniped.dev=concierge";
    let pods = get(environment, &["pods", "-n", CONCIERGE, "-l", selector]).await?;
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 2);
    for pod in pods {
        let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        assert!(pod["status"]["conditions"].as_array().unwrap().iter().any(ready), "{}", pod["status"]);
        let container = &pod["spec"]["containers"][0];
        for probe in ["readinessProbe", "livenessProbe"] {
            assert!(container[probe].is_object(), "no {probe}");
        }
        // As the node sees it: the processes of these pods run as user 65532, cannot become root,
        // and have no capabilities.
        let name = pod["metadata"]["name"].as_str().unwrap();
        let status = process_status("pinniped-concierge", pod["metadata"]["uid"].as_str().unwrap())?;
        for wanted in [
            "Uid:\t65532\t65532\t65532\t65532",
            "NoNewPrivs:\t1",
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
        ] {
            assert!(status.lines().any(|line| line == wanted), "{name}: {wanted} is not in\n{status}");
        }
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    }
    Ok(())
}

/// Returns `/proc/PID/status` of a pod's program, found by its cgroup, whose name contains the
/// pod's UID.
fn process_status(program: &str, pod_uid: &str) -> anyhow::Result<String> {
    // The kernel truncates a program's name to 15 characters; systemd's names of cgroups contain no
    // dashes.
    let program = &program[..program.len().min(15)];
    let marks = [pod_uid.to_owned(), pod_uid.replace('-', "_")];
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("comm").trim() == program && marks.iter().any(|mark| read("cgroup").contains(mark)) {
            return Ok(read("status"));
        }
    }
    anyhow::bail!("no process {program} in the cgroups of pod {pod_uid}")
}

async fn one_of_them_holds_the_lease(environment: &OnNode<'_>) -> anyhow::Result<()> {
    wait::until_ok(std::time::Duration::from_secs(60), "a pod to hold the lease", async || {
        let leases = get(environment, &["leases", "-n", CONCIERGE]).await?;
        let holder = leases["items"][0]["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let pods = kubectl(environment, &["get", "pods", "-n", CONCIERGE, "-o", "name"]).await?;
        let held = pods.lines().filter_map(|line| line.strip_prefix("pod/")).any(|pod| holder.contains(pod));
        anyhow::ensure!(held, "it is held by {holder:?}, the pods are {pods}");
        Ok(())
    })
    .await
}

/// The doctor reads the state through port-forwards of the kubelet, with the administrator's
/// certificate.
async fn the_state_of_each_pod_is_shown(environment: &OnNode<'_>) -> anyhow::Result<()> {
    let doctor = |output: &str| -> anyhow::Result<Step> {
        let mut command = Command::new(tools::binary("pinniped")?);
        command.args(["doctor", "--debug-state", "--output", output, "--kubeconfig"]);
        command.arg(environment.admin_kubeconfig());
        Ok(Step::inside(environment, command))
    };
    // There is no authenticator yet, which may be a problem; the states are printed nevertheless.
    let states = wait::until_ok(
        std::time::Duration::from_secs(60),
        "the state of two pods that know the leader",
        async || {
            let output = doctor("json")?.run(None).await?;
            let report: Value = serde_json::from_str(&output.stdout)?;
            let states = report["debugState"].as_array().cloned().unwrap_or_default();
            anyhow::ensure!(states.len() == 2, "{report:#}");
            // A pod that has just started has not read the Lease.
            let know = states.iter().all(|state| state["state"]["leaderElection"]["lastRenewal"].is_string());
            anyhow::ensure!(know, "{states:#?}");
            Ok(states)
        },
    )
    .await?;
    let mut leaders = 0;
    for state in &states {
        let page = &state["state"];
        assert_eq!(page["program"]["pod"], state["pod"], "{state:#}");
        assert_eq!(page["configuration"]["aggregatedAPIServerPort"], 10250);
        assert!(page["metrics"]["pinniped_leader"].is_number(), "{page:#}");
        let text = page.to_string();
        assert!(!text.contains("PRIVATE KEY") && !text.contains("eyJ"), "{page:#}");
        leaders += usize::from(page["leaderElection"]["isLeader"] == true);
    }
    assert_eq!(leaders, 1, "{states:#?}");
    let output = doctor("text")?.run(None).await?;
    assert_eq!(output.stdout.matches("State of pod pinniped-concierge-").count(), 2, "{}", output.stdout);
    assert!(output.stdout.contains(", leader; the Lease is held by "), "{}", output.stdout);
    Ok(())
}

fn the_clusters_key_is_used_and_the_proxy_is_off(node: &Node, strategies: &Value) -> anyhow::Result<()> {
    assert_eq!(strategies.as_array().map(Vec::len), Some(2), "{strategies}");
    let shown = |index: usize| {
        let strategy = &strategies[index];
        [&strategy["type"], &strategy["status"], &strategy["reason"], &strategy["message"]].map(Value::clone)
    };
    assert_eq!(
        shown(0),
        ["KubeClusterSigningCertificate", "Success", "FetchedKey", "key was fetched successfully"]
            .map(Value::from)
    );
    assert_eq!(
        shown(1),
        [
            "ImpersonationProxy",
            "Error",
            "Disabled",
            "automatically determined that impersonation proxy should be disabled"
        ]
        .map(Value::from)
    );
    let authority = STANDARD.encode(std::fs::read(node.pki_dir().join("ca.crt"))?);
    let frontend = json!({"type": "TokenCredentialRequestAPI", "tokenCredentialRequestInfo":
        {"server": "https://10.123.0.1:6443", "certificateAuthorityData": authority}});
    assert_eq!(strategies[0]["frontend"], frontend);
    Ok(())
}

/// Requests a credential of the tutorial's user as kubectl does, and checks the issuer of its
/// certificate and its lifetime in seconds.
pub(crate) async fn credential_is_signed_by_the_cluster(
    node: &Node,
    environment: &OnNode<'_>,
    kubeconfig: &Path,
    wanted_lifetime: i64,
) -> anyhow::Result<()> {
    let file = kubeconfig.to_str().unwrap();
    let view = kubectl(environment, &["config", "view", "--raw", "-o", "json", "--kubeconfig", file]).await?;
    let view: Value = serde_json::from_str(&view)?;
    let exec = &view["users"][0]["user"]["exec"];
    let mut login = Command::new(exec["command"].as_str().unwrap());
    login.args(exec["args"].as_array().unwrap().iter().filter_map(Value::as_str));
    login.env("HOME", kubeconfig.parent().unwrap());
    let credential = Step::inside(environment, login).run(None).await?.success()?.stdout;
    let credential: Value = serde_json::from_str(&credential)?;
    let leaf = credential["status"]["clientCertificateData"].as_str().unwrap();
    let (_, leaf) = x509_parser::pem::parse_x509_pem(leaf.as_bytes())?;
    let leaf = leaf.parse_x509()?;
    let authority = std::fs::read(node.pki_dir().join("ca.crt"))?;
    let (_, authority) = x509_parser::pem::parse_x509_pem(&authority)?;
    let authority = authority.parse_x509()?;
    assert_eq!(leaf.issuer().as_raw(), authority.subject().as_raw());
    let text = |names: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
        names.iter().map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(text(leaf.subject().iter_common_name().collect()), ["pinny-the-seal"]);
    assert_eq!(text(leaf.subject().iter_organization().collect()), ["group1", "group2"]);
    let lifetime = leaf.validity().not_after.timestamp() - leaf.validity().not_before.timestamp();
    assert_eq!(lifetime, wanted_lifetime);
    Ok(())
}

/// Fails on any restart of a container, as upstream's suite does.
pub(crate) async fn nothing_restarted(environment: &OnNode<'_>) -> anyhow::Result<()> {
    let path = r#"jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{"\n"}{end}"#;
    let mut seen = 0;
    for namespace in [CONCIERGE, LOCAL_USER_AUTHENTICATOR] {
        for line in kubectl(environment, &["get", "pods", "-n", namespace, "-o", path]).await?.lines() {
            assert!(line.ends_with(" 0"), "{line}");
            seen += 1;
        }
    }
    assert_eq!(seen, 4, "two replicas, the agent, the authenticator");
    Ok(())
}

/// Returns the pods' logs for a failure message.
pub(crate) async fn pod_logs(environment: &OnNode<'_>) -> String {
    let mut output = String::new();
    for args in [
        &["get", "pods", "-A", "-o", "wide"][..],
        &["logs", "-n", CONCIERGE, "-l", "app=pinniped-concierge", "--prefix", "--tail=40"],
        &["get", "events", "-n", CONCIERGE],
    ] {
        output += &kubectl(environment, args).await.unwrap_or_else(|error| format!("{error:#}"));
    }
    output
}
