//! `impersonator-config-controller`: makes the impersonation proxy what the `CredentialIssuer` wants it to be.
//!
//! ```text
//! observe    caches, memory, node list        impersonator/observe.rs
//! decide     Observed -> Plan                  pinniped_concierge_domain::strategy::impersonator (read this first)
//! apply      walk the plan, then the status    impersonator/apply.rs
//! ```
//!
//! Every replica walks its plan: the proxy and the certificates in memory are its own. Writes are the leader's; a
//! follower leaves them out, sees the leader's result through its watches and then only loads it. A proxy that is
//! stopped drains in the background ([`server`]); no pass ever waits for it.

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

/// Name of the holder of the proxy's serving pair; errors begin with it.
pub const SERVING_HOLDER: &str = "impersonation-proxy-serving-cert";

/// Name of the holder of the CA that signs the proxy's client certificates; errors begin with it.
pub const SIGNER_HOLDER: &str = "impersonation-proxy-signing-cert";

/// Lifetime of the generated CA and serving certificate, which nobody renews: their CA is in users' kubeconfigs.
pub const GENERATED_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// What the controller needs beside the context.
pub struct ImpersonatorParams {
    /// The port the proxy listens on, and to which the Services lead.
    pub port: u16,
    /// What the proxy serves with.
    pub serving: CertificateStore,
    /// What signs the proxy's client certificates, and verifies them.
    pub signer: CertificateStore,
    /// Starts the proxy.
    pub proxy: Arc<dyn ProxyServer>,
    /// What a scraper sees of it.
    pub metrics: ConfigMetrics,
    /// Lifetime of generated serving certificates, usually [`GENERATED_LIFETIME`].
    pub serving_lifetime: Duration,
    /// How long open streams may go on when the proxy is switched off.
    pub disable_grace: Duration,
    /// How long the proxy goes on as before when the process ends.
    pub shutdown_delay: Duration,
    /// How long open streams may go on after that.
    pub shutdown_grace: Duration,
}

/// Whether this pod's proxy does what the strategy says, for the pod's readiness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// At least one pass has been made.
    pub observed: bool,
    /// The proxy should run here.
    pub wanted: bool,
    /// It runs.
    pub running: bool,
    /// Its names are known, so it should have a certificate.
    pub expects_certificate: bool,
    /// It has one.
    pub has_certificate: bool,
}

impl Health {
    /// Whether nothing is missing. A proxy that waits for its Service's address is not at fault.
    pub fn is_ready(&self) -> bool {
        self.observed && (!self.wanted || self.running && (!self.expects_certificate || self.has_certificate))
    }
}

/// What the controller looks at beside the `CredentialIssuer`.
pub struct Sees {
    /// Secrets of the own namespace.
    pub secrets: Store<Secret>,
    /// Services of the own namespace.
    pub services: Store<Service>,
    /// The one Secret of another namespace.
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
    /// The Secret that the spec names, or named when there was one.
    reference: Option<SecretReference>,
    supervisor: Supervisor,
    nodes: NodeKinds,
    loaded: Loaded,
    said: Said,
    announced: Announced,
    health: watch::Sender<Health>,
}

impl ImpersonatorController {
    /// `trigger` wakes this controller; `tasks` takes the proxy's task and its draining, and has to be awaited at the end;
    /// `monitor` gets a panic of that task.
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

    /// This pod's state, after every pass.
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
    fn a_pod_is_ready_when_its_proxy_does_what_is_wanted() {
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
