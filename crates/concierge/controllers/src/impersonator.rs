//! `impersonator-config-controller`: brings the impersonation proxy to the state that the
//! `CredentialIssuer` specifies.
//!
//! ```text
//! observe    caches, memory, node list         impersonator/observe.rs
//! decide     Observed -> Plan                  pinniped_concierge_domain::strategy::impersonator
//! apply      apply the plan                    impersonator/apply.rs
//! conclude   results -> status                 pinniped_concierge_domain::strategy::impersonator
//! ```
//!
//! Read the module of the decision first. Every replica applies its plan, because each has its own
//! proxy and its own certificates in memory. Only the leader writes to the API server; a follower
//! skips these steps, receives the leader's result through its watches and loads it. A stopped
//! proxy drains in the background ([`proxy_runner`]); no pass waits for it.

mod apply;
mod certificate_inspection;
mod certificates;
mod config_metrics;
mod control_plane_nodes;
mod log;
mod observe;
pub mod proxy_runner;
mod services;
mod validation_report;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use pinniped_concierge_domain::strategy::certificate_validation::ReportedConcerns;
use pinniped_concierge_domain::strategy::impersonator::{Loaded, Settings, decide};
use pinniped_delegation::grants::SecretReference;
use pinniped_pki::CertificateStore;
use pinniped_tasks::TaskMonitor;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use crate::delegated_secret::DelegatedSecret;
use control_plane_nodes::ControlPlaneNodes;
use log::LoggedEvents;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError, Trigger};
use pinniped_controller::watch::Cache;
use proxy_runner::{ProxyRunner, ProxyServer};

pub use config_metrics::ConfigMetrics;
pub use pinniped_concierge_domain::strategy::impersonator::Health;

/// Parameters of the controller besides the context.
pub struct ImpersonatorParams {
    /// The port on which the proxy listens and to which the Services route.
    pub port: u16,
    /// The store of the proxy's serving certificate.
    pub serving: CertificateStore,
    /// The store of the CA that signs and verifies client certificates.
    pub signer: CertificateStore,
    /// Starts the proxy.
    pub proxy: Arc<dyn ProxyServer>,
    /// Metrics of the proxy's configuration.
    pub metrics: ConfigMetrics,
    /// Lifetime of generated serving certificates, usually
    /// [`pinniped_concierge_domain::renewal::GENERATED_LIFETIME`].
    pub serving_lifetime: Duration,
    /// Time for which open streams continue after the proxy is disabled.
    pub disable_grace: Duration,
    /// Time for which the proxy continues to accept connections after the shutdown of the process
    /// began.
    pub shutdown_delay: Duration,
    /// Time for which open streams continue after that.
    pub shutdown_grace: Duration,
}

/// The caches that the controller reads besides the `CredentialIssuer`.
pub struct ImpersonatorCaches {
    /// Secrets of the Concierge's namespace.
    pub secrets: Cache<Secret>,
    /// Services of the Concierge's namespace.
    pub services: Cache<Service>,
    /// The Secret of another namespace.
    pub delegated: DelegatedSecret,
}

/// The controller.
pub struct ImpersonatorController {
    context: Context,
    settings: Arc<Settings>,
    params: ImpersonatorParams,
    issuers: CredentialIssuers,
    secrets: Cache<Secret>,
    services: Cache<Service>,
    delegated: DelegatedSecret,
    /// The Secret that the spec names. Without a `CredentialIssuer`, the last one that it named.
    reference: Option<SecretReference>,
    proxy_runner: ProxyRunner,
    nodes: ControlPlaneNodes,
    loaded: Loaded,
    logged: LoggedEvents,
    reported: ReportedConcerns,
    /// The time until the state changes without an event, for example because a certificate becomes
    /// valid. A change that is due already is not part of it: if it fails, the delay of retries
    /// applies.
    recheck_after_failure: Option<Duration>,
    health: watch::Sender<Health>,
}

impl ImpersonatorController {
    /// Returns the controller. `trigger` wakes it; `tasks` tracks the proxy's task and its
    /// draining, and must be awaited at shutdown; `monitor` receives a panic of that task.
    pub fn new(
        context: Context,
        params: ImpersonatorParams,
        issuers: CredentialIssuers,
        caches: ImpersonatorCaches,
        trigger: Trigger,
        tasks: TaskTracker,
        monitor: TaskMonitor,
    ) -> Self {
        let ImpersonatorCaches { secrets, services, delegated } = caches;
        let names = &context.names;
        let settings = Settings {
            namespace: context.namespace.clone(),
            labels: context.labels.clone(),
            port: params.port,
            credential_issuer: names.credential_issuer.clone(),
            credential_issuer_group: context.suffix.replace("config.concierge.pinniped.dev"),
            load_balancer_service: names.impersonation_load_balancer_service.clone(),
            cluster_ip_service: names.impersonation_cluster_ip_service.clone(),
            tls_secret: names.impersonation_tls_certificate_secret.clone(),
            ca_secret: names.impersonation_ca_certificate_secret.clone(),
            signer_secret: names.impersonation_signer_secret.clone(),
        };
        Self {
            settings: Arc::new(settings),
            proxy_runner: ProxyRunner::new(Arc::clone(&params.proxy), trigger, tasks, monitor),
            nodes: ControlPlaneNodes::new(context.client.clone()),
            loaded: Loaded::default(),
            logged: LoggedEvents::default(),
            reported: ReportedConcerns::default(),
            recheck_after_failure: None,
            health: watch::Sender::default(),
            context,
            params,
            issuers,
            secrets,
            services,
            delegated,
            reference: None,
        }
    }

    /// Returns the health of this pod, updated after every pass.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

impl Reconcile for ImpersonatorController {
    fn name(&self) -> &'static str {
        "impersonator-config-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        tracing::debug!("starting impersonatorConfigController Sync");
        let (observed, sources) = self.observe().await;
        let plan = decide(&observed, Timestamp::now());
        if !plan.is_idle() {
            tracing::debug!(steps = ?plan.summary(), "impersonation proxy plan");
        }
        let rechecks = || [plan.recheck_after, self.nodes.recheck_after()].into_iter().flatten();
        let recheck_after = rechecks().min();
        self.recheck_after_failure = rechecks().filter(|after| !after.is_zero()).min();
        self.apply(plan, sources).await?;
        tracing::debug!("successfully finished impersonatorConfigController Sync");
        Ok(Action { recheck_after })
    }

    fn recheck_after_failure(&self) -> Option<Duration> {
        self.recheck_after_failure
    }

    async fn shutdown(&mut self) {
        self.proxy_runner.stop_after(self.params.shutdown_delay, self.params.shutdown_grace);
    }
}
