//! A rolling update and a scale to zero in pods, while a user's kubectls are open through the
//! impersonation proxy. (The Concierge's end-to-end tests cover signals and raw connections to a
//! single pod.)

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, CREDENTIAL_ISSUER, Serving, Walk};
use pinniped_node::fixture;
use pinniped_test_support::{rounds, wait, wire};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::{Admin, PODS};
use crate::background::Open;
use crate::walkthrough::{INSTALL, import_product, nothing_restarted};

/// Time limit of any step on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);
const ROLLOUT: &str = "--timeout=120s";
const DEPLOYMENT: &str = "deployment/pinniped-concierge";
const LEASE: &str = "pinniped-concierge";
const CONFIG: &str = "pinniped-concierge-config";

/// The template for the exit code of each pod's container.
const EXIT: &str = "jsonpath={.metadata.name} exited {.status.containerStatuses[0].state.terminated.exitCode} \
    {.status.containerStatuses[0].state.terminated.reason}{\"\\n\"}";

/// The lines that upstream's `pod_shutdown_test.go` searches for in the log of each pod, as raw
/// bytes.
const SHUTDOWN_LINES: [&str; 3] = [
    r#""[graceful-termination] shutdown event","name":"ShutdownInitiated""#,
    "[graceful-termination] apiserver is exiting",
    "fetch-impersonation-proxy-tokens start hook's background goroutine has finished",
];

/// One test, because each part starts from the state that the previous one left.
#[tokio::test]
async fn open_kubectls_survive_a_rolling_update_and_only_their_watches_end_without_an_error() {
    let Some(node) = fixture::shared("open kubectls outlive a rolling update").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();
    let admin = Admin(&environment);
    let user = User { environment: &environment, walk: &walk };
    let done = scenario(admin, &user).await;
    let output = if done.is_err() { admin.existing_objects().await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(admin: Admin<'_>, user: &User<'_>) -> anyhow::Result<()> {
    let walk = user.walk;
    walk.install().await?;
    walk.create_user().await?;
    walk.show_credential_issuer().await?;
    walk.create_authenticator().await?;
    walk.enable_proxy(&Serving::Generated).await?;
    walk.kubeconfig().await?;
    walk.allow_and_list().await?;
    // A pod is not ready until its proxy has started.
    rolled_out(admin).await?;

    kubectls_stay_open_through_a_rolling_update(admin, user).await?;
    scaled_to_zero_all_pods_terminate_before_they_are_killed(admin, user).await?;
    scaled_up_again_they_serve_and_one_of_them_leads(admin, user).await?;
    nothing_restarted(user.environment).await
}

async fn kubectls_stay_open_through_a_rolling_update(
    admin: Admin<'_>,
    user: &User<'_>,
) -> anyhow::Result<()> {
    let authority = advertised(admin).await?;
    let kubeconfig = std::fs::read(user.walk.user_kubeconfig())?;
    // A new credential: it is valid for five minutes, longer than the following steps may take.
    std::fs::remove_file(user.credentials())?;
    let open = user.open_proxy().await?;
    let credential = user.cached()?;
    let watch = user.open_watch("watch-of-before").await?;

    let over = AtomicBool::new(false);
    let old = admin.pods().await?;
    let updating = async {
        let updated = restart(admin).await;
        over.store(true, Ordering::Relaxed);
        updated
    };
    let asking = open.send_request_until(&over);
    let running = user.run_until(&over);
    let (updated, requested, ran) = tokio::join!(updating, asking, running);
    updated?;
    requested?;
    ran?;
    let new = admin.pods().await?;
    ensure!(new.len() == 2 && new.iter().all(|pod| !old.contains(pod)), "{old:?} became {new:?}");

    // A watch ends with the pod that carries it, as with a terminating API server: no error, status
    // 0. Programs restart watches automatically; the user restarts `kubectl get --watch`.
    watch.ended_well().await?;
    admin.kubectl(&["create", "configmap", "after-rollout", "-n", "default"]).await?;
    let again = user.open_watch("watch-of-after").await?;
    again.await_output("configmap/after-rollout").await?;

    user.lists().await?;
    ensure!(user.cached()? == credential, "the cached credential was not good any more");
    ensure!(advertised(admin).await? == authority, "the authority is another one");
    user.walk.kubeconfig().await?;
    ensure!(std::fs::read(user.walk.user_kubeconfig())? == kubeconfig, "the kubeconfig is another one");
    admin.kubectl(&["delete", "configmap", "after-rollout", "-n", "default"]).await?;
    nothing_restarted(user.environment).await
}

async fn scaled_to_zero_all_pods_terminate_before_they_are_killed(
    admin: Admin<'_>,
    user: &User<'_>,
) -> anyhow::Result<()> {
    let path = r"jsonpath={.data.pinniped\.yaml}";
    let configured = admin.kubectl(&["get", "configmap", CONFIG, "-n", CONCIERGE, "-o", path]).await?;
    let debug = json!({"data": {"pinniped.yaml": format!("{configured}\nlog: {{level: debug}}\n")}});
    let patch = ["patch", "configmap", CONFIG, "-n", CONCIERGE, "--type=merge", "-p", &debug.to_string()];
    admin.kubectl(&patch).await?;
    restart(admin).await?;
    let pods = admin.pods().await?;
    leads(admin, TIME_LIMIT).await?;
    nothing_restarted(user.environment).await?;

    let mut logs = Vec::new();
    for pod in &pods {
        let log = Open::start(user.environment, pod, admin.command(&["logs", "-f", "-n", CONCIERGE, pod]))?;
        log.await_output("\"level\":\"debug\"").await?;
        logs.push(log);
    }
    let watch = user.open_watch("watch-of-the-end").await?;
    let exits = Open::start(
        user.environment,
        "exits",
        admin.command(&["get", "pods", "-n", CONCIERGE, "-l", PODS, "--watch", "-o", EXIT]),
    )?;
    for pod in &pods {
        exits.await_output(pod).await?;
    }
    admin.kubectl(&["scale", DEPLOYMENT, "-n", CONCIERGE, "--replicas=0"]).await?;
    wait::until_ok(TIME_LIMIT, "all pods to be gone", async || {
        let left = admin.pods().await?;
        ensure!(left.is_empty(), "there is still {}", left.join(", "));
        Ok(())
    })
    .await?;
    // The kubelet kills a container after the termination grace period, with exit code 137.
    for pod in &pods {
        exits.await_output(&format!("{pod} exited 0 Completed\n")).await?;
    }
    let holder = holder(admin).await?;
    ensure!(holder.is_empty(), "the Lease is still held by {holder:?}");
    watch.ended_well().await?;
    for log in logs {
        let text = log.ended_well().await?;
        for wanted in SHUTDOWN_LINES {
            ensure!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
    }
    Ok(())
}

async fn scaled_up_again_they_serve_and_one_of_them_leads(
    admin: Admin<'_>,
    user: &User<'_>,
) -> anyhow::Result<()> {
    admin.kubectl(&["scale", DEPLOYMENT, "-n", CONCIERGE, "--replicas=2"]).await?;
    rolled_out(admin).await?;
    leads(admin, Duration::from_secs(60)).await?;
    // Nodes learn at different times that the pods are ready.
    wait::until_ok(TIME_LIMIT, "the proxy to serve", async || user.lists().await).await
}

/// Waits until all wanted pods are ready.
async fn rolled_out(admin: Admin<'_>) -> anyhow::Result<()> {
    admin.kubectl(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, ROLLOUT]).await.map(drop)
}

/// Performs a rolling update, which is complete when the old pods are gone, too.
async fn restart(admin: Admin<'_>) -> anyhow::Result<()> {
    let old = admin.pods().await?;
    admin.kubectl(&["rollout", "restart", DEPLOYMENT, "-n", CONCIERGE]).await?;
    rolled_out(admin).await?;
    wait::until_ok(TIME_LIMIT, "the old pods to end", async || {
        let pods = admin.pods().await?;
        ensure!(old.iter().all(|pod| !pods.contains(pod)), "of {old:?} there are still some among {pods:?}");
        Ok(())
    })
    .await
}

async fn holder(admin: Admin<'_>) -> anyhow::Result<String> {
    let path = "jsonpath={.spec.holderIdentity}";
    admin.kubectl(&["get", "lease", LEASE, "-n", CONCIERGE, "-o", path]).await
}

/// Waits until one of the current pods holds the Lease.
async fn leads(admin: Admin<'_>, within: Duration) -> anyhow::Result<()> {
    wait::until_ok(within, "a pod to hold the Lease", async || {
        let (holder, pods) = (holder(admin).await?, admin.pods().await?);
        ensure!(pods.contains(&holder), "it is held by {holder:?}, the pods are {pods:?}");
        Ok(())
    })
    .await
}

/// Returns the advertised CA of the proxy's certificate.
async fn advertised(admin: Admin<'_>) -> anyhow::Result<String> {
    let kind = "credentialissuers.config.concierge.pinniped.dev";
    let path = "jsonpath={.status.strategies[?(@.type==\"ImpersonationProxy\")].frontend.impersonationProxyInfo.certificateAuthorityData}";
    let authority = admin.kubectl(&["get", kind, CREDENTIAL_ISSUER, "-o", path]).await?;
    ensure!(!authority.is_empty(), "no authority is advertised");
    Ok(authority)
}

/// A user of the proxy, with the kubeconfig of the walk.
struct User<'u> {
    environment: &'u OnNode<'u>,
    walk: &'u Walk<'u>,
}

impl User<'_> {
    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = self.environment.kubectl().command(args);
        command.arg("--kubeconfig").arg(self.walk.user_kubeconfig()).env("HOME", self.walk.home());
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        command
    }

    /// Returns the path of the credential cache of `pinniped login`.
    fn credentials(&self) -> PathBuf {
        self.walk.home().join(".config/pinniped/credentials.yaml")
    }

    /// Returns the cached credentials, without the time of their last use.
    fn cached(&self) -> anyhow::Result<String> {
        let text = std::fs::read_to_string(self.credentials())?;
        ensure!(text.contains("clientCertificateData"), "no certificate is kept");
        let kept = text.lines().filter(|line| !line.contains("lastUsedTimestamp"));
        Ok(kept.collect::<Vec<_>>().join("\n"))
    }

    async fn lists(&self) -> anyhow::Result<()> {
        let command = self.kubectl(&["get", "configmaps", "-n", "default", "-o", "name"]);
        let output = Step::inside(self.environment, command).run(None).await?.success()?;
        ensure!(output.stdout.contains("configmap/"), "{output:?}");
        Ok(())
    }

    /// Runs one kubectl after the other until `over` is set; each must succeed.
    async fn run_until(&self, over: &AtomicBool) -> anyhow::Result<()> {
        rounds::until(over, 10, async |_| self.lists().await).await
    }

    /// Opens a watch and waits for its first output, so that it is established.
    async fn open_watch(&self, name: &str) -> anyhow::Result<Open> {
        let args = ["get", "configmaps", "-n", "default", "--watch", "-o", "name"];
        let watch = Open::start(self.environment, name, self.kubectl(&args))?;
        watch.await_output("configmap/kube-root-ca.crt").await?;
        Ok(watch)
    }

    /// Starts a `kubectl proxy`: a long-running kubectl with one HTTP/2 connection for all
    /// requests.
    async fn open_proxy(&self) -> anyhow::Result<OpenProxy> {
        let socket = self.environment.dir().join("kubectl-proxy");
        let command = self.kubectl(&["proxy", "--unix-socket", &socket.to_string_lossy()]);
        let open = Open::start(self.environment, "proxy", command)?;
        open.await_output("Starting to serve on").await?;
        let proxy = OpenProxy { socket, _open: open };
        for request in REQUESTS {
            proxy.send_request(request).await?;
        }
        Ok(proxy)
    }
}

/// The requests of a long-running kubectl: one that Go's HTTP client retries automatically, and one
/// that it never retries.
const REQUESTS: [&str; 2] = [
    "GET /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    concat!(
        "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
        "Content-Type: application/json\r\nContent-Length: 68\r\n\r\n",
        r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#
    ),
];

/// A running `kubectl proxy`.
struct OpenProxy {
    socket: PathBuf,
    _open: Open,
}

impl OpenProxy {
    async fn send_request(&self, request: &str) -> anyhow::Result<()> {
        let exchange = async {
            let stream = UnixStream::connect(&self.socket).await?;
            let mut response = wire::raw_request(stream, request.as_bytes()).await?;
            let mut body = std::mem::take(&mut response.rest);
            response.stream.read_to_end(&mut body).await?;
            let body = String::from_utf8_lossy(&body);
            ensure!(
                matches!(response.status, 200 | 201)
                    && (body.contains("kube-root-ca") || body.contains("pinny")),
                "{}\n{body}",
                response.head
            );
            Ok(())
        };
        tokio::time::timeout(TIME_LIMIT, exchange).await?
    }

    /// Sends one request after the other until `over` is set; each must succeed.
    async fn send_request_until(&self, over: &AtomicBool) -> anyhow::Result<()> {
        // A high but realistic rate; without a pause the test would be a benchmark and starve
        // everything else.
        let mut pace = interval(Duration::from_millis(50));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        rounds::until(over, 100, async |count| {
            pace.tick().await;
            self.send_request(REQUESTS[count % REQUESTS.len()]).await
        })
        .await
    }
}
