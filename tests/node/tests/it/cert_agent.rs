//! A complete kube-cert-agent on a real node, and its failures. (The login with its key is in
//! `walkthrough`.)

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, Walk};
use pinniped_node::{Node, PAUSE, fixture};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use crate::walkthrough::{INSTALL, import_product};

/// Time limit of any step on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// The time that upstream's tests give the agent's pod to start.
const A_MINUTE: Duration = Duration::from_secs(60);

const AGENT: &str = "kube-cert-agent.pinniped.dev=v3";
const FETCHED: &str = "key was fetched successfully";
const ROLE: &str = "pinniped-concierge-aggregated-api-server";

/// One test, because an install takes half a minute.
#[tokio::test]
async fn an_agent_recovers_from_every_failure() {
    let Some(node) = fixture::shared("an agent recovers from whatever happens to it").unwrap() else {
        return;
    };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();
    walk.install().await.unwrap();
    let cluster = Cluster { node, environment: &environment };
    let done = scenario(&cluster).await;
    let output = match &done {
        Ok(()) => String::new(),
        Err(_) => cluster.existing_objects().await,
    };
    let removed = async {
        let made = [
            "delete",
            "pods,nodes",
            "-n",
            "kube-system",
            "-l",
            "made-by=test",
            "--force",
            "--grace-period=0",
        ];
        cluster.kubectl(&made).await?;
        walk.remove().await
    };
    let removed = removed.await;
    let _none = std::fs::remove_dir_all(node.pki_dir().join("other"));
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(cluster: &Cluster<'_>) -> anyhow::Result<()> {
    let first = cluster.running_agent(A_MINUTE).await?;
    cluster.await_output(FETCHED).await?;
    the_agent_is_small_and_has_no_token(cluster, &first).await?;

    // A deleted pod terminates on SIGTERM, and the next pod is used. The kubelet sends SIGKILL only
    // after the time limit of the command.
    let timeout = format!("--timeout={}s", TIME_LIMIT.as_secs());
    let grace = format!("--grace-period={}", TIME_LIMIT.as_secs() + 30);
    cluster.kubectl(&["delete", "pod", "-n", CONCIERGE, &first, &grace, &timeout]).await?;
    let second = cluster.running_agent(A_MINUTE).await?;
    assert_ne!(first, second);
    cluster.await_output(FETCHED).await?;

    // A second kube-controller-manager whose files are unusable.
    let other = cluster.node.pki_dir().join("other");
    std::fs::create_dir_all(&other)?;
    std::fs::copy(cluster.node.pki_dir().join("ca.crt"), other.join("ca.crt"))?;
    cluster.other_controller_manager("other-1", cluster.node.layout().node_name().as_ref()).await?;
    cluster
        .await_output_of_agent("could not exec into agent pod ", ": command terminated with exit code 1")
        .await?;
    std::fs::copy(front_proxy_key(cluster.node)?, other.join("ca.key"))?;
    cluster.wake().await?;
    wait::until_ok(TIME_LIMIT, "a key that does not match", async || {
        let message = cluster.message().await?;
        let begin = "failed to set signing cert/key content from agent pod ";
        let end = "concierge-kube-signing-cert: attempt to set invalid key pair: tls: private key ";
        // The private key has another type, or the same type and does not match.
        anyhow::ensure!(message.starts_with(begin) && message.contains(end), "{message}");
        Ok(())
    })
    .await?;
    // The pod disappears during reads, repeatedly.
    cluster.kubectl(&["delete", "pod", "-n", "kube-system", "other-1", "--now"]).await?;
    cluster.await_output(FETCHED).await?;

    // A pod on a node that no longer exists: the new agent never runs, and the old one continues.
    let before = cluster.running_agent(A_MINUTE).await?;
    let ghost = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ghost", "labels": {"made-by": "test"}}});
    cluster.input(&["apply", "-f", "-"], Some(&ghost.to_string())).await?;
    cluster.other_controller_manager("other-2", "ghost").await?;
    let patch = json!({"status": {"phase": "Running"}}).to_string();
    let run = [
        "patch",
        "pod",
        "-n",
        "kube-system",
        "other-2",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    cluster.kubectl(&run).await?;
    wait::until_ok(TIME_LIMIT, "an agent that waits for its node", async || {
        let nodes = cluster.agents("{range .items[*]}{.spec.nodeName} {.status.phase}{\"\\n\"}{end}").await?;
        anyhow::ensure!(nodes.contains("ghost Pending"), "{nodes}");
        Ok(())
    })
    .await?;
    cluster.await_output(FETCHED).await?;
    cluster
        .kubectl(&["delete", "pod", "-n", "kube-system", "other-2", "--force", "--grace-period=0"])
        .await?;
    wait::until_ok(TIME_LIMIT, "the old agent alone", async || {
        let names = cluster.agents("{.items[*].metadata.name}").await?;
        anyhow::ensure!(names == before, "{names}");
        Ok(())
    })
    .await?;

    cluster.kubectl(&["delete", "node", "ghost"]).await?;

    // A namespace that does not allow pods with root and host files.
    let label = async |level: &str| {
        let label = format!("pod-security.kubernetes.io/enforce={level}");
        cluster.kubectl(&["label", "namespace", CONCIERGE, "--overwrite", &label]).await
    };
    label("restricted").await?;
    cluster.kubectl(&["delete", "pod", "-n", CONCIERGE, &before]).await?;
    cluster.await_output("could not find a healthy agent pod (0 candidates)").await?;
    label("privileged").await?;
    // The Deployment controller waits longer after each failed attempt; a new rollout starts at
    // once.
    cluster
        .kubectl(&["rollout", "restart", "deployment/pinniped-concierge-kube-cert-agent", "-n", CONCIERGE])
        .await?;
    let third = cluster.running_agent(TIME_LIMIT).await?;
    cluster.await_output(FETCHED).await?;

    // All execs so far used SPDY: the Role has the same verb as upstream's Role, and no other.
    let only_create = json!({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]});
    assert_eq!(cluster.exec_rules().await?, [only_create]);

    // Without permission for exec. The pod is another one, so its key must be read; the previous
    // key stays in use.
    cluster.allow_exec(&json!(["get"])).await?;
    cluster.kubectl(&["delete", "pod", "-n", CONCIERGE, &third]).await?;
    let account = "system:serviceaccount:pinniped-concierge:pinniped-concierge";
    cluster
        .await_output_of_agent(
            "could not exec into agent pod ",
            &format!(
                "User \"{account}\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"{CONCIERGE}\""
            ),
        )
        .await?;
    // With both verbs the exec uses a WebSocket.
    cluster.allow_exec(&json!(["get", "create"])).await?;
    cluster.wake().await?;
    cluster.await_output(FETCHED).await
}

async fn the_agent_is_small_and_has_no_token(cluster: &Cluster<'_>, name: &str) -> anyhow::Result<()> {
    let pod = cluster.kubectl(&["get", "pod", "-n", CONCIERGE, name, "-o", "json"]).await?;
    let pod: Value = serde_json::from_str(&pod)?;
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().cloned().unwrap_or_default();
    let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    assert!(paths.contains(&"/etc/kubernetes/pki"), "{paths:?}");
    assert!(!paths.iter().any(|path| path.contains("serviceaccount")), "{paths:?}");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    // `print` needs exec permission; without the key's files in the environment it reports the
    // problem.
    let exec = ["exec", "-n", CONCIERGE, name, "--", "pinniped-concierge-kube-cert-agent"];
    let printed = cluster.kubectl(&[&exec[..], &["print"]].concat()).await?;
    let printed: Value = serde_json::from_str(&printed)?;
    assert!(printed["tls.crt"].is_string() && printed["tls.key"].is_string());
    let wrong = Step::inside(
        cluster.environment,
        cluster.environment.kubectl().command(&[&exec[..], &["tuna"]].concat()),
    );
    let wrong = wrong.run(None).await?;
    assert!(wrong.stderr.starts_with("invalid subcommand \"tuna\"\n"), "{wrong:?}");
    Ok(())
}

/// A key that belongs to another certificate.
fn front_proxy_key(node: &Node) -> anyhow::Result<std::path::PathBuf> {
    for name in ["front-proxy-ca.key", "sa.key", "apiserver.key"] {
        let file = node.pki_dir().join(name);
        if Path::is_file(&file) {
            return Ok(file);
        }
    }
    anyhow::bail!("no other key in {}", node.pki_dir().display())
}

/// An administrator's view of the node.
struct Cluster<'c> {
    node: &'c Node,
    environment: &'c OnNode<'c>,
}

impl Cluster<'_> {
    async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.input(args, None).await
    }

    async fn input(&self, args: &[&str], input: Option<&str>) -> anyhow::Result<String> {
        let step = Step::inside(self.environment, self.environment.kubectl().command(args));
        Ok(step.run(input).await?.success()?.stdout)
    }

    async fn agents(&self, jsonpath: &str) -> anyhow::Result<String> {
        let jsonpath = format!("jsonpath={jsonpath}");
        self.kubectl(&["get", "pods", "-n", CONCIERGE, "-l", AGENT, "-o", &jsonpath]).await
    }

    /// Waits for exactly one ready agent, and returns its name.
    async fn running_agent(&self, within: Duration) -> anyhow::Result<String> {
        wait::until_ok(within, "one running agent", async || {
            let lines = self
                .agents(
                    "{range .items[*]}{.metadata.name} {.status.phase} {.metadata.deletionTimestamp}{\"\\n\"}{end}",
                )
                .await?;
            let [line] = lines.lines().collect::<Vec<_>>()[..] else { anyhow::bail!("{lines}") };
            let words: Vec<&str> = line.split_whitespace().collect();
            anyhow::ensure!(words.len() == 2 && words[1] == "Running", "{lines}");
            Ok(words[0].to_owned())
        })
        .await
    }

    async fn message(&self) -> anyhow::Result<String> {
        let jsonpath = "jsonpath={.status.strategies[?(@.type==\"KubeClusterSigningCertificate\")].message}";
        self.kubectl(&["get", "credentialissuer", "pinniped-concierge-config", "-o", jsonpath]).await
    }

    async fn await_output(&self, wanted: &str) -> anyhow::Result<()> {
        self.await_output_of_agent(wanted, "").await
    }

    async fn await_output_of_agent(&self, begin: &str, end: &str) -> anyhow::Result<()> {
        wait::until_ok(TIME_LIMIT, begin, async || {
            let message = self.message().await?;
            anyhow::ensure!(message.starts_with(begin) && message.ends_with(end), "{message}");
            Ok(())
        })
        .await
    }

    /// Creates an event, so that the controller syncs without the delay after a failure.
    async fn wake(&self) -> anyhow::Result<()> {
        let now = format!("woken={}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos());
        let label = ["label", "configmap", "-n", "kube-public", "cluster-info", "--overwrite", &now];
        self.kubectl(&label).await.map(drop)
    }

    /// Creates a pod that looks like kube-controller-manager with the files in `pki/other`.
    async fn other_controller_manager(&self, name: &str, node: &str) -> anyhow::Result<()> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "kube-system",
                "labels": {"component": "kube-controller-manager", "made-by": "test"},
            },
            "spec": {
                "automountServiceAccountToken": false, "nodeName": node, "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "kube-controller-manager", "image": PAUSE, "imagePullPolicy": "Never",
                    "args": [
                        "--cluster-signing-cert-file=/other/ca.crt", "--cluster-signing-key-file", "/other/ca.key",
                    ],
                    "volumeMounts": [{"name": "other", "mountPath": "/other", "readOnly": true}],
                }],
                "volumes": [{"name": "other", "hostPath": {"path": "/etc/kubernetes/pki/other", "type": "Directory"}}],
            },
        });
        self.input(&["apply", "-f", "-"], Some(&pod.to_string())).await.map(drop)
    }

    /// Returns the rules on `pods/exec` of the Concierge's Role.
    async fn exec_rules(&self) -> anyhow::Result<Vec<Value>> {
        let role = self.kubectl(&["get", "role", ROLE, "-n", CONCIERGE, "-o", "json"]).await?;
        let role: Value = serde_json::from_str(&role)?;
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        Ok(rules.into_iter().filter(|rule| rule["resources"] == json!(["pods/exec"])).collect())
    }

    /// Grants the Concierge exactly these verbs on `pods/exec`.
    async fn allow_exec(&self, verbs: &Value) -> anyhow::Result<()> {
        let role = self.kubectl(&["get", "role", ROLE, "-n", CONCIERGE, "-o", "json"]).await?;
        let mut role: Value = serde_json::from_str(&role)?;
        for rule in role["rules"].as_array_mut().into_iter().flatten() {
            if rule["resources"] == json!(["pods/exec"]) {
                rule["verbs"] = verbs.clone();
            }
        }
        let patch = json!({"rules": role["rules"]}).to_string();
        self.kubectl(&["patch", "role", ROLE, "-n", CONCIERGE, "--type=merge", "-p", &patch]).await.map(drop)
    }

    /// Returns the state of the cluster for a failure message.
    async fn existing_objects(&self) -> String {
        let mut output = String::new();
        for args in [
            &["get", "pods", "-A", "-o", "wide"][..],
            &["logs", "-n", CONCIERGE, "-l", "deployment.pinniped.dev=concierge", "--prefix", "--tail=20"],
            &["get", "events", "-n", CONCIERGE],
        ] {
            output += &self.kubectl(args).await.unwrap_or_else(|error| format!("{error:#}\n"));
        }
        output
    }
}
