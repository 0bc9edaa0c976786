//! The Concierge of a run: installed from `deploy/`, one replica, proxy enabled.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::pods::{NODE_IP, Pods};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;

/// The namespace of the installation.
pub(crate) const NAMESPACE: &str = "pinniped-concierge";
/// The name in the certificate of its proxy.
pub(super) const PROXY_NAME: &str = "bench-proxy.local";

/// If this environment variable is set, the proxy audits all requests at the level Metadata.
const AUDIT: &str = "PINNIPED_BENCH_AUDIT";

/// Adds the audit of proxied requests to the configuration, as the last keys of the ConfigMap.
fn with_audit(manifest: &str) -> String {
    const LAST_KEY: &str = "      logUsernamesAndGroups: disabled\n";
    const AUDITED: &str = "      logUsernamesAndGroups: disabled\n      \
        proxiedRequests:\n        \
          policyFile: /etc/config/audit-policy.yaml\n        \
          log: {path: /tmp/audit.log, maxSizeMegabytes: 20, maxBackups: 1}\n  \
      audit-policy.yaml: |\n    \
        {apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata}]}\n";
    manifest.replace(LAST_KEY, AUDITED)
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
        let text = if std::env::var_os(AUDIT).is_some() { with_audit(&text) } else { text };
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
    let patch = serde_json::json!({"spec": {
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
    let deployment = "deployment/pinniped-concierge";
    kubectl.output(&["patch", deployment, "-n", NAMESPACE, "-p", &patch.to_string()]).await?;
    kubectl.output(&["rollout", "status", deployment, "-n", NAMESPACE, "--timeout=120s"]).await?;
    running(world, pods).await
}

async fn running(world: &World, pods: &Pods) -> anyhow::Result<Concierge> {
    wait::until_ok(Duration::from_secs(90), "the impersonation proxy to listen", async || {
        let strategy = strategy(world).await?;
        ensure!(strategy.starts_with("Success Listening"), "{strategy}");
        let found = pods.list(NAMESPACE).into_iter().find_map(|(name, pod)| {
            let (pid, ip) = (pod.pid?, pod.ip?);
            (!name.contains("kube-cert-agent")).then_some(Concierge { pid, ip })
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
    let encoded = world.kubectl().output(&["get", "secret", &secret, "-n", NAMESPACE, "-o", PATH]).await?;
    use base64::Engine as _;
    Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded.trim())?)?)
}
