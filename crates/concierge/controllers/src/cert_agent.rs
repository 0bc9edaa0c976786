//! `kube-cert-agent-controller`: gets the cluster's own signing key, and says in the `CredentialIssuer` whether it is
//! at hand.
//!
//! ```text
//! observe    caches, nodes                     cert_agent/observe.rs
//! decide     Observed -> Plan                  pinniped_concierge_domain::strategy::cert_agent (read this first)
//! apply      the agent's Deployment (leader), then the key (every replica), then the status (leader)
//! ```
//!
//! The key is read by exec into the agent's pod ([`exec`]). That is a read: every replica signs, so every replica does
//! it, the leader or not. A key that was loaded stays until another one is loaded, whatever fails later.

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

/// How long a key that was read from a pod is taken for that pod's key.
const LIFETIME: Duration = Duration::from_secs(15 * 60);

/// When to look again after somebody else has changed the Deployment first, should no event come.
const RACE_RECHECK: Duration = Duration::from_secs(1);

/// What the controller needs beside the context.
pub struct CertAgentParams {
    /// How the agent is deployed, and what clients are told.
    pub settings: Settings,
    /// Where the key goes.
    pub signer: CertificateStore,
    /// How the agent is asked.
    pub exec: Arc<dyn AgentExec>,
}

/// The controller.
pub struct CertAgentController {
    context: Context,
    params: CertAgentParams,
    issuers: CredentialIssuers,
    caches: Caches,
    /// The pod whose key is loaded, by UID, and since when.
    loaded: Option<(String, Instant)>,
    said: Option<String>,
}

impl CertAgentController {
    pub(crate) fn new(
        context: Context,
        params: CertAgentParams,
        issuers: CredentialIssuers,
        caches: Caches,
    ) -> Self {
        Self { context, params, issuers, caches, loaded: None, said: None }
    }

    /// What the Deployment became: why it is not as it should be, for the status, if so.
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

    /// Makes sure that the key of this pod is in the holder.
    async fn load(&mut self, agent: &AgentPod) -> Result<(), ReconcileError> {
        let fresh = |(uid, since): &(String, Instant)| *uid == agent.uid && since.elapsed() < LIFETIME;
        if self.loaded.as_ref().is_some_and(fresh) {
            return Ok(());
        }
        let answer = self.params.exec.print(agent).await.map_err(|error| {
            let text = format!("could not exec into {agent}: {error}");
            if error.is_forbidden() { ReconcileError::Forbidden(text) } else { ReconcileError::Failed(text) }
        })?;
        let key = key::parse(&answer, agent).map_err(ReconcileError::Failed)?;
        self.params.signer.set(&key.certificate_pem, &key.key_pem).map_err(|error| {
            ReconcileError::Failed(format!("failed to set signing cert/key content from {agent}: {error}"))
        })?;
        tracing::info!(pod = %agent.name, "successfully loaded signing key from agent pod into cache");
        self.loaded = Some((agent.uid.clone(), Instant::now()));
        Ok(())
    }

    /// Tells the log what changed; errors are told again by whoever retries them.
    fn say(&mut self, entry: &CredentialIssuerStrategy) {
        if self.said.as_ref() == Some(&entry.message) {
            return;
        }
        if entry.status != StrategyStatus::Success {
            tracing::info!(reason = %entry.message, "cluster signing key is not available");
        }
        self.said = Some(entry.message.clone());
    }
}

/// What became of the Deployment.
enum Ensured {
    Done,
    /// Another replica is the leader and writes it.
    NotOurs(ReconcileError),
    /// It was changed by somebody else at the same time; their change will be seen.
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
            Ensured::Raced => action = Action::recheck(RACE_RECHECK),
            Ensured::Failed(error) => {
                deployment_error = Some(error.to_string());
                errors.push(error.context("could not ensure agent deployment"));
            }
        }
        // What is missing is not retried: its appearance is an event.
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
        self.say(&entry);
        if let Err(error) = self.issuers.report(&entry).await {
            errors.push(error.into());
        }
        match ReconcileError::aggregate(errors) {
            Some(error) => Err(error),
            None => Ok(action),
        }
    }
}
