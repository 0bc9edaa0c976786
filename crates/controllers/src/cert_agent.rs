//! `kube-cert-agent-controller`: says in the `CredentialIssuer` whether the cluster's own signing key can be used.
//!
//! The agent that would fetch the key is not part of this version, so the strategy never succeeds; the message still
//! tells the truth about what was looked for and what was found.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::Store;
use pinniped_core::strategy::cert_agent::{Observed, decide};

use crate::credential_issuer::CredentialIssuers;
use crate::runtime::{Action, Reconcile, ReconcileError};
use crate::watch::Problem;

/// The label of the agent's pods; its value changes with what the agent can be asked.
pub const AGENT_SELECTOR: &str = "kube-cert-agent.pinniped.dev=v3";

/// The controller.
pub struct CertAgentController {
    issuers: CredentialIssuers,
    controller_managers: Store<Pod>,
    problem: Problem,
}

impl CertAgentController {
    /// `controller_managers` holds the pods in `kube-system` that are labelled as kube-controller-manager; `problem`
    /// says why not, if so.
    pub fn new(issuers: CredentialIssuers, controller_managers: Store<Pod>, problem: Problem) -> Self {
        Self { issuers, controller_managers, problem }
    }
}

impl Reconcile for CertAgentController {
    fn name(&self) -> &'static str {
        "kube-cert-agent-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let controller_managers = match self.problem.current() {
            Some(problem) => Err(problem),
            None => Ok(self.controller_managers.state().iter().map(|pod| phase(pod)).collect()),
        };
        let observed = Observed { controller_managers, agents: Vec::new() };
        let entry = decide(&observed, Timestamp::now());
        tracing::debug!(reason = %entry.message, "cluster signing key is not available");
        self.issuers.report(&entry).await?;
        Ok(Action::done())
    }
}

fn phase(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default()
}
