//! The strategy `KubeClusterSigningCertificate`: whether the cluster's own signing key can be used.
//!
//! The key lies beside kube-controller-manager, so the question begins with that program's pod. On most cloud
//! providers' clusters there is none to see, and that is the expected answer there.

use jiff::Timestamp;
use pinniped_api::config::{CredentialIssuerStrategy, StrategyReason, StrategyType};

use super::status::failing;

/// Label that selects kube-controller-manager's pods, in the namespace `kube-system`.
pub const CONTROLLER_MANAGER_SELECTOR: &str = "component=kube-controller-manager";

/// What was seen of the pods in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Phases of kube-controller-manager's pods, or why they could not be listed.
    pub controller_managers: Result<Vec<String>, String>,
    /// Phases of the agent's pods.
    pub agents: Vec<String>,
}

/// The entry, and the same text for the log, when the key cannot be used.
pub fn decide(observed: &Observed, now: Timestamp) -> CredentialIssuerStrategy {
    failing(
        StrategyType::KubeClusterSigningCertificate,
        StrategyReason::CouldNotFetchKey,
        message(observed),
        now,
    )
}

fn message(observed: &Observed) -> String {
    let managers = match &observed.controller_managers {
        Ok(managers) => managers,
        Err(error) => return format!("error while looking for controller manager pod: {error}"),
    };
    if !managers.iter().any(|phase| phase == "Running") {
        let text = no_healthy("kube-controller-manager", managers.len());
        return if managers.is_empty() {
            format!(
                "{text}: note that this error is the expected behavior for some cluster types, including most cloud \
                 provider clusters (e.g. GKE, AKS, EKS)"
            )
        } else {
            text
        };
    }
    no_healthy("agent", observed.agents.len())
}

fn no_healthy(what: &str, candidates: usize) -> String {
    let plural = if candidates == 1 { "candidate" } else { "candidates" };
    format!("could not find a healthy {what} pod ({candidates} {plural})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_how_far_the_search_came() {
        let phases = |phases: &[&str]| Ok(phases.iter().map(|&phase| phase.to_owned()).collect());
        let cases = [
            (
                phases(&[]),
                "could not find a healthy kube-controller-manager pod (0 candidates): note that this error is the \
                 expected behavior for some cluster types, including most cloud provider clusters (e.g. GKE, AKS, EKS)",
            ),
            (phases(&["Pending"]), "could not find a healthy kube-controller-manager pod (1 candidate)"),
            (
                phases(&["Failed", "Pending"]),
                "could not find a healthy kube-controller-manager pod (2 candidates)",
            ),
            (phases(&["Pending", "Running"]), "could not find a healthy agent pod (0 candidates)"),
            (Err("boom".to_owned()), "error while looking for controller manager pod: boom"),
        ];
        for (controller_managers, wanted) in cases {
            let observed = Observed { controller_managers, agents: Vec::new() };
            let entry = decide(&observed, Timestamp::UNIX_EPOCH);
            assert_eq!(entry.message, wanted);
            assert_eq!(entry.reason, StrategyReason::CouldNotFetchKey);
            assert_eq!(entry.frontend, None);
        }
    }
}
