//! The Concierge as the walk-through installs it: two pods, the proxy behind a Service.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, EXTERNAL_NAME, Serving, Walk, strategy};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::pods::{Pods, RunningPod};
use pinniped_test_support::wait;
use pinniped_test_support::world::{World, WorldParams};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Time limit of any step on a busy machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The Deployment of the Concierge.
pub(crate) const DEPLOYMENT: &str = "deployment/pinniped-concierge";
/// The account whose token the proxy uses to authenticate to the API server.
pub(crate) const PROXY_ACCOUNT: &str =
    "system:serviceaccount:pinniped-concierge:pinniped-concierge-impersonation-proxy";

/// A world with a running proxy.
pub(crate) struct Installed {
    pub(crate) world: World,
    /// The CA of the proxy's certificate.
    pub(crate) ca_pem: String,
}

/// A pod of the Concierge that is restarted in place.
pub(crate) struct Replica {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
}

/// Installs the Concierge in a new world and runs `soak`. An error has the end of the Concierge's
/// logs. A panic of the product is an error, too.
pub(crate) fn run(
    runtime: &Runtime,
    soak: impl AsyncFnOnce(&Installed) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let installed = install(runtime)?;
    runtime.block_on(soak(&installed)).with_context(|| installed.last_words())?;
    installed.no_panics()
}

/// Starts a world and installs the Concierge in it.
fn install(runtime: &Runtime) -> anyhow::Result<Installed> {
    eprintln!("starting a control plane, installing the Concierge");
    let world = World::start(WorldParams::default())?;
    world.pods("soak").context("this needs a network namespace of its own")?;
    let ca_pem = runtime.block_on(enable(&world))?;
    Ok(Installed { world, ca_pem })
}

async fn enable(world: &World) -> anyhow::Result<String> {
    let walk = Walk::new(world, Narrator::Silent, Instant::now())?;
    walk.install().await?;
    let issuer = walk.enable_proxy(&Serving::Generated).await?;
    let info = &strategy(&issuer, "ImpersonationProxy")["frontend"]["impersonationProxyInfo"];
    let ca = info["certificateAuthorityData"].as_str().context("no CA bundle is advertised")?;
    wait::until_ok(TIME_LIMIT, "the proxy to respond at its name", async || {
        Ok(tokio::net::TcpStream::connect((EXTERNAL_NAME, 443)).await?)
    })
    .await?;
    Ok(String::from_utf8(STANDARD.decode(ca)?)?)
}

impl Installed {
    /// The pods.
    pub(crate) fn pods(&self) -> anyhow::Result<&Pods> {
        self.world.pods("soak").context("there are no pods")
    }

    /// Returns the running pods of the Concierge.
    pub(crate) fn running(&self) -> anyhow::Result<Vec<(String, RunningPod)>> {
        let of_proxy = |name: &str| !name.contains("kube-cert-agent");
        let pods = self.pods()?.list(CONCIERGE).into_iter();
        Ok(pods.filter(|(name, pod)| of_proxy(name) && pod.pid.is_some()).collect())
    }

    /// Returns process id and address of one of them.
    pub(crate) fn one(&self) -> anyhow::Result<(u32, Ipv4Addr)> {
        let found = self.running()?.into_iter().find_map(|(_, pod)| Some((pod.pid?, pod.ip?)));
        found.context("no pod of the Concierge runs")
    }

    /// Changes the number of pods of the Concierge, and returns them when all of them are ready.
    pub(crate) async fn scale(&self, replicas: usize) -> anyhow::Result<Vec<Replica>> {
        let kubectl = self.world.kubectl();
        let count = format!("--replicas={replicas}");
        kubectl.output(&["scale", DEPLOYMENT, "-n", CONCIERGE, &count]).await?;
        wait::until_ok(TIME_LIMIT, "all replicas to be ready", async || {
            let running = self.running()?.into_iter().filter(|(_, pod)| pod.ready);
            let ready: Vec<Replica> =
                running.filter_map(|(name, pod)| Some(Replica { name, ip: pod.ip? })).collect();
            ensure!(ready.len() == replicas, "{} are ready", ready.len());
            Ok(ready)
        })
        .await
    }

    /// Issues a client certificate that the proxy trusts.
    pub(crate) fn certificate(&self, user: &str) -> anyhow::Result<Pair> {
        self.world.control_plane().ca().client(user, None)
    }

    /// Creates a client of the proxy with this certificate.
    pub(crate) async fn client(&self, pair: &Pair) -> anyhow::Result<kube::Client> {
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("https://{EXTERNAL_NAME}"),
                "certificate-authority-data": STANDARD.encode(&self.ca_pem)}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "user"}}],
            "users": [{"name": "user", "user": {
                "client-certificate-data": STANDARD.encode(&pair.certificate_pem),
                "client-key-data": STANDARD.encode(&pair.private_key_pem)}}]});
        let kubeconfig = Kubeconfig::from_yaml(&text.to_string())?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        kube::Client::try_from(config).context("could not create a client of the proxy")
    }

    /// Creates a namespace.
    pub(crate) async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        self.world.kubectl().output(&["create", "namespace", name]).await?;
        Ok(())
    }

    /// Grants `users` a separate cluster role, and waits until the first rule is effective for the
    /// last user: the proxy would cache the refusal of an earlier request.
    pub(crate) async fn allow(&self, users: &[String], rules: &Value) -> anyhow::Result<()> {
        let client = self.world.client().await?;
        let last = users.last().context("there is no user to grant permissions to")?;
        let role = json!({"metadata": {"name": "soak"}, "rules": rules});
        let role: ClusterRole = serde_json::from_value(role)?;
        Api::all(client.clone()).create(&PostParams::default(), &role).await?;
        let group = "rbac.authorization.k8s.io";
        let subjects: Vec<Value> =
            users.iter().map(|user| json!({"apiGroup": group, "kind": "User", "name": user})).collect();
        let binding = json!({"metadata": {"name": "soak"}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "soak"}});
        let binding: ClusterRoleBinding = serde_json::from_value(binding)?;
        Api::all(client.clone()).create(&PostParams::default(), &binding).await?;
        let first = |field: &str| rules[0][field][0].clone();
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {"user": last,
            "resourceAttributes": {"verb": first("verbs"), "group": first("apiGroups"),
                "resource": first("resources")}}}))?;
        let reviews = Api::<SubjectAccessReview>::all(client);
        wait::until_ok(TIME_LIMIT, "the users to have permissions", async || {
            let response = reviews.create(&PostParams::default(), &review).await?;
            ensure!(response.status.is_some_and(|status| status.allowed), "not yet");
            Ok(())
        })
        .await
    }

    /// Returns the last lines of the Concierge's logs, for messages.
    fn last_words(&self) -> String {
        self.pods().map(|pods| pods.log_tails(CONCIERGE, 20)).unwrap_or_default()
    }

    /// Fails when a program of the product panicked.
    fn no_panics(&self) -> anyhow::Result<()> {
        let logs = self.pods()?.logs(CONCIERGE);
        let panics: Vec<&str> = logs.lines().filter(|line| line.contains("panicked")).collect();
        ensure!(panics.is_empty(), "{panics:#?}");
        Ok(())
    }
}
