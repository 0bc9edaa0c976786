//! The Concierge of a run: installed from `deploy/`, one replica, proxy enabled.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::pods::{NODE_IP, Pods};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

/// The namespace of the installation.
pub(crate) const NAMESPACE: &str = "pinniped-concierge";
/// The Deployment of the installation.
const DEPLOYMENT: &str = "pinniped-concierge";
/// The ConfigMap of the installation.
const CONFIG_MAP: &str = "pinniped-concierge-config";
/// The name in the certificate of its proxy.
pub(super) const PROXY_NAME: &str = "bench-proxy.local";
/// The name in the certificate of its aggregated API, whose port has the metrics.
pub(super) const API_NAME: &str = "pinniped-concierge-api.pinniped-concierge.svc";

/// A way to observe the Concierge that costs it CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observed {
    /// Audit and traces are off, and no client reads the metrics.
    Unobserved,
    /// The proxy writes an audit event at the level Metadata for each request, to a file.
    Audited,
    /// Traces are on, and none is recorded.
    Traced,
    /// A client reads the metrics each second.
    Scraped,
}

impl Observed {
    /// All, with the base of comparison first.
    pub(super) const ALL: [Self; 4] = [Self::Unobserved, Self::Audited, Self::Traced, Self::Scraped];

    /// Returns the name for tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unobserved => "without",
            Self::Audited => "audit at Metadata",
            Self::Traced => "traces, none recorded",
            Self::Scraped => "metrics read each second",
        }
    }

    /// Returns the name of the Deployment of its replica: the installed one, or a copy.
    fn deployment(self) -> &'static str {
        match self {
            Self::Unobserved => DEPLOYMENT,
            Self::Audited => "pinniped-concierge-audited",
            Self::Traced => "pinniped-concierge-traced",
            Self::Scraped => "pinniped-concierge-scraped",
        }
    }

    /// Returns the lines that end the configuration, of which `audit` is the last key.
    fn configuration(self, ca: &str) -> String {
        match self {
            Self::Unobserved | Self::Scraped => String::new(),
            Self::Audited => "  proxiedRequests:\n    \
                policyFile: /etc/config/audit-policy.yaml\n    \
                log: {path: /tmp/audit.log, maxSizeMegabytes: 20, maxBackups: 1}\n"
                .to_owned(),
            Self::Traced => {
                use base64::Engine as _;
                let ca = base64::engine::general_purpose::STANDARD.encode(ca);
                // Nothing is sent, so nothing needs to listen.
                format!("tracing:\n  endpoint: https://127.0.0.1:4318\n  certificateAuthorityData: {ca}\n")
            }
        }
    }
}

/// The running pod.
pub(crate) struct Concierge {
    pub(crate) pid: u32,
    pub(crate) ip: Ipv4Addr,
}

/// Installs the Concierge without starting it.
pub(crate) async fn install(world: &World) -> anyhow::Result<()> {
    let deploy = pinniped_test_support::tools::repository().join("deploy");
    let kubectl = world.kubectl();
    for file in ["install-pinniped-concierge-crds.yaml", "install-pinniped-concierge-resources.yaml"] {
        let path = deploy.join(file);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("could not read {}", path.display()))?
            // `start` below starts it once with the measured configuration.
            .replace("\n  replicas: 2\n", "\n  replicas: 0\n");
        wait::until_ok(Duration::from_secs(30), format!("kubectl apply -f {file}"), async || {
            kubectl.apply(&text).await
        })
        .await?;
    }
    let patch = format!(
        r#"{{"spec":{{"impersonationProxy":{{"mode":"enabled","externalEndpoint":"{PROXY_NAME}","service":{{"type":"None"}}}}}}}}"#
    );
    kubectl
        .output(&["patch", "credentialissuer", "pinniped-concierge-config", "--type=merge", "-p", &patch])
        .await?;
    Ok(())
}

/// Starts or restarts the Concierge, and waits until its proxy listens. Its configured API server
/// listens on `port` of the node. `run` must be a different number each time.
///
/// With kube-proxy, the kernel implements ClusterIPs. Here a program replaces it, whose work on the
/// same cores would be part of the measurement; therefore the Concierge gets the server's own
/// address. The stand-in for the kubelet probes fifty times as often as a kubelet, each time with a
/// TLS handshake, so the pod has no probe.
pub(crate) async fn start(world: &World, pods: &Pods, port: u16, run: u32) -> anyhow::Result<Concierge> {
    let patch = json!({"spec": {
        "replicas": 1,
        "strategy": {"type": "Recreate", "rollingUpdate": null},
        "template": {"metadata": {"annotations": {"bench/run": run.to_string()}}, "spec": {"containers": [{
            "name": "pinniped-concierge",
            "readinessProbe": null,
            "env": [
                {"name": "KUBERNETES_SERVICE_HOST", "value": NODE_IP.to_string()},
                {"name": "KUBERNETES_SERVICE_PORT", "value": port.to_string()},
            ],
        }]}},
    }});
    let kubectl = world.kubectl();
    kubectl.output(&["patch", "deployment", DEPLOYMENT, "-n", NAMESPACE, "-p", &patch.to_string()]).await?;
    running(world, pods, DEPLOYMENT).await
}

/// Starts one more replica of the running Concierge with the settings of a way to observe it, and
/// waits until its proxy listens. The settings take effect at the start of a replica.
pub(super) async fn start_observed(
    world: &World,
    pods: &Pods,
    observed: Observed,
) -> anyhow::Result<Concierge> {
    const POLICY: &str = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], \
        rules: [{level: Metadata}]}";
    const LAST_KEY: &str = "  logUsernamesAndGroups: disabled\n";
    let kubectl = world.kubectl();
    let get = async |kind: &str, name: &str| -> anyhow::Result<Value> {
        let text = kubectl.output(&["get", kind, name, "-n", NAMESPACE, "-o", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    };
    let name = observed.deployment();
    ensure!(name != DEPLOYMENT, "the installed Concierge is started with `start`");
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    let installed = get("configmap", CONFIG_MAP).await?;
    let installed = installed["data"]["pinniped.yaml"].as_str().context("there is no configuration")?;
    ensure!(
        installed.ends_with(LAST_KEY),
        "the configuration does not end with a key for audit: {installed}"
    );
    let added = observed.configuration(&world.control_plane().ca().certificate_pem);
    let data = json!({"pinniped.yaml": format!("{installed}{added}"), "audit-policy.yaml": POLICY});
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
    kubectl.apply(&config_map.to_string()).await?;
    let mut spec = get("deployment", DEPLOYMENT).await?["spec"].take();
    // The installed Deployment does not select the pods of the copy.
    let label = |labels: &mut Value| labels["app"] = name.into();
    for labels in ["/selector/matchLabels", "/template/metadata/labels"] {
        spec.pointer_mut(labels).map(label).with_context(|| format!("the Deployment has no {labels}"))?;
    }
    let volumes = spec.pointer_mut("/template/spec/volumes").and_then(Value::as_array_mut);
    for volume in volumes.context("the Deployment has no volumes")? {
        if volume["configMap"]["name"] == CONFIG_MAP {
            volume["configMap"]["name"] = name.into();
        }
    }
    let copy = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec});
    kubectl.apply(&copy.to_string()).await?;
    running(world, pods, name).await
}

/// Removes what [`start_observed`] has started.
pub(super) async fn stop_observed(world: &World, observed: Observed) -> anyhow::Result<()> {
    let name = observed.deployment();
    for kind in ["deployment", "configmap"] {
        world.kubectl().output(&["delete", kind, name, "-n", NAMESPACE, "--cascade=foreground"]).await?;
    }
    Ok(())
}

/// Waits until the only pod of a Deployment serves the proxy.
async fn running(world: &World, pods: &Pods, deployment: &str) -> anyhow::Result<Concierge> {
    let object = format!("deployment/{deployment}");
    let status = ["rollout", "status", &object, "-n", NAMESPACE, "--timeout=120s"];
    world.kubectl().output(&status).await?;
    // The controllers of Deployments and of ReplicaSets add one part each to the name of a pod.
    let is_of = |pod: &str| {
        let rest = pod.strip_prefix(deployment).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| rest.split('-').count() == 2)
    };
    wait::until_ok(Duration::from_secs(90), "the impersonation proxy to listen", async || {
        let strategy = strategy(world).await?;
        ensure!(strategy.starts_with("Success Listening"), "{strategy}");
        let found = pods.list(NAMESPACE).into_iter().find_map(|(name, pod)| {
            let (pid, ip) = (pod.pid?, pod.ip?);
            is_of(&name).then_some(Concierge { pid, ip })
        });
        let found = found.context("no pod of the Concierge runs")?;
        tokio::net::TcpStream::connect((found.ip, 8444)).await?;
        Ok(found)
    })
    .await
}

async fn strategy(world: &World) -> anyhow::Result<String> {
    const PATH: &str = "jsonpath={.status.strategies[?(@.type==\"ImpersonationProxy\")].status} \
         {.status.strategies[?(@.type==\"ImpersonationProxy\")].reason} \
         {.status.strategies[?(@.type==\"ImpersonationProxy\")].message}";
    world.kubectl().output(&["get", "credentialissuer", "pinniped-concierge-config", "-o", PATH]).await
}

/// Returns the CA of the proxy's certificate, PEM.
pub(super) async fn proxy_ca(world: &World) -> anyhow::Result<String> {
    const PATH: &str = "jsonpath={.data.ca\\.crt}";
    let secret = format!("{NAMESPACE}-impersonation-proxy-ca-certificate");
    decoded(&world.kubectl().output(&["get", "secret", &secret, "-n", NAMESPACE, "-o", PATH]).await?)
}

/// Lets a user read the metrics.
pub(super) async fn allow_metrics(world: &World, user: &str) -> anyhow::Result<()> {
    const NAME: &str = "bench-metrics";
    let kubectl = world.kubectl();
    let metadata = format!("metadata: {{name: {NAME}}}");
    let api = "apiVersion: rbac.authorization.k8s.io/v1";
    let rules = "rules: [{nonResourceURLs: [/metrics], verbs: [get]}]";
    let role = "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: bench-metrics}";
    let subjects = format!("subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]");
    kubectl.apply(&format!("{{{api}, kind: ClusterRole, {metadata}, {rules}}}")).await?;
    kubectl.apply(&format!("{{{api}, kind: ClusterRoleBinding, {metadata}, {role}, {subjects}}}")).await?;
    Ok(())
}

/// Returns the CA of the certificate of the port that has the metrics, PEM.
pub(super) async fn api_ca(world: &World) -> anyhow::Result<String> {
    const PATH: &str = "jsonpath={.spec.caBundle}";
    let service = "v1alpha1.login.concierge.pinniped.dev";
    decoded(&world.kubectl().output(&["get", "apiservice", service, "-o", PATH]).await?)
}

fn decoded(base64: &str) -> anyhow::Result<String> {
    use base64::Engine as _;
    Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(base64.trim())?)?)
}
