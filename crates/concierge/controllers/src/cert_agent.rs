//! `kube-cert-agent-controller`: reads the cluster's signing key and reports in the
//! `CredentialIssuer` whether it is available.
//!
//! ```text
//! observe    caches, nodes                     cert_agent/observe.rs
//! decide     Observed -> Plan                  pinniped_concierge_domain::strategy::cert_agent
//! apply      the agent's Deployment (leader), the key (every replica), the status (leader)
//! ```
//!
//! Read the module of the decision first. The key is read by exec into the agent's pod ([`exec`]).
//! Every replica reads it, because every replica signs. A loaded key stays loaded until another one
//! replaces it, even if later reads fail.

pub mod exec;
mod observe;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Api;
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyStatus};
use pinniped_concierge_domain::strategy::cert_agent::update::Step;
use pinniped_concierge_domain::strategy::cert_agent::{AgentPod, Failure, Settings, decide, entry, key};
use pinniped_kube_types::partial::Deployment;
use pinniped_pki::CertificateStore;
use tokio::time::Instant;

use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use exec::AgentExec;
pub(crate) use observe::{AgentWatches, Caches, ClusterInfo};
use pinniped_controller::client::WriteError;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Time for which a loaded key is not read again from the same pod.
const KEY_LIFETIME: Duration = Duration::from_secs(15 * 60);

/// Delay before the next pass after a write conflict on the Deployment, if no event occurs before.
const CONFLICT_RECHECK: Duration = Duration::from_secs(1);

/// Parameters of the controller besides the context.
pub struct CertAgentParams {
    /// The agent's deployment settings, and the address for clients.
    pub settings: Settings,
    /// The store for the key.
    pub signer: CertificateStore,
    /// Runs the agent's command.
    pub exec: Arc<dyn AgentExec>,
}

/// The controller.
pub struct CertAgentController {
    context: Context,
    params: CertAgentParams,
    issuers: CredentialIssuers,
    caches: Caches,
    /// UID of the pod whose key is loaded, and the time when it was loaded.
    loaded: Option<(String, Instant)>,
    logged: Option<String>,
}

impl CertAgentController {
    pub(crate) fn new(
        context: Context,
        params: CertAgentParams,
        issuers: CredentialIssuers,
        caches: Caches,
    ) -> Self {
        Self { context, params, issuers, caches, loaded: None, logged: None }
    }

    /// Applies the change of the Deployment.
    async fn ensure(&self, step: Result<Step, String>) -> Ensured {
        let step = match step {
            Ok(Step::Nothing) => return Ensured::Done,
            Ok(step) => step,
            Err(text) => return Ensured::Failed(ReconcileError::Failed(text)),
        };
        match self.write(step).await {
            Ok(()) => Ensured::Done,
            Err(WriteError::NotLeader(not_leader)) => Ensured::NotOurs(not_leader.into()),
            Err(error) if error.is_race() => Ensured::Raced,
            Err(error) => Ensured::Failed(error.into()),
        }
    }

    async fn write(&self, step: Step) -> Result<(), WriteError> {
        let (writer, name) = (self.context.writer(), &self.params.settings.deployment_name);
        let api: Api<Deployment> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let create = |mut wanted: Deployment| {
            wanted.metadata.owner_references = Some(vec![self.context.owner_deployment.clone()]);
            let (writer, api) = (&writer, &api);
            async move { writer.create(api, &wanted).await.map(drop) }
        };
        match step {
            Step::Nothing => Ok(()),
            Step::Create(wanted) => {
                writer.guard()?;
                tracing::info!(deployment = %name, "creating new deployment");
                create(*wanted).await
            }
            Step::Recreate(old, wanted) => {
                writer.guard()?;
                tracing::info!(deployment = %name, "deleting deployment to update immutable Selector field");
                writer.delete_exactly(&api, name, Some(&old.uid), Some(&old.resource_version)).await?;
                tracing::info!(deployment = %name, "creating new deployment to update immutable Selector field");
                create(*wanted).await
            }
            Step::Replace(updated) => {
                writer.guard()?;
                tracing::info!(deployment = %name, "updating existing deployment");
                writer.replace(&api, name, &updated).await.map(drop)
            }
        }
    }

    /// Loads the key of this pod into the certificate store.
    async fn load(&mut self, agent: &AgentPod) -> Result<(), ReconcileError> {
        let fresh = |(uid, since): &(String, Instant)| *uid == agent.uid && since.elapsed() < KEY_LIFETIME;
        if self.loaded.as_ref().is_some_and(fresh) {
            return Ok(());
        }
        let output = self.params.exec.print(agent).await.map_err(|error| {
            let text = format!("could not exec into {agent}: {error}");
            if error.is_forbidden() { ReconcileError::Forbidden(text) } else { ReconcileError::Failed(text) }
        })?;
        let key = key::parse(&output, agent).map_err(ReconcileError::Failed)?;
        self.params.signer.set(&key.certificate_pem, &key.key_pem).map_err(|error| {
            ReconcileError::Failed(format!("failed to set signing cert/key content from {agent}: {error}"))
        })?;
        tracing::info!(pod = %agent.name, "successfully loaded signing key from agent pod into cache");
        self.loaded = Some((agent.uid.clone(), Instant::now()));
        Ok(())
    }

    /// Logs a change of the entry's message. Errors are not logged here, because the runtime logs
    /// each retry.
    fn log_change(&mut self, entry: &CredentialIssuerStrategy) {
        if self.logged.as_ref() == Some(&entry.message) {
            return;
        }
        if entry.status != StrategyStatus::Success {
            tracing::info!(reason = %entry.message, "cluster signing key is not available");
        }
        self.logged = Some(entry.message.clone());
    }
}

/// The result of applying the change of the Deployment.
enum Ensured {
    Done,
    /// Another replica is the leader and applies the change.
    NotOurs(ReconcileError),
    /// Another client changed the Deployment at the same time; a watch event for that change
    /// follows.
    Raced,
    Failed(ReconcileError),
}

impl Reconcile for CertAgentController {
    fn name(&self) -> &'static str {
        "kube-cert-agent-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        if self.issuers.get().is_none() {
            return Err(ReconcileError::Failed(self.issuers.missing()));
        }
        let deployment = &self.params.settings.deployment_name;
        let (client, namespace) = (&self.context.client, &self.context.namespace);
        let (observed, nodes_error) = self.caches.observe(client, namespace, deployment).await;
        let plan = decide(&observed, &self.params.settings);

        let mut errors: Vec<ReconcileError> = nodes_error.into_iter().collect();
        let mut action = Action::done();
        let mut deployment_error = None;
        match self.ensure(plan.deployment).await {
            Ensured::Done => {}
            Ensured::NotOurs(error) => errors.push(error),
            Ensured::Raced => action = Action::recheck(CONFLICT_RECHECK),
            Ensured::Failed(error) => {
                deployment_error = Some(error.to_string());
                errors.push(error.context("could not ensure agent deployment"));
            }
        }
        // A missing pod is not retried: its creation triggers the next pass.
        let key = match plan.next {
            Ok(read) => match self.load(&read.agent).await {
                Ok(()) => Ok(read.info),
                Err(error) => {
                    let failure = Failure::key(error.to_string());
                    errors.push(error);
                    Err(failure)
                }
            },
            Err(failure) => Err(failure),
        };
        let entry = entry(key, deployment_error.as_deref(), Timestamp::now());
        self.log_change(&entry);
        if let Err(error) = self.issuers.report(&entry).await {
            errors.push(error.into());
        }
        match ReconcileError::aggregate(errors) {
            Some(error) => Err(error),
            None => Ok(action),
        }
    }
}
