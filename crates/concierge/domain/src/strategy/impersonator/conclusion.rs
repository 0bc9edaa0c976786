//! Decides the status after the steps of a plan were applied.

use jiff::Timestamp;
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyReason, StrategyType};
use pinniped_go_compat::base64;

use super::plan::{Bundle, ProxyStatus};
use crate::credential_issuer::MissingCredentialIssuer;
use crate::credential_issuer::strategies;
use crate::status_text::StatusText;

/// Message of the status if the installed schema rejects an entry without a bundle.
const EMPTY_BUNDLE_REFUSED: &str = "the installed CredentialIssuer CRD does not allow an empty \
    certificateAuthorityData: apply the CRD of this release, or set \
    spec.impersonationProxy.tls.certificateAuthorityData";

/// The kind of a failed step, which decides the reason in the status and how the failure is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFailureKind {
    /// Another client changed or created the object; the next pass resolves the conflict.
    Conflict,
    /// A permission is missing.
    Forbidden,
    /// Any other failure.
    Other,
}

/// The first step that failed. It ended the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// The text for the status.
    pub message: StatusText,
    /// The kind of the failure.
    pub kind: StepFailureKind,
}

/// The result of applying the steps of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedSteps {
    /// The failure that ended the pass.
    pub failure: Option<StepFailure>,
    /// Whether a step was left to the leader.
    pub left_to_leader: bool,
    /// Certificate of the generated CA as PEM: the observed one, or the one that a step created.
    pub generated_ca: Option<String>,
}

/// The error that a pass returns after the status was written. The runtime logs and retries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassError {
    /// The text of the error.
    pub message: StatusText,
    /// Whether the cause is a missing permission.
    pub is_forbidden: bool,
}

impl PassError {
    fn failed(message: StatusText) -> Self {
        Self { message, is_forbidden: false }
    }
}

/// The end of a pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Conclusion {
    /// The leader completes the pass and writes the status.
    LeftToLeader,
    /// There is no object whose status could be written.
    NoCredentialIssuer(MissingCredentialIssuer),
    /// The status must have this entry.
    Report {
        /// The entry.
        entry: Box<CredentialIssuerStrategy>,
        /// The error of the pass, if there is one.
        error: Option<PassError>,
    },
}

/// Decides the status: that of the plan, or that of the step that failed.
pub fn conclude(status: &ProxyStatus, applied: &AppliedSteps, now: Timestamp) -> Conclusion {
    let failing =
        |reason, message: &str| strategies::failing(StrategyType::ImpersonationProxy, reason, message, now);
    if let Some(StepFailure { message, kind }) = &applied.failure {
        let reason = match kind {
            StepFailureKind::Conflict => StrategyReason::Pending,
            StepFailureKind::Forbidden | StepFailureKind::Other => StrategyReason::ErrorDuringSetup,
        };
        let is_forbidden = *kind == StepFailureKind::Forbidden;
        let error = PassError { message: message.clone(), is_forbidden };
        return Conclusion::Report { entry: Box::new(failing(reason, message.as_str())), error: Some(error) };
    }
    let entry = match status {
        ProxyStatus::NoCredentialIssuer(missing) => return Conclusion::NoCredentialIssuer(missing.clone()),
        ProxyStatus::Failed(error) => {
            let message = StatusText::of(error);
            let entry = Box::new(failing(StrategyReason::ErrorDuringSetup, message.as_str()));
            return Conclusion::Report { entry, error: Some(PassError::failed(message)) };
        }
        ProxyStatus::Disabled(message) => failing(StrategyReason::Disabled, message),
        ProxyStatus::Pending => failing(StrategyReason::Pending, strategies::WAITING),
        ProxyStatus::Listening { endpoint, bundle } => {
            let pem = match bundle {
                Bundle::Pem(pem) => pem.as_slice(),
                Bundle::Generated => match &applied.generated_ca {
                    Some(pem) => pem.as_bytes(),
                    // The leader creates the CA.
                    None => return Conclusion::LeftToLeader,
                },
            };
            strategies::listening(endpoint, base64::encode(pem), now)
        }
    };
    if applied.left_to_leader {
        return Conclusion::LeftToLeader;
    }
    Conclusion::Report { entry: Box::new(entry), error: None }
}

/// The reason why the API server refuses to store an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryRefusal {
    /// The schema of the installed definition does not allow it.
    Invalid,
    /// The object would be too large; the text is the API server's.
    TooLarge(StatusText),
}

/// Returns the entry to write instead of one that the API server refuses, and the error of the
/// pass. Returns `None` if the bundle of the entry is not the cause.
pub fn conclude_refusal(
    entry: &CredentialIssuerStrategy,
    refusal: &EntryRefusal,
    now: Timestamp,
) -> Option<(CredentialIssuerStrategy, PassError)> {
    let info = entry.frontend.as_ref()?.impersonation_proxy_info.as_ref()?;
    let bundle = &info.certificate_authority_data;
    let message = match refusal {
        EntryRefusal::Invalid if bundle.is_empty() => EMPTY_BUNDLE_REFUSED.to_owned(),
        EntryRefusal::Invalid => return None,
        EntryRefusal::TooLarge(error) => {
            format!("the CA bundle to advertise is too large ({} bytes as base64): {error}", bundle.len())
        }
    };
    let (type_, reason) = (StrategyType::ImpersonationProxy, StrategyReason::ErrorDuringSetup);
    Some((strategies::failing(type_, reason, &message, now), PassError::failed(message.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::impersonator::ProxyError;

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn listening(bundle: Bundle) -> ProxyStatus {
        ProxyStatus::Listening { endpoint: "https://x".to_owned(), bundle }
    }

    fn failed_step(kind: StepFailureKind) -> AppliedSteps {
        let failure = Some(StepFailure { message: "no".into(), kind });
        AppliedSteps { failure, left_to_leader: true, generated_ca: None }
    }

    /// Formats a conclusion: status, reason and message of the entry, and the error.
    fn summary(conclusion: &Conclusion) -> String {
        match conclusion {
            Conclusion::LeftToLeader => "left to the leader".to_owned(),
            Conclusion::NoCredentialIssuer(missing) => missing.to_string(),
            Conclusion::Report { entry, error } => {
                let error = match error {
                    None => String::new(),
                    Some(PassError { message, is_forbidden: false }) => format!(" ({message})"),
                    Some(PassError { message, is_forbidden: true }) => format!(" (forbidden: {message})"),
                };
                let (status, reason) = (entry.status.as_str(), entry.reason.as_str());
                format!("{status} {reason}: {}{error}", entry.message)
            }
        }
    }

    #[test]
    fn each_result_of_a_pass_has_its_status() {
        let applied = AppliedSteps::default;
        let with_ca = || AppliedSteps { generated_ca: Some("ca".to_owned()), ..applied() };
        let left_to_leader = || AppliedSteps { left_to_leader: true, ..with_ca() };
        let missing = MissingCredentialIssuer { group: "g".to_owned(), name: "n".to_owned() };
        let no_signer = || ProxyStatus::Failed(ProxyError::NodesNotListed);
        let ready = "Success Listening: impersonation proxy is ready to accept client connections";
        let leader = "left to the leader";
        for (status, applied, wanted) in [
            (ProxyStatus::Disabled("off"), applied(), "Error Disabled: off"),
            (ProxyStatus::Disabled("off"), left_to_leader(), leader),
            (
                ProxyStatus::Pending,
                applied(),
                "Error Pending: waiting for load balancer Service to be assigned IP or hostname",
            ),
            (listening(Bundle::Generated), with_ca(), ready),
            (listening(Bundle::Generated), left_to_leader(), leader),
            (listening(Bundle::Generated), applied(), leader),
            (listening(Bundle::Pem(Vec::new())), applied(), ready),
            (
                no_signer(),
                applied(),
                "Error ErrorDuringSetup: the nodes have not been listed yet (the nodes have not been listed yet)",
            ),
            // The entry is reported even if the leader has work to do.
            (
                no_signer(),
                left_to_leader(),
                "Error ErrorDuringSetup: the nodes have not been listed yet (the nodes have not been listed yet)",
            ),
            (
                listening(Bundle::Generated),
                failed_step(StepFailureKind::Other),
                "Error ErrorDuringSetup: no (no)",
            ),
            (
                listening(Bundle::Generated),
                failed_step(StepFailureKind::Forbidden),
                "Error ErrorDuringSetup: no (forbidden: no)",
            ),
            (ProxyStatus::Pending, failed_step(StepFailureKind::Conflict), "Error Pending: no (no)"),
            (
                ProxyStatus::NoCredentialIssuer(missing.clone()),
                failed_step(StepFailureKind::Other),
                "Error ErrorDuringSetup: no (no)",
            ),
            (
                ProxyStatus::NoCredentialIssuer(missing),
                left_to_leader(),
                "could not get CredentialIssuer to update: credentialissuer.g \"n\" not found",
            ),
        ] {
            assert_eq!(summary(&conclude(&status, &applied, now())), wanted, "{status:?} {applied:?}");
        }
    }

    #[test]
    fn the_bundle_of_an_entry_is_base64() {
        let applied = AppliedSteps { generated_ca: Some("ca".to_owned()), ..AppliedSteps::default() };
        for (bundle, wanted) in [
            (Bundle::Generated, "Y2E="),
            (Bundle::Pem(b"pem".to_vec()), "cGVt"),
            (Bundle::Pem(Vec::new()), ""),
        ] {
            let conclusion = conclude(&listening(bundle), &applied, now());
            let Conclusion::Report { entry, .. } = conclusion else { panic!("{conclusion:?}") };
            let info = entry.frontend.unwrap().impersonation_proxy_info.unwrap();
            assert_eq!(
                (info.endpoint.as_str(), info.certificate_authority_data.as_str()),
                ("https://x", wanted)
            );
        }
    }

    #[test]
    fn an_entry_that_the_api_server_refuses_is_replaced_if_its_bundle_is_the_cause() {
        let too_large = EntryRefusal::TooLarge("request is too large".into());
        let with_bundle = |bundle: &str| strategies::listening("https://x", bundle.to_owned(), now());
        let failing = strategies::failing(
            StrategyType::ImpersonationProxy,
            StrategyReason::Pending,
            "no frontend",
            now(),
        );
        for (entry, refusal, wanted) in [
            (with_bundle(""), EntryRefusal::Invalid, Some(EMPTY_BUNDLE_REFUSED)),
            (with_bundle("Y2E="), EntryRefusal::Invalid, None),
            (
                with_bundle("Y2E="),
                too_large.clone(),
                Some("the CA bundle to advertise is too large (4 bytes as base64): request is too large"),
            ),
            (failing.clone(), EntryRefusal::Invalid, None),
            (failing, too_large, None),
        ] {
            let replaced = conclude_refusal(&entry, &refusal, now());
            let message = replaced.as_ref().map(|(entry, _)| entry.message.as_str());
            assert_eq!(message, wanted);
            if let Some((entry, error)) = &replaced {
                assert_eq!((&entry.reason, &entry.frontend), (&StrategyReason::ErrorDuringSetup, &None));
                assert_eq!((error.message.as_str(), error.is_forbidden), (entry.message.as_str(), false));
            }
        }
    }
}
