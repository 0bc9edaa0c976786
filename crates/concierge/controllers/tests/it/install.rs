//! One installation per test: a namespace and an API group suffix of its own, and controllers that
//! run in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use pinniped_concierge_api::config::{CredentialIssuer, CredentialIssuerStrategy, StrategyType};
use pinniped_concierge_api::names::{
    STORE_IMPERSONATION_SERVING, STORE_IMPERSONATION_SIGNER, STORE_KUBE_SIGNER,
};
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_controllers::admission_report::{AdmissionGate, AdmissionParams};
use pinniped_concierge_controllers::api_certs::ApiServiceUpdater;
use pinniped_concierge_controllers::api_server_address::{AddressParams, DiscoveryUrl};
use pinniped_concierge_controllers::certificate_signing_requests::{
    CertificateSigningRequestParams, SigningClient, SigningSwitch,
};
use pinniped_concierge_controllers::context::Names;
use pinniped_concierge_controllers::controllers::{Controllers, ControllersParams};
use pinniped_concierge_controllers::impersonator::proxy_runner::{
    ProxyServer, ProxyStartError, RunningProxy,
};
use pinniped_concierge_controllers::impersonator::{ConfigMetrics, ImpersonatorParams};
use pinniped_concierge_controllers::kube_cert_agent::CertAgentParams;
use pinniped_concierge_controllers::kube_cert_agent::exec::{AgentExec, ApiServerExec};
use pinniped_concierge_controllers::service_account_tokens::{Account, Switch, TokensParams};
use pinniped_concierge_domain::admission_report::{AdmissionPlugin, UnappliedAdmission};
use pinniped_concierge_domain::renewal::GENERATED_LIFETIME;
use pinniped_concierge_domain::strategy::certificate_signing_requests::request::Maker;
use pinniped_concierge_domain::strategy::kube_cert_agent::Settings;
use pinniped_controller::lease::Timing;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::CertificateStore;
use pinniped_pki::tls::CipherRestriction;
use pinniped_tasks::TaskMonitor;
use pinniped_test_support::control_plane::ControlPlane;
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Name of the app, and prefix of its objects.
pub(crate) const APP: &str = "concierge";

const CRDS: [&str; 3] = [
    include_str!("../../../../../deploy/crds/config.concierge.pinniped.dev_credentialissuers.yaml"),
    include_str!(
        "../../../../../deploy/crds/authentication.concierge.pinniped.dev_webhookauthenticators.yaml"
    ),
    include_str!("../../../../../deploy/crds/authentication.concierge.pinniped.dev_jwtauthenticators.yaml"),
];

pub(crate) struct Install {
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    pub(crate) suffix: GroupSuffix,
    deployment: OwnerReference,
    /// Client of the pods, with an account of its own, so that the audit log separates the pods'
    /// writes from the test's.
    pods_client: kube::Client,
    /// Username of that account.
    pub(crate) account: String,
}

/// One pod of the installation.
pub(crate) struct Pod {
    pub(crate) controllers: Controllers,
    pub(crate) api_serving: CertificateStore,
    pub(crate) serving: CertificateStore,
    pub(crate) signer: CertificateStore,
    pub(crate) kube_signer: CertificateStore,
    pub(crate) signing: SigningSwitch,
    pub(crate) proxy_runs: Arc<AtomicBool>,
    pub(crate) metrics: ConfigMetrics,
    pub(crate) gate: AdmissionGate,
}

impl Install {
    /// Returns an installation called `name` whose `CredentialIssuer` has this
    /// `spec.impersonationProxy`.
    pub(crate) async fn new(name: &str, proxy: Value) -> anyhow::Result<Self> {
        Self::on(World::shared()?.control_plane(), name, proxy).await
    }

    /// Returns an installation on a specific control plane.
    pub(crate) async fn on(world: &ControlPlane, name: &str, proxy: Value) -> anyhow::Result<Self> {
        pinniped_pki::install_crypto_provider();
        let client = world.client().await?;
        let account = format!("concierge-{name}");
        let pods_client = world.client_as(&account, &["system:masters"]).await?;
        let suffix = GroupSuffix::parse(&format!("{name}.test")).context("suffix")?;
        let namespace = format!("controllers-{name}");
        for crd in CRDS {
            world.kubectl().apply(&crd.replace("pinniped.dev", suffix.as_str())).await?;
        }
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": APP, "namespace": namespace},
            "spec": {
                "replicas": 0, "selector": {"matchLabels": {"app": APP}},
                "template": {
                    "metadata": {"labels": {"app": APP}},
                    "spec": {"containers": [{"name": "x", "image": "x"}]},
                },
            },
        });
        let api_service = |group: &str| {
            json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": format!("v1alpha1.{group}.concierge.{suffix}")},
                "spec": {
                    "group": format!("{group}.concierge.{suffix}"), "version": "v1alpha1",
                    "groupPriorityMinimum": 9900, "versionPriority": 15,
                    "service": {"name": "concierge-api", "namespace": namespace, "port": 443},
                },
            })
        };
        let objects = json!({
            "apiVersion": "v1", "kind": "List",
            "items": [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
                deployment, api_service("login"), api_service("identity"),
            ],
        });
        world.kubectl().apply(&objects.to_string()).await?;
        let issuer = json!({
            "apiVersion": format!("config.concierge.{suffix}/v1alpha1"), "kind": "CredentialIssuer",
            "metadata": {"name": "concierge-config"}, "spec": {"impersonationProxy": proxy},
        });
        wait::until_ok(PATIENCE, "the CRD to be served", async || {
            world.kubectl().apply(&issuer.to_string()).await.map(drop)
        })
        .await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let deployment = deployments.get(APP).await?;
        let deployment = OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: APP.into(),
            uid: deployment.uid().context("uid")?,
            ..OwnerReference::default()
        };
        Ok(Self { client, namespace, suffix, deployment, pods_client, account })
    }

    /// Starts a pod.
    pub(crate) fn pod(&self, pod_name: &str) -> Pod {
        self.pod_with_url(pod_name, DiscoveryUrl::default())
    }

    /// Returns the agent settings of a pod started by [`Install::pod`].
    pub(crate) fn agent_settings(&self) -> Settings {
        Settings {
            namespace: self.namespace.clone(),
            deployment_name: format!("{APP}-kube-cert-agent"),
            labels: labels(),
            service_account: "default".into(),
            image: "agent:1".into(),
            image_pull_secrets: Vec::new(),
            priority_class_name: String::new(),
            run_as_user: None,
            run_as_group: None,
            deployment_strategy_type: None,
        }
    }

    /// Starts a pod with this configured URL of the API server.
    pub(crate) fn pod_with_url(&self, pod_name: &str, discovery_url: DiscoveryUrl) -> Pod {
        let exec = Arc::new(ApiServerExec::new(self.client.clone()));
        self.start(pod_name, self.agent_settings(), exec, discovery_url)
    }

    /// Starts a pod with these agent settings and this executor.
    pub(crate) fn pod_with(&self, pod_name: &str, settings: Settings, exec: Arc<dyn AgentExec>) -> Pod {
        self.start(pod_name, settings, exec, DiscoveryUrl::default())
    }

    fn start(
        &self,
        pod_name: &str,
        settings: Settings,
        exec: Arc<dyn AgentExec>,
        discovery_url: DiscoveryUrl,
    ) -> Pod {
        let name = |suffix: &str| format!("{APP}-{suffix}");
        let api_serving = CertificateStore::serving("api");
        let serving = CertificateStore::serving(STORE_IMPERSONATION_SERVING);
        let signer = CertificateStore::signer(STORE_IMPERSONATION_SIGNER);
        let kube_signer = CertificateStore::signer(STORE_KUBE_SIGNER);
        let signing = SigningSwitch::default();
        let proxy_runs = Arc::new(AtomicBool::new(false));
        let metrics = ConfigMetrics::default();
        let gate = AdmissionGate::new(UnappliedAdmission::Refuse);
        let controllers = Controllers::spawn(ControllersParams {
            client: self.pods_client.clone(),
            namespace: self.namespace.clone(),
            pod_name: pod_name.to_owned(),
            suffix: self.suffix.clone(),
            labels: labels(),
            names: Names {
                serving_certificate_secret: name("api-tls-serving-certificate"),
                credential_issuer: name("config"),
                api_service: name("api"),
                impersonation_load_balancer_service: name("lb"),
                impersonation_cluster_ip_service: name("cip"),
                impersonation_tls_certificate_secret: name("tls"),
                impersonation_ca_certificate_secret: name("ca"),
                impersonation_signer_secret: name("signer"),
                impersonation_proxy_legacy_secret: name("legacy"),
            },
            owner_deployment: self.deployment.clone(),
            owner_api_service: OwnerReference::default(),
            api_serving_lifetime: Duration::from_secs(3600),
            api_serving_renew_before: Duration::from_secs(1800),
            api_serving: api_serving.clone(),
            cert_agent: CertAgentParams { settings, signer: kube_signer.clone(), exec },
            impersonator: ImpersonatorParams {
                port: 8444,
                serving: serving.clone(),
                signer: signer.clone(),
                proxy: Arc::new(FakeProxy(Arc::clone(&proxy_runs))),
                metrics: metrics.clone(),
                serving_lifetime: GENERATED_LIFETIME,
                disable_grace: Duration::ZERO,
                shutdown_delay: Duration::ZERO,
                shutdown_grace: Duration::ZERO,
            },
            address: AddressParams { discovery_url, own_ca: "Y2E=".to_owned() },
            certificate_signing_requests: CertificateSigningRequestParams {
                switch: signing.clone(),
                signing: self.signing(),
            },
            admission: AdmissionParams {
                plugins: AdmissionPlugin::ALL.to_vec(),
                handling: UnappliedAdmission::Refuse,
                gate: gate.clone(),
            },
            service_account_tokens: TokensParams {
                switch: Switch::default(),
                account: Account::new(
                    self.pods_client.clone(),
                    &self.namespace,
                    &name("service-account-tokens"),
                    |_| self.pods_client.clone(),
                ),
                name_users: false,
            },
            registry: Registry::new(),
            proxies: ProxyEnvironment::default(),
            ciphers: CipherRestriction::default(),
            // The default durations, so that a busy machine loses no leadership, and frequent
            // attempts, so that a released Lease is acquired soon.
            metrics: Default::default(),
            lease_timing: Timing { retry: Duration::from_millis(300), ..Timing::default() },
            monitor: TaskMonitor::default(),
        });
        Pod { controllers, api_serving, serving, signer, kube_signer, signing, proxy_runs, metrics, gate }
    }

    /// Returns the client with which the pods request certificates.
    pub(crate) fn signing(&self) -> SigningClient {
        SigningClient::new(
            self.pods_client.clone(),
            Maker { namespace: self.namespace.clone(), labels: labels() },
        )
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn issuers(&self) -> Api<CredentialIssuer> {
        Api::all_with(self.client.clone(), &self.suffix)
    }

    pub(crate) fn api_services(&self) -> Api<DynamicObject> {
        let resource: ApiResource = ApiServiceUpdater::resource();
        Api::all_with(self.client.clone(), &resource)
    }

    /// Changes `spec.impersonationProxy` with a merge patch.
    pub(crate) async fn configure(&self, proxy: Value) -> anyhow::Result<()> {
        let patch = json!({"spec": {"impersonationProxy": proxy}});
        self.issuers().patch("concierge-config", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    pub(crate) async fn strategies(&self) -> anyhow::Result<Vec<CredentialIssuerStrategy>> {
        let issuer = self.issuers().get("concierge-config").await?;
        Ok(issuer.status.map(|status| status.strategies).unwrap_or_default())
    }

    /// Waits until the proxy's entry passes `is_so`.
    pub(crate) async fn strategy(
        &self,
        what: &str,
        is_so: impl Fn(&CredentialIssuerStrategy) -> bool,
    ) -> anyhow::Result<CredentialIssuerStrategy> {
        self.strategy_of(&StrategyType::ImpersonationProxy, what, is_so).await
    }

    /// Waits until the entry of this type passes `is_so`.
    pub(crate) async fn strategy_of(
        &self,
        type_: &StrategyType,
        what: &str,
        is_so: impl Fn(&CredentialIssuerStrategy) -> bool,
    ) -> anyhow::Result<CredentialIssuerStrategy> {
        wait::until_ok(PATIENCE, what, async || {
            let strategies = self.strategies().await?;
            let found = strategies.iter().find(|strategy| strategy.type_ == *type_);
            let found = found.with_context(|| format!("no entry in {strategies:?}"))?;
            anyhow::ensure!(is_so(found), "still {found:?}");
            Ok(found.clone())
        })
        .await
    }

    /// Waits for a Secret that passes `is_so`.
    pub(crate) async fn secret(&self, name: &str, is_so: impl Fn(&Secret) -> bool) -> anyhow::Result<Secret> {
        wait::until_ok(PATIENCE, format!("secret {name}"), async || {
            let secret = self.secrets().get(name).await?;
            anyhow::ensure!(is_so(&secret), "not yet as it should be");
            Ok(secret)
        })
        .await
    }

    /// Waits until a Secret is deleted.
    pub(crate) async fn secret_gone(&self, name: &str) -> anyhow::Result<()> {
        wait::until_ok(PATIENCE, format!("secret {name} to be gone"), async || {
            anyhow::ensure!(self.secrets().get_opt(name).await?.is_none(), "still there");
            Ok(())
        })
        .await
    }

    pub(crate) fn owner(&self) -> Vec<OwnerReference> {
        vec![self.deployment.clone()]
    }
}

/// Returns the `CredentialIssuer` definition of this release.
pub(crate) fn definition(suffix: &GroupSuffix) -> String {
    CRDS[0].replace("pinniped.dev", suffix.as_str())
}

/// Returns the labels of all created objects.
pub(crate) fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app".into(), APP.into()), ("more".into(), "label".into())])
}

/// A proxy that does not listen.
struct FakeProxy(Arc<AtomicBool>);

impl ProxyServer for FakeProxy {
    fn start(&self) -> BoxFuture<'_, Result<Box<dyn RunningProxy>, ProxyStartError>> {
        self.0.store(true, Ordering::SeqCst);
        let running: Box<dyn RunningProxy> = Box::new(FakeRunning(Arc::clone(&self.0)));
        Box::pin(async { Ok(running) })
    }
}

struct FakeRunning(Arc<AtomicBool>);

impl RunningProxy for FakeRunning {
    fn failed(&mut self) -> BoxFuture<'_, Option<String>> {
        Box::pin(std::future::pending())
    }
    fn stop(self: Box<Self>, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.0.store(false, Ordering::SeqCst) })
    }
}

/// Returns the bytes under `key`.
pub(crate) fn bytes<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[], |value| &value.0)
}
