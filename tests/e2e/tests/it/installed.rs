//! The Concierge and the local-user-authenticator, installed once for all tests of this executable
//! as in the walk-through, with the impersonation proxy enabled behind a ClusterIP Service.
//!
//! Tests share the installation ([`shared`]) and use different names of users and namespaces. A
//! test that removes something temporarily gets it with [`alone`]: it runs while no other test
//! runs, and restores the original state.

use std::net::IpAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{
    CONCIERGE, EXTERNAL_NAME, LOCAL_USER_AUTHENTICATOR, Names, Serving, Walk, strategy,
};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::kubectl::Kubectl;
use pinniped_test_support::pods::{Pods, RunningPod};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Time limit of any step on a busy machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time limit of a step that needs a new leader. A candidate tries to acquire the Lease only every
/// 26 to 31 seconds (`RETRY_PERIOD` of the crate `controller`, with jitter).
pub(crate) const NEW_LEADER_LIMIT: Duration = Duration::from_secs(90);

/// The account whose token the proxy uses to authenticate to the API server.
pub(crate) const PROXY_ACCOUNT: &str =
    "system:serviceaccount:pinniped-concierge:pinniped-concierge-impersonation-proxy";

static INSTALLED: OnceCell<Result<Installed, String>> = OnceCell::const_new();
static TAKEN: RwLock<()> = RwLock::const_new(());

/// The results of the installation. No field belongs to a test's runtime.
pub(crate) struct Installed {
    world: &'static World,
    pub(crate) walked: Walked,
    /// The CA bundle that the CredentialIssuer advertises, PEM.
    pub(crate) ca_pem: String,
    /// The address to which the proxy's name resolves.
    pub(crate) address: IpAddr,
}

/// The results of the first steps of the walk-through.
pub(crate) struct Walked {
    pub(crate) names: Names,
    /// The CredentialIssuer after the install, with the proxy still off (mode `auto`, visible
    /// control plane node).
    pub(crate) issuer_at_first: Value,
    /// The output of `kubectl get secrets -o name` for the Concierge's namespace at that time.
    pub(crate) secrets_at_first: String,
    /// The CredentialIssuer after the proxy started to listen.
    pub(crate) issuer: Value,
}

impl Walked {
    /// Walks from an installation to a proxy that listens.
    pub(crate) async fn new(world: &World, walk: &Walk<'_>, names: Names) -> anyhow::Result<Self> {
        walk.create_user().await?;
        let issuer_at_first = walk.show_credential_issuer().await?;
        let secrets = ["get", "secrets", "-n", names.app, "-o", "name"];
        let secrets_at_first = world.kubectl().output(&secrets).await?;
        walk.create_authenticator().await?;
        walk.create_workload().await?;
        let issuer = walk.enable_proxy(&Serving::Generated).await?;
        Ok(Self { names, issuer_at_first, secrets_at_first, issuer })
    }
}

/// Access of a test to the installation, with the lock `G`. If the test fails, the pods' logs are
/// printed; if it passes, the logs must not contain a panic.
pub(crate) struct InstallationGuard<G> {
    installed: &'static Installed,
    _lock: G,
}

/// Returns the installation for a test that does not change it. Returns `None` and records a skip
/// where this machine cannot run it.
pub(crate) async fn shared(test: &str) -> Option<InstallationGuard<RwLockReadGuard<'static, ()>>> {
    let installed = installed(test).await?;
    Some(InstallationGuard { installed, _lock: TAKEN.read().await })
}

/// Returns the installation while no other test uses it.
pub(crate) async fn alone(test: &str) -> Option<InstallationGuard<RwLockWriteGuard<'static, ()>>> {
    let installed = installed(test).await?;
    Some(InstallationGuard { installed, _lock: TAKEN.write().await })
}

/// Returns the lock of [`shared`], for a test that does not use the installation but depends on
/// objects that another test may remove temporarily.
pub(crate) async fn undisturbed() -> RwLockReadGuard<'static, ()> {
    TAKEN.read().await
}

/// Returns the lock for installing definitions that other tests install, too: a concurrent test
/// would find them incomplete.
pub(crate) async fn defining() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

async fn installed(test: &str) -> Option<&'static Installed> {
    let world = World::shared().unwrap();
    let pods = world.pods(test)?;
    let installed = INSTALLED.get_or_init(|| async {
        install(world).await.map_err(|error| {
            let tails = [CONCIERGE, LOCAL_USER_AUTHENTICATOR].map(|namespace| pods.log_tails(namespace, 40));
            format!("{}\n{error:#}", tails.concat())
        })
    });
    match installed.await {
        Ok(installed) => Some(installed),
        Err(error) => panic!("the install failed: {error}"),
    }
}

async fn install(world: &'static World) -> anyhow::Result<Installed> {
    let walk = Walk::new(world, Narrator::Silent, Instant::now())?;
    walk.install().await?;
    let walked = Walked::new(world, &walk, Names::DEFAULT).await?;

    let info = &strategy(&walked.issuer, "ImpersonationProxy")["frontend"]["impersonationProxyInfo"];
    let ca = info["certificateAuthorityData"].as_str().context("no CA bundle is advertised")?;
    let ca_pem = String::from_utf8(STANDARD.decode(ca)?)?;
    let address = wait::until_ok(TIME_LIMIT, "the proxy to respond at its name", async || {
        let address = tokio::net::lookup_host((EXTERNAL_NAME, 443)).await?.next().context("no address")?;
        tokio::net::TcpStream::connect(address).await?;
        Ok(address.ip())
    })
    .await?;
    Ok(Installed { world, walked, ca_pem, address })
}

impl<G> Deref for InstallationGuard<G> {
    type Target = Installed;

    fn deref(&self) -> &Installed {
        self.installed
    }
}

impl<G> Drop for InstallationGuard<G> {
    fn drop(&mut self) {
        let pods = self.installed.pods();
        if std::thread::panicking() {
            eprintln!("{}", pods.log_tails(CONCIERGE, 30));
        } else {
            // No program of the product must panic, whatever input a test sends.
            let logs = pods.logs(CONCIERGE) + &pods.logs(LOCAL_USER_AUTHENTICATOR);
            let panics: Vec<_> = logs.lines().filter(|line| line.contains("panicked at")).collect();
            assert!(panics.is_empty(), "{panics:#?}");
        }
    }
}

/// Returns the pods of the Concierge in the namespace `app` whose process is running.
pub(crate) fn running(pods: &Pods, app: &str) -> Vec<(String, RunningPod)> {
    // The kube-cert-agent is a separate Deployment whose name starts with ours.
    let (ours, agent) = (format!("{app}-"), format!("{app}-kube-cert-agent"));
    let is_ours = |name: &str| name.starts_with(&ours) && !name.starts_with(&agent);
    let pods = pods.list(app);
    pods.into_iter().filter(|(name, pod)| is_ours(name) && pod.pid.is_some()).collect()
}

/// The credentials of a client of the proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// A client certificate.
    pub(crate) certificate: Option<Pair>,
    /// A bearer token.
    pub(crate) token: Option<String>,
}

impl Credentials {
    /// Returns empty credentials: an anonymous client.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Returns credentials with a bearer token only.
    pub(crate) fn token(token: &str) -> Self {
        Self { certificate: None, token: Some(token.to_owned()) }
    }
}

impl From<Pair> for Credentials {
    fn from(pair: Pair) -> Self {
        Self { certificate: Some(pair), token: None }
    }
}

impl Installed {
    /// The world of the installation.
    pub(crate) fn world(&self) -> &'static World {
        self.world
    }

    /// The pods.
    pub(crate) fn pods(&self) -> &'static Pods {
        self.world.pods("the installation").expect("the installation has pods")
    }

    /// Returns the Concierge's pods whose process is running.
    pub(crate) fn running(&self) -> Vec<(String, RunningPod)> {
        running(self.pods(), CONCIERGE)
    }

    /// Creates a client with all permissions, directly to the API server.
    pub(crate) async fn admin(&self) -> kube::Client {
        self.world.client().await.unwrap()
    }

    /// Issues a certificate of the cluster's own CA, which the proxy trusts in addition to its own.
    pub(crate) fn certificate(&self, user: &str, group: Option<&str>) -> Pair {
        self.world.control_plane().ca().client(user, group).unwrap()
    }

    /// Returns a kubeconfig for clients of the proxy that verify its certificate with the
    /// advertised CA.
    pub(crate) fn kubeconfig(&self, credentials: &Credentials) -> Value {
        let mut user = json!({});
        if let Some(pair) = &credentials.certificate {
            user["client-certificate-data"] = json!(STANDARD.encode(&pair.certificate_pem));
            user["client-key-data"] = json!(STANDARD.encode(&pair.private_key_pem));
        }
        if let Some(token) = &credentials.token {
            user["token"] = json!(token);
        }
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("https://{EXTERNAL_NAME}"),
                "certificate-authority-data": STANDARD.encode(&self.ca_pem)}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "user"}}],
            "users": [{"name": "user", "user": user}]})
    }

    /// Creates a client of the proxy.
    pub(crate) async fn client(&self, credentials: &Credentials) -> kube::Client {
        self.client_acting(credentials, |_| {}).await
    }

    /// Creates a client of the proxy that can impersonate another user.
    pub(crate) async fn client_acting(
        &self,
        credentials: &Credentials,
        change: impl FnOnce(&mut AuthInfo),
    ) -> kube::Client {
        let text = self.kubeconfig(credentials).to_string();
        let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        change(&mut config.auth_info);
        kube::Client::try_from(config).unwrap()
    }

    /// Returns kubectl through the proxy. `name` is the name of its kubeconfig file; use one per
    /// test.
    pub(crate) fn kubectl(&self, name: &str, credentials: &Credentials) -> Kubectl {
        let dir = self.world.dir().join("kubeconfigs").join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let file: PathBuf = dir.join("kubeconfig");
        std::fs::write(&file, self.kubeconfig(credentials).to_string()).unwrap();
        self.world.kubectl().with_kubeconfig(&file)
    }

    /// Creates a namespace.
    pub(crate) async fn namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        Api::all(self.admin().await).create(&PostParams::default(), &namespace).await.unwrap();
    }

    /// Grants `user` a separate cluster role with `rules` (JSON), and waits until the API server
    /// uses it: the proxy would cache the refusal of an earlier request for 10 s.
    pub(crate) async fn allow(&self, user: &str, rules: Value) {
        let name = role_name(user);
        let role = json!({"metadata": {"name": name}, "rules": rules});
        let role: ClusterRole = serde_json::from_value(role).unwrap();
        Api::all(self.admin().await).create(&PostParams::default(), &role).await.unwrap();
        let first = |field: &str| rules[0][field][0].as_str().unwrap_or_default().to_owned();
        let resource = first("resources");
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let requested = if rules[0]["nonResourceURLs"].is_array() {
            json!({"nonResourceAttributes": {"verb": first("verbs"), "path": first("nonResourceURLs")}})
        } else {
            json!({"resourceAttributes": {"verb": first("verbs"), "group": first("apiGroups"),
                "resource": resource, "subresource": subresource, "name": first("resourceNames")}})
        };
        self.bind(user, &name, requested).await;
    }

    /// Binds `user` to an existing cluster role, and waits until the API server allows `requested`:
    /// the attributes of a SubjectAccessReview's spec.
    pub(crate) async fn bind(&self, user: &str, role: &str, requested: Value) {
        let binding = json!({"metadata": {"name": format!("{}-{}", role_name(user), role_name(role))},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
        let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
        let client = self.admin().await;
        Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
        let mut spec = requested;
        spec["user"] = json!(user);
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": spec})).unwrap();
        let reviews = Api::<SubjectAccessReview>::all(client);
        wait::until(TIME_LIMIT, format!("{user} to be allowed {}", review_text(&review)), async || {
            let response = reviews.create(&PostParams::default(), &review).await.ok()?;
            response.status?.allowed.then_some(())
        })
        .await
        .unwrap();
    }
}

fn role_name(user: &str) -> String {
    format!("it-{}", user.replace(':', "."))
}

fn review_text(review: &SubjectAccessReview) -> String {
    serde_json::to_string(&review.spec).unwrap_or_default()
}
