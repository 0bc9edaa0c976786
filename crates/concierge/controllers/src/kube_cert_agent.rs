//! `kube-cert-agent-controller`: reads the cluster's signing key and reports in the
//! `CredentialIssuer` whether it is available.
//!
//! ```text
//! observe    caches, nodes                     kube_cert_agent/observe.rs
//! decide     Observed -> Plan                  pinniped_concierge_domain::strategy::kube_cert_agent
//! apply      the agent's Deployment (leader), the key (every replica)
//! conclude   results -> status (leader)        pinniped_concierge_domain::strategy::kube_cert_agent
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
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::kube_cert_agent::update::Step;
use pinniped_concierge_domain::strategy::kube_cert_agent::{
    AgentPod, AppliedDeployment, Conclusion, DeploymentError, KeyError, Settings, agent_output, conclude,
    decide,
};
use pinniped_kube_types::partial::Deployment;
use pinniped_pki::CertificateStore;
use tokio::time::Instant;

use crate::api_server_address::DiscoveryUrl;
use crate::context::Context;
use crate::credential_issuer::CredentialIssuers;
use exec::AgentExec;
pub(crate) use observe::{AgentWatches, Caches, ClusterInfo};
use pinniped_controller::client::WriteError;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Time for which a loaded key is not read again from the same pod.
const KEY_CACHE_TIME: Duration = Duration::from_secs(15 * 60);

/// Parameters of the controller besides the context.
pub struct CertAgentParams {
    /// The agent's deployment settings.
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
    discovery_url: DiscoveryUrl,
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
        discovery_url: DiscoveryUrl,
        issuers: CredentialIssuers,
        caches: Caches,
    ) -> Self {
        Self { context, params, discovery_url, issuers, caches, loaded: None, logged: None }
    }

    /// Applies the change of the Deployment. Returns the result, and the error of the pass if there
    /// is one.
    async fn apply(
        &self,
        step: Result<Step, DeploymentError>,
    ) -> (AppliedDeployment, Option<ReconcileError>) {
        let error = match step {
            Ok(Step::Nothing) => return (AppliedDeployment::Done, None),
            Ok(step) => match self.write(step).await {
                Ok(()) => return (AppliedDeployment::Done, None),
                Err(WriteError::NotLeader(error)) => {
                    return (AppliedDeployment::LeftToLeader, Some(error.into()));
                }
                Err(error) if error.is_race() => return (AppliedDeployment::Conflict, None),
                Err(error) => ReconcileError::from(error),
            },
            Err(error) => ReconcileError::Failed(error.to_string()),
        };
        let applied = AppliedDeployment::Failed(StatusText::of(&error));
        (applied, Some(error.context("could not ensure agent deployment")))
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
    async fn load(&mut self, agent: &AgentPod) -> Result<(), KeyError> {
        let fresh = |(uid, since): &(String, Instant)| *uid == agent.uid && since.elapsed() < KEY_CACHE_TIME;
        if self.loaded.as_ref().is_some_and(fresh) {
            return Ok(());
        }
        let output = self.params.exec.print(agent).await.map_err(|error| KeyError::Exec {
            agent: agent.clone(),
            cause: StatusText::of(&error),
            is_forbidden: error.is_forbidden(),
        })?;
        let key = agent_output::parse(&output, agent)?;
        self.params
            .signer
            .set(&key.certificate_pem, &key.key_pem)
            .map_err(|error| KeyError::Pair { agent: agent.clone(), cause: StatusText::of(&error) })?;
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

/// Returns the error of a pass in which a read of the key failed.
fn key_error(error: &KeyError) -> ReconcileError {
    let text = error.to_string();
    match error {
        KeyError::Exec { is_forbidden: true, .. } => ReconcileError::Forbidden(text),
        _ => ReconcileError::Failed(text),
    }
}

impl Reconcile for CertAgentController {
    fn name(&self) -> &'static str {
        "kube-cert-agent-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let Some(issuer) = self.issuers.get() else {
            return Err(ReconcileError::Failed(self.issuers.missing().to_string()));
        };
        let deployment = &self.params.settings.deployment_name;
        let (client, namespace) = (&self.context.client, &self.context.namespace);
        let (observed, nodes_error) = self.caches.observe(client, namespace, deployment).await;
        let url = self.discovery_url.current();
        let plan = decide(&observed, &self.params.settings, url.as_ref().map(|url| url.as_str()));

        let mut errors: Vec<ReconcileError> = nodes_error.into_iter().collect();
        let (deployment, error) = self.apply(plan.deployment).await;
        errors.extend(error);
        // A missing pod is not an error to retry: its creation triggers the next pass.
        let key = match plan.key {
            Ok(source) => match self.load(&source.agent).await {
                Ok(()) => Ok(source.info),
                Err(error) => {
                    errors.push(key_error(&error));
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        let Conclusion { entry, recheck_after } =
            conclude(&deployment, key.as_ref().cloned(), Timestamp::now());
        self.log_change(&entry);
        errors.extend(
            self.issuers.report(&entry, issuer.metadata.generation).await.err().map(ReconcileError::from),
        );
        ReconcileError::aggregate(errors).map_or(Ok(Action { recheck_after }), Err)
    }
}
