//! `impersonator-config-controller`: brings the impersonation proxy to the state that the
//! `CredentialIssuer` specifies.
//!
//! ```text
//! observe    caches, memory, node list         impersonator/observe.rs
//! decide     Observed -> Plan                  pinniped_concierge_domain::strategy::impersonator
//! apply      apply the plan, then the status   impersonator/apply.rs
//! ```
//!
//! Read the module of the decision first. Every replica applies its plan, because each has its own
//! proxy and its own certificates in memory. Only the leader writes to the API server; a follower
//! skips these steps, receives the leader's result through its watches and loads it. A stopped
//! proxy drains in the background ([`server`]); no pass waits for it.

mod apply;
mod certificate_inspection;
mod certificates;
mod log;
mod metrics;
mod nodes;
mod observe;
pub mod server;
mod services;
mod validation_report;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::runtime::reflector::Store;
use pinniped_concierge_domain::strategy::impersonator::{Loaded, Settings, decide};
use pinniped_delegation::grants::SecretReference;
use pinniped_pki::CertificateStore;
use pinniped_tasks::TaskMonitor;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use crate::delegated_secret::DelegatedSecret;
use log::Said;
use nodes::NodeKinds;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError, Trigger};
use server::{ProxyServer, Supervisor};
use validation_report::Announced;

pub use metrics::ConfigMetrics;

/// Name of the proxy's serving certificate in error texts.
pub const SERVING_HOLDER: &str = "impersonation-proxy-serving-cert";

/// Name of the CA that signs the proxy's client certificates in error texts.
pub const SIGNER_HOLDER: &str = "impersonation-proxy-signing-cert";

/// Lifetime of the generated CA and serving certificate. It is long because the CA is in users'
/// kubeconfigs and is not renewed.
pub const GENERATED_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

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
    /// Lifetime of generated serving certificates, usually [`GENERATED_LIFETIME`].
    pub serving_lifetime: Duration,
    /// Time for which open streams continue after the proxy is disabled.
    pub disable_grace: Duration,
    /// Time for which the proxy continues to accept connections after the shutdown of the process
    /// began.
    pub shutdown_delay: Duration,
    /// Time for which open streams continue after that.
    pub shutdown_grace: Duration,
}

/// The health of this pod's proxy, for the readiness of the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// At least one pass has completed.
    pub observed: bool,
    /// The proxy should run in this process.
    pub wanted: bool,
    /// The proxy runs.
    pub running: bool,
    /// The names of the proxy are known, so it should have a certificate.
    pub expects_certificate: bool,
    /// The proxy has a certificate.
    pub has_certificate: bool,
}

impl Health {
    /// Returns whether nothing is missing. A proxy that waits for the address of its Service counts
    /// as ready.
    pub fn is_ready(&self) -> bool {
        self.observed && (!self.wanted || self.running && (!self.expects_certificate || self.has_certificate))
    }
}

/// The stores that the controller reads besides the `CredentialIssuer`.
pub struct Sees {
    /// Secrets of the Concierge's namespace.
    pub secrets: Store<Secret>,
    /// Services of the Concierge's namespace.
    pub services: Store<Service>,
    /// The Secret of another namespace.
    pub delegated: DelegatedSecret,
}

/// The controller.
pub struct ImpersonatorController {
    context: Context,
    settings: Arc<Settings>,
    params: ImpersonatorParams,
    issuers: CredentialIssuers,
    secrets: Store<Secret>,
    services: Store<Service>,
    delegated: DelegatedSecret,
    /// The Secret that the spec names. Without a `CredentialIssuer`, the last one that it named.
    reference: Option<SecretReference>,
    supervisor: Supervisor,
    nodes: NodeKinds,
    loaded: Loaded,
    said: Said,
    announced: Announced,
    health: watch::Sender<Health>,
}

impl ImpersonatorController {
    /// Returns the controller. `trigger` wakes it; `tasks` tracks the proxy's task and its
    /// draining, and must be awaited at shutdown; `monitor` receives a panic of that task.
    pub fn new(
        context: Context,
        params: ImpersonatorParams,
        issuers: CredentialIssuers,
        sees: Sees,
        trigger: Trigger,
        tasks: TaskTracker,
        monitor: TaskMonitor,
    ) -> Self {
        let Sees { secrets, services, delegated } = sees;
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
            supervisor: Supervisor::new(Arc::clone(&params.proxy), trigger, tasks, monitor),
            nodes: NodeKinds::new(context.client.clone()),
            loaded: Loaded::default(),
            said: Said::default(),
            announced: Announced::default(),
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
        let recheck = [plan.recheck_after, self.nodes.recheck_after()].into_iter().flatten().min();
        self.apply(plan, sources).await?;
        tracing::debug!("successfully finished impersonatorConfigController Sync");
        Ok(Action { recheck_after: recheck })
    }

    async fn shutdown(&mut self) {
        self.supervisor.stop_after(self.params.shutdown_delay, self.params.shutdown_grace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_ready_if_its_proxy_has_the_wanted_state() {
        let pending = Health { observed: true, wanted: true, running: true, ..Health::default() };
        let serving = Health { expects_certificate: true, has_certificate: true, ..pending };
        for (case, health, wanted) in [
            ("before the first pass", Health::default(), false),
            ("switched off", Health { observed: true, ..Health::default() }, true),
            ("not running", Health { running: false, ..serving }, false),
            ("waiting for an address", pending, true),
            ("serving", serving, true),
            ("without its certificate", Health { has_certificate: false, ..serving }, false),
        ] {
            assert_eq!(health.is_ready(), wanted, "{case}");
        }
    }
}
