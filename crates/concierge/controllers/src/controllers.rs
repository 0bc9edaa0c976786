//! Composes all controllers of this crate: the caches, their readers, the triggers, and the order
//! of shutdown.
//!
//! Shutdown stops the controllers first (the impersonation proxy begins to drain), then releases
//! the Lease, then stops the watches, and waits for the draining proxy last. No write happens after
//! the Lease is released, and the next leader need not wait for open streams.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use kube::{Api, Resource};
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_api::config::CredentialIssuer;
use pinniped_concierge_api::names::{CA_AGGREGATION, CA_IMPERSONATION_SIGNER};
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_domain::credential_issuer::events::GeneratedCertificate;
use pinniped_concierge_domain::renewal::{SIGNER_LIFETIME, SIGNER_OVERLAP};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_types::event::Reporter;
use pinniped_kube_types::partial::Pod;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::CertificateStore;
use pinniped_pki::tls::CipherRestriction;
use pinniped_tasks::{TaskGroup, TaskMonitor};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::admission_report::{
    AdmissionGateController, AdmissionParams, AdmissionReportController, DecidedCondition, PluginWatch,
    StartWatch, first_responses,
};
use crate::api_certs::{
    ApiServiceUpdater, CA_CERTIFICATE, CertsExpirer, CertsManager, CertsObserver, DueCertificate, Material,
    SecretRef, TLS_CERTIFICATE_CHAIN,
};
use crate::api_server_address::{AddressParams, ApiServerAddress, DiscoveryUrl};
use crate::authenticators::cleanup::AuthenticatorCleanup;
use crate::authenticators::jwt::refresh::KeyRefresh;
use crate::authenticators::jwt::{JwtAuthenticatorController, JwtAuthenticatorParams};
use crate::authenticators::tls_source::{WatchedCaObjects, is_ca_secret};
use crate::authenticators::webhook::{WebhookAuthenticatorController, WebhookAuthenticatorParams};
use crate::certificate_signing_requests::{
    CertificateSigningRequestController, CertificateSigningRequestParams,
};
use crate::context::{Context, Names};
use crate::credential_issuer::CredentialIssuers;
use crate::delegated_secret::DelegatedSecret;
use crate::impersonator::{Health, ImpersonatorCaches, ImpersonatorController, ImpersonatorParams};
use crate::kube_cert_agent::{AgentWatches, CertAgentController, CertAgentParams};
use crate::legacy_cleanup::{LegacyPodCleaner, LegacySecretCleaner};
use crate::service_account_tokens::{ServiceAccountTokenController, TokensParams};
use pinniped_controller::client::Writer;
use pinniped_controller::event::EventRecorder;
use pinniped_controller::lease::{LeaderElection, Leadership, LeaseParams, Timing};
use pinniped_controller::metrics::ControllerMetrics;
use pinniped_controller::per_object::{PerObjectController, ReconcileObject};
use pinniped_controller::runtime::{Reconcile, Trigger, run};
use pinniped_controller::watch::{NotSynced, Problem, Watched, Watches};

/// The name under which the Concierge reports Events.
const REPORTER: &str = "pinniped-concierge";

/// Parameters of all controllers.
pub struct ControllersParams {
    /// Client for reads, writes and watches. It needs a connection with many concurrent streams,
    /// and a read timeout or pings.
    pub client: kube::Client,
    /// The namespace of this pod.
    pub namespace: String,
    /// Name of this pod: its identity in the leader election.
    pub pod_name: String,
    /// The API group suffix of this installation.
    pub suffix: GroupSuffix,
    /// Labels of every created object.
    pub labels: BTreeMap<String, String>,
    /// Object names from the configuration.
    pub names: Names,
    /// The Deployment of the Concierge; the Lease has the same name.
    pub owner_deployment: OwnerReference,
    /// The APIService of the login API.
    pub owner_api_service: OwnerReference,
    /// Lifetime of the aggregated API's CA and serving certificate.
    pub api_serving_lifetime: Duration,
    /// Age at which these certificates are replaced.
    pub api_serving_renew_before: Duration,
    /// The store of the aggregated API's serving certificate.
    pub api_serving: CertificateStore,
    /// Parameters of the agent that reads the cluster's signing key.
    pub cert_agent: CertAgentParams,
    /// Parameters of the impersonation proxy.
    pub impersonator: ImpersonatorParams,
    /// The address of the API server for clients.
    pub address: AddressParams,
    /// Parameters of certificates that the cluster's signer signs.
    pub certificate_signing_requests: CertificateSigningRequestParams,
    /// Parameters of service account tokens.
    pub service_account_tokens: TokensParams,
    /// Parameters of the report of admission objects.
    pub admission: AdmissionParams,
    /// The registry of ready authenticators.
    pub registry: Registry,
    /// The proxies between this pod and webhooks or issuers.
    pub proxies: ProxyEnvironment,
    /// The TLS 1.2 cipher suites that are allowed for webhooks and issuers.
    pub ciphers: CipherRestriction,
    /// Timing of the leader election, usually the default.
    pub lease_timing: Timing,
    /// The metrics of the controllers.
    pub metrics: ControllerMetrics,
    /// Receives the unexpected termination of a controller, the election or a watch.
    pub monitor: TaskMonitor,
}

/// The running controllers.
pub struct Controllers {
    controllers: TaskGroup,
    election: TaskGroup,
    watches: Watches,
    proxies: TaskTracker,
    leadership: Leadership,
    issuers: CredentialIssuers,
    impersonator: ImpersonatorHealth,
}

/// The health of this pod's impersonation proxy.
#[derive(Clone, Debug)]
pub struct ImpersonatorHealth {
    health: watch::Receiver<Health>,
    problem: Problem,
}

impl ImpersonatorHealth {
    /// Returns whether the pod is ready. A `CredentialIssuer` that cannot be read does not make the
    /// pod unready, because its other APIs work.
    pub fn is_ready(&self) -> bool {
        let health = *self.health.borrow();
        health.is_ready() || (!health.observed && self.problem.current().is_some())
    }

    /// Returns the current health in detail.
    pub fn current(&self) -> Health {
        *self.health.borrow()
    }

    /// Returns a receiver for every change of the health.
    pub fn subscribe(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

impl Controllers {
    /// Starts all controllers and the leader election, and returns immediately.
    pub fn spawn(params: ControllersParams) -> Self {
        let election = LeaderElection::new(
            params.client.clone(),
            LeaseParams {
                namespace: params.namespace.clone(),
                name: params.owner_deployment.name.clone(),
                identity: params.pod_name.clone(),
                owner: Some(params.owner_deployment.clone()),
                labels: params.labels.clone(),
                timing: params.lease_timing,
            },
        );
        let leadership = election.leadership();
        let reporter = Reporter { controller: REPORTER, instance: params.pod_name };
        let (events, event_task) =
            EventRecorder::new(params.client.clone(), Writer::new(leadership.clone()), reporter);
        let context = Context {
            client: params.client,
            namespace: params.namespace,
            suffix: params.suffix,
            labels: params.labels,
            names: params.names,
            owner_deployment: params.owner_deployment,
            owner_api_service: params.owner_api_service,
            leadership,
            events,
        };
        let mut spawner = Spawner::new(context.clone(), params.metrics, params.monitor.clone());
        spawner.tasks.spawn("writer of Events", |stop| event_task.run(stop));
        let mut caches = Caches::new(&context, &params.cert_agent.settings.deployment_name);
        let issuers = CredentialIssuers::new(&context, caches.issuers.store());

        spawner.api_certs(
            &mut caches,
            params.api_serving_lifetime,
            params.api_serving_renew_before,
            params.api_serving,
            &issuers,
        );
        spawner.signer_certs(&mut caches, &issuers);
        spawner.cleaners(&mut caches);
        let discovery_url = params.address.discovery_url.clone();
        spawner.cert_agent(&mut caches, issuers.clone(), params.cert_agent, discovery_url);
        spawner.certificate_signing_requests(
            &mut caches,
            issuers.clone(),
            params.certificate_signing_requests,
            params.address.clone(),
        );
        spawner.service_account_tokens(
            &mut caches,
            issuers.clone(),
            params.service_account_tokens,
            params.address,
        );
        let admission = spawner.admission_report(&mut caches, issuers.clone(), params.admission);
        spawner.authenticators(&mut caches, params.registry, params.proxies, params.ciphers);
        let impersonator = spawner.impersonator(&mut caches, issuers.clone(), params.impersonator);

        let mut watches = caches.start(&params.monitor);
        admission.into_iter().for_each(|start| start(&mut watches));
        let mut elections = TaskGroup::new(&params.monitor);
        elections.spawn("leader election", |stop| election.run(stop));
        Self {
            controllers: spawner.tasks,
            election: elections,
            watches,
            proxies: spawner.proxies,
            leadership: context.leadership,
            issuers,
            impersonator,
        }
    }

    /// Waits until every cache is filled, or will not be filled because the API server refuses the
    /// watch.
    ///
    /// # Errors
    ///
    /// Returns [`NotSynced`] if a cache had no response within that time.
    pub fn synced(&self, within: Duration) -> impl Future<Output = Result<(), NotSynced>> + Send + use<> {
        self.watches.synced(within)
    }

    /// Returns the result of the leader election.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Returns access to the `CredentialIssuer` in the cache.
    pub fn credential_issuers(&self) -> CredentialIssuers {
        self.issuers.clone()
    }

    /// Returns the health of the impersonation proxy for this pod's readiness.
    pub fn impersonator(&self) -> ImpersonatorHealth {
        self.impersonator.clone()
    }

    /// Stops everything in the documented order, and returns when the impersonation proxy has
    /// drained.
    pub async fn shutdown(self) {
        self.controllers.stop().await;
        self.election.stop().await;
        self.watches.stop().await;
        self.proxies.close();
        self.proxies.wait().await;
    }
}

/// The watches before they start.
struct Caches {
    issuers: Watched<CredentialIssuer>,
    secrets: Watched<Secret>,
    services: Watched<Service>,
    config_maps: Watched<ConfigMap>,
    agent: AgentWatches,
    legacy_pods: Watched<Pod>,
    webhooks: Watched<WebhookAuthenticator>,
    jwts: Watched<JwtAuthenticator>,
    login_api_service: Watched<DynamicObject>,
    identity_api_service: Watched<DynamicObject>,
    delegated: Option<DelegatedSecret>,
}

impl Caches {
    fn new(context: &Context, agent_deployment: &str) -> Self {
        let client = || context.client.clone();
        let (suffix, namespace) = (&context.suffix, context.namespace.as_str());
        let any = || watcher::Config::default().any_semantic();
        let named = |name: &str| any().fields(&format!("metadata.name={name}"));
        let inside = |kind: &str, namespace: &str| format!("{kind} in namespace {namespace}");
        let api_service = |group: &str| {
            let name = api_service_name(suffix, group);
            let resource = ApiServiceUpdater::resource();
            let api = Api::all_with(client(), &resource);
            Watched::new(api, resource, named(&name), "apiservices.apiregistration.k8s.io")
        };
        Self {
            issuers: Watched::new(
                Api::all_with(client(), suffix),
                suffix.clone(),
                named(&context.names.credential_issuer),
                CredentialIssuer::plural(suffix),
            ),
            secrets: Watched::new(
                Api::namespaced(client(), namespace),
                (),
                any(),
                inside("secrets", namespace),
            ),
            services: Watched::new(
                Api::namespaced(client(), namespace),
                (),
                any(),
                inside("services", namespace),
            ),
            config_maps: Watched::new(
                Api::namespaced(client(), namespace),
                (),
                any(),
                inside("configmaps", namespace),
            ),
            agent: AgentWatches::new(context, agent_deployment),
            legacy_pods: Watched::new(
                Api::namespaced(client(), namespace),
                (),
                any().labels(&LegacyPodCleaner::selector(context)),
                inside("pods", namespace),
            ),
            webhooks: Watched::new(
                Api::all_with(client(), suffix),
                suffix.clone(),
                any(),
                WebhookAuthenticator::plural(suffix),
            ),
            jwts: Watched::new(
                Api::all_with(client(), suffix),
                suffix.clone(),
                any(),
                JwtAuthenticator::plural(suffix),
            ),
            login_api_service: api_service("login"),
            identity_api_service: api_service("identity"),
            delegated: None,
        }
    }

    fn start(self, monitor: &TaskMonitor) -> Watches {
        let mut watches = Watches::new(monitor);
        watches.start(self.issuers);
        watches.start(self.secrets);
        watches.start(self.services);
        watches.start(self.config_maps);
        self.agent.start(&mut watches);
        watches.start(self.legacy_pods);
        watches.start(self.webhooks);
        watches.start(self.jwts);
        watches.start(self.login_api_service);
        watches.start(self.identity_api_service);
        if let Some(delegated) = self.delegated {
            watches.keep("watch of a delegated Secret", |stop| delegated.run(stop));
        }
        watches
    }
}

fn api_service_name(suffix: &GroupSuffix, group: &str) -> String {
    format!("v1alpha1.{}", suffix.replace(&format!("{group}.concierge.pinniped.dev")))
}

/// Starts controllers, each with its triggers and the caches to wait for.
struct Spawner {
    context: Context,
    tasks: TaskGroup,
    metrics: ControllerMetrics,
    monitor: TaskMonitor,
    proxies: TaskTracker,
}

impl Spawner {
    fn new(context: Context, metrics: ControllerMetrics, monitor: TaskMonitor) -> Self {
        Self { context, tasks: TaskGroup::new(&monitor), metrics, monitor, proxies: TaskTracker::new() }
    }

    fn start(
        &mut self,
        controller: impl Reconcile,
        trigger: Trigger,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        let (leadership, metrics) = (self.context.leadership.clone(), self.metrics.clone());
        self.tasks
            .spawn(controller.name(), |stop| run(controller, trigger, ready, leadership, metrics, stop));
    }

    fn start_per_object(
        &mut self,
        controller: impl ReconcileObject,
        trigger: Trigger,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        let (leadership, metrics) = (self.context.leadership.clone(), self.metrics.clone());
        let controller = PerObjectController::new(controller, leadership, metrics, self.monitor.clone());
        self.start(controller, trigger, ready);
    }

    /// Returns a trigger for changes of one Secret in the Concierge's namespace.
    fn on_secret(&self, caches: &mut Caches, name: &str) -> (SecretRef, Trigger) {
        let trigger = Trigger::new();
        let wanted = name.to_owned();
        caches.secrets.wake(&trigger, move |secret| secret.metadata.name.as_deref() == Some(wanted.as_str()));
        let secret = SecretRef {
            store: caches.secrets.store(),
            namespace: self.context.namespace.clone(),
            name: name.to_owned(),
        };
        (secret, trigger)
    }

    fn certs(
        &mut self,
        caches: &mut Caches,
        name: &str,
        material: Material,
        due: DueCertificate,
        issuers: &CredentialIssuers,
    ) {
        let (secret, trigger) = self.on_secret(caches, name);
        let manager = CertsManager::new(self.context.clone(), secret, material, issuers.clone());
        self.start(manager, trigger, caches.secrets.ready());
        let (secret, trigger) = self.on_secret(caches, name);
        let expirer = CertsExpirer::new(self.context.clone(), secret, due, issuers.clone());
        self.start(expirer, trigger, caches.secrets.ready());
    }

    fn api_certs(
        &mut self,
        caches: &mut Caches,
        lifetime: Duration,
        renew_before: Duration,
        store: CertificateStore,
        issuers: &CredentialIssuers,
    ) {
        let certificate = GeneratedCertificate::ApiServing;
        let names = self.context.names.clone();
        let host = format!("{}.{}.svc", names.api_service, self.context.namespace);
        let material = Material {
            certificate,
            ca_common_name: CA_AGGREGATION.to_owned(),
            lifetime,
            serving_names: vec![host.clone(), format!("{host}.cluster.local")],
        };
        let name = &names.serving_certificate_secret;
        let due = DueCertificate { certificate, key: TLS_CERTIFICATE_CHAIN, renew_before };
        self.certs(caches, name, material, due, issuers);
        let (secret, trigger) = self.on_secret(caches, name);
        self.start(CertsObserver::new(secret, store), trigger, caches.secrets.ready());
        for group in ["login", "identity"] {
            let (secret, trigger) = self.on_secret(caches, name);
            let api_services = match group {
                "login" => &mut caches.login_api_service,
                _ => &mut caches.identity_api_service,
            };
            api_services.wake(&trigger, |_| true);
            let api_service = api_service_name(&self.context.suffix, group);
            let updater = ApiServiceUpdater::new(self.context.clone(), secret, api_service);
            self.start(updater, trigger, caches.secrets.ready());
        }
    }

    fn signer_certs(&mut self, caches: &mut Caches, issuers: &CredentialIssuers) {
        let certificate = GeneratedCertificate::ImpersonationSigner;
        let name = self.context.names.impersonation_signer_secret.clone();
        let material = Material {
            certificate,
            ca_common_name: CA_IMPERSONATION_SIGNER.to_owned(),
            lifetime: SIGNER_LIFETIME,
            serving_names: Vec::new(),
        };
        let renew_before = SIGNER_LIFETIME - SIGNER_OVERLAP;
        let due = DueCertificate { certificate, key: CA_CERTIFICATE, renew_before };
        self.certs(caches, &name, material, due, issuers);
    }

    fn cleaners(&mut self, caches: &mut Caches) {
        let name = self.context.names.impersonation_proxy_legacy_secret.clone();
        let (secret, trigger) = self.on_secret(caches, &name);
        let cleaner = LegacySecretCleaner::new(self.context.clone(), secret.store);
        self.start(cleaner, trigger, caches.secrets.ready());

        let trigger = Trigger::new();
        caches.legacy_pods.wake(&trigger, |_| true);
        let cleaner = LegacyPodCleaner::new(self.context.clone(), caches.legacy_pods.store());
        self.start(cleaner, trigger, caches.legacy_pods.ready());
    }

    fn cert_agent(
        &mut self,
        caches: &mut Caches,
        issuers: CredentialIssuers,
        params: CertAgentParams,
        discovery_url: DiscoveryUrl,
    ) {
        let trigger = Trigger::new();
        caches.issuers.wake(&trigger, |_| true);
        caches.agent.wake(&trigger);
        discovery_url.wake(&trigger);
        let (issuers_ready, agent_ready) = (caches.issuers.ready(), caches.agent.ready());
        let agent = caches.agent.caches();
        let controller =
            CertAgentController::new(self.context.clone(), params, discovery_url, issuers, agent);
        self.start(controller, trigger, async move {
            issuers_ready.await;
            agent_ready.await;
        });
    }

    fn certificate_signing_requests(
        &mut self,
        caches: &mut Caches,
        issuers: CredentialIssuers,
        params: CertificateSigningRequestParams,
        address: AddressParams,
    ) {
        let (trigger, address, ready) = Self::on_api_server_address(caches, address);
        let controller =
            CertificateSigningRequestController::new(self.context.clone(), params, issuers, address);
        self.start(controller, trigger, ready);
    }

    fn service_account_tokens(
        &mut self,
        caches: &mut Caches,
        issuers: CredentialIssuers,
        params: TokensParams,
        address: AddressParams,
    ) {
        let (trigger, address, ready) = Self::on_api_server_address(caches, address);
        let controller = ServiceAccountTokenController::new(self.context.clone(), params, issuers, address);
        self.start(controller, trigger, ready);
    }

    /// Returns a trigger for changes of the `CredentialIssuer` and of the API server's address, the
    /// address, and a future that ends when both are known.
    fn on_api_server_address(
        caches: &mut Caches,
        params: AddressParams,
    ) -> (Trigger, ApiServerAddress, impl Future<Output = ()> + Send + use<>) {
        let trigger = Trigger::new();
        caches.issuers.wake(&trigger, |_| true);
        caches.agent.wake_for_cluster_info(&trigger);
        params.discovery_url.wake(&trigger);
        let (issuers_ready, cluster_info_ready) = (caches.issuers.ready(), caches.agent.cluster_info_ready());
        let ready = async move {
            issuers_ready.await;
            cluster_info_ready.await;
        };
        (trigger, ApiServerAddress::new(caches.agent.cluster_info(), params), ready)
    }

    /// Starts the report of admission objects, and returns its watches.
    fn admission_report(
        &mut self,
        caches: &mut Caches,
        issuers: CredentialIssuers,
        params: AdmissionParams,
    ) -> Vec<StartWatch> {
        let (trigger, report) = (Trigger::new(), Trigger::new());
        caches.issuers.wake(&report, |_| true);
        let (mut plugins, mut responses, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for plugin in params.plugins {
            let watch = PluginWatch::new(&self.context.client, plugin, &trigger);
            plugins.push(watch.objects);
            responses.push(watch.responded);
            starts.push(watch.start);
        }
        let condition = DecidedCondition::default();
        let reporter = AdmissionReportController { issuers, condition: condition.clone() };
        self.start(reporter, report.clone(), caches.issuers.ready());
        let AdmissionParams { handling, gate, .. } = params;
        let suffix = self.context.suffix.clone();
        let decider = AdmissionGateController { suffix, handling, gate, plugins, condition, report };
        self.start(decider, trigger, first_responses(responses));
        starts
    }

    fn authenticators(
        &mut self,
        caches: &mut Caches,
        registry: Registry,
        proxies: ProxyEnvironment,
        ciphers: CipherRestriction,
    ) {
        let ca_objects = WatchedCaObjects {
            namespace: self.context.namespace.clone(),
            secrets: caches.secrets.store(),
            config_maps: caches.config_maps.store(),
        };
        let (trigger, ready) = Self::on_ca_objects(caches);
        caches.webhooks.wake(&trigger, |_| true);
        let controller = WebhookAuthenticatorController::new(WebhookAuthenticatorParams {
            context: self.context.clone(),
            registry: registry.clone(),
            authenticators: caches.webhooks.store(),
            ca_objects: ca_objects.clone(),
            proxies: proxies.clone(),
            ciphers: ciphers.clone(),
        });
        let webhooks = caches.webhooks.ready();
        self.start_per_object(controller, trigger, async move {
            webhooks.await;
            ready.await;
        });

        let (trigger, ready) = Self::on_ca_objects(caches);
        caches.jwts.wake(&trigger, |_| true);
        let controller = JwtAuthenticatorController::new(JwtAuthenticatorParams {
            context: self.context.clone(),
            registry: registry.clone(),
            authenticators: caches.jwts.store(),
            ca_objects,
            proxies,
            ciphers,
        });
        let refresh = KeyRefresh::new(registry.clone(), trigger.clone());
        let jwts = caches.jwts.ready();
        self.start_per_object(controller, trigger, async move {
            jwts.await;
            ready.await;
        });
        let trigger = Trigger::new();
        caches.jwts.wake(&trigger, |_| true);
        self.start_per_object(refresh, trigger, caches.jwts.ready());

        let trigger = Trigger::new();
        caches.webhooks.wake(&trigger, |_| true);
        caches.jwts.wake(&trigger, |_| true);
        let cleanup = AuthenticatorCleanup {
            suffix: self.context.suffix.clone(),
            registry,
            webhooks: caches.webhooks.store(),
            jwts: caches.jwts.store(),
        };
        let (webhooks, jwts) = (caches.webhooks.ready(), caches.jwts.ready());
        self.start(cleanup, trigger, async move {
            webhooks.await;
            jwts.await;
        });
    }

    /// Returns a trigger for changes of objects that can hold a CA bundle, and a future that ends
    /// when their caches are filled.
    fn on_ca_objects(caches: &mut Caches) -> (Trigger, impl Future<Output = ()> + Send + use<>) {
        let trigger = Trigger::new();
        caches.config_maps.wake(&trigger, |_| true);
        caches.secrets.wake(&trigger, is_ca_secret);
        let (secrets, config_maps) = (caches.secrets.ready(), caches.config_maps.ready());
        let ready = async move {
            secrets.await;
            config_maps.await;
        };
        (trigger, ready)
    }

    fn impersonator(
        &mut self,
        caches: &mut Caches,
        issuers: CredentialIssuers,
        params: ImpersonatorParams,
    ) -> ImpersonatorHealth {
        let trigger = Trigger::new();
        caches.issuers.wake(&trigger, |_| true);
        // Any Secret may be the external one, whatever its type; there are few Secrets, and a pass
        // is cheap.
        caches.secrets.wake(&trigger, |_| true);
        let names = &self.context.names;
        let services = [
            names.impersonation_load_balancer_service.clone(),
            names.impersonation_cluster_ip_service.clone(),
        ];
        caches.services.wake(&trigger, move |service| {
            service.metadata.name.as_ref().is_some_and(|name| services.contains(name))
        });
        let delegated = DelegatedSecret::new(
            self.context.client.clone(),
            self.context.namespace.clone(),
            params.serving.clone(),
            trigger.clone(),
        );
        caches.delegated = Some(delegated.clone());
        let controller = ImpersonatorController::new(
            self.context.clone(),
            params,
            issuers,
            ImpersonatorCaches {
                secrets: caches.secrets.cache(),
                services: caches.services.cache(),
                delegated,
            },
            trigger.clone(),
            self.proxies.clone(),
            self.monitor.clone(),
        );
        let health = ImpersonatorHealth { health: controller.health(), problem: caches.issuers.problem() };
        let (issuers, secrets, services) =
            (caches.issuers.ready(), caches.secrets.ready(), caches.services.ready());
        self.start(controller, trigger, async move {
            issuers.await;
            secrets.await;
            services.await;
        });
        health
    }
}
