//! Applies a plan, then writes the result to the status.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyReason, StrategyType};
use pinniped_concierge_domain::strategy::impersonator::{Bundle, Plan, ProxyState, Step, Verdict};
use pinniped_concierge_domain::strategy::status;
use pinniped_pki::CertificateAuthority;

use super::log::LOGGER;
use super::observe::Sources;
use super::validation_report::condition_change;
use super::{Health, ImpersonatorController};
use crate::credential_issuer::ConditionReport;
use pinniped_controller::client::{NotLeader, WriteError};
use pinniped_controller::runtime::ReconcileError;

/// Time for which a pass waits for its own writes to appear in the caches. If they do not, the next
/// pass observes an old state, its writes conflict, and it runs again.
const CACHE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of polling the cache.
const CACHE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Message of the status if the installed schema rejects an entry without a bundle.
const EMPTY_BUNDLE_REFUSED: &str = "the installed CredentialIssuer CRD does not allow an empty \
    certificateAuthorityData: apply the CRD of this release, or set \
    spec.impersonationProxy.tls.certificateAuthorityData";

/// Reasons why a step did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// Only the leader applies the step.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The step failed.
    #[error("{text}")]
    Failed {
        /// Error text for the status.
        text: String,
        /// Another client changed or created the object; the next pass resolves the conflict.
        race: bool,
        /// A permission is missing.
        forbidden: bool,
    },
}

impl From<WriteError> for StepError {
    fn from(error: WriteError) -> Self {
        match &error {
            WriteError::NotLeader(not_leader) => Self::NotLeader(*not_leader),
            WriteError::Api(_) => Self::Failed {
                text: error.to_string(),
                race: error.is_race(),
                forbidden: error.is_forbidden(),
            },
        }
    }
}

impl StepError {
    pub(super) fn failed(text: String) -> Self {
        Self::Failed { text, race: false, forbidden: false }
    }

    /// Returns the same error with a prefix.
    pub(super) fn context(self, prefix: &str) -> Self {
        match self {
            Self::NotLeader(error) => Self::NotLeader(error),
            Self::Failed { text, race, forbidden } => {
                Self::Failed { text: format!("{prefix}{text}"), race, forbidden }
            }
        }
    }
}

/// The state that the cache must show after a write.
#[derive(Clone, Debug)]
pub(super) enum Expect {
    /// The object with this UID exists.
    Present(String),
    /// No object with this UID exists.
    Gone(String),
    /// The object has another resource version.
    Changed(String),
}

impl Expect {
    fn is_met(&self, meta: Option<&ObjectMeta>) -> bool {
        let uid = meta.and_then(|meta| meta.uid.as_deref());
        match self {
            Self::Present(wanted) => uid == Some(wanted),
            Self::Gone(old) => uid != Some(old),
            Self::Changed(old) => meta.and_then(|meta| meta.resource_version.as_deref()) != Some(old),
        }
    }
}

/// The progress of applying a plan.
#[derive(Default)]
struct Progress {
    fresh_ca: Option<CertificateAuthority>,
    failure: Option<(String, bool, bool)>,
    left_to_leader: bool,
}

impl ImpersonatorController {
    pub(super) async fn apply(&mut self, plan: Plan, sources: Sources) -> Result<(), ReconcileError> {
        let Plan { steps, verdict, wanted, told, .. } = plan;
        let mut progress = Progress::default();
        for step in steps {
            match self.take(step, &sources, &mut progress).await {
                Ok(()) => {}
                // Later steps may concern only this pod, so the plan continues.
                Err(StepError::NotLeader(_)) => progress.left_to_leader = true,
                Err(StepError::Failed { text, race, forbidden }) => {
                    progress.failure = Some((text, race, forbidden));
                    break;
                }
            }
        }
        self.publish_health(wanted, &verdict);
        self.tell(&told).await;

        let bundle = |bundle: &Bundle| match bundle {
            Bundle::Pem(pem) => Some(STANDARD.encode(pem)),
            Bundle::Generated => {
                let ca = progress.fresh_ca.as_ref().or(sources.ca.as_ref());
                ca.map(|ca| STANDARD.encode(ca.certificate_pem()))
            }
        };
        let now = Timestamp::now();
        let failed =
            |reason, text: &str| status::failing(StrategyType::ImpersonationProxy, reason, text, now);
        let mut errors = Vec::new();
        let entry = match (&progress.failure, &verdict) {
            (Some((text, race, forbidden)), _) => {
                let error = text.clone();
                errors.push(if *forbidden {
                    ReconcileError::Forbidden(error)
                } else {
                    ReconcileError::Failed(error)
                });
                failed(if *race { StrategyReason::Pending } else { StrategyReason::ErrorDuringSetup }, text)
            }
            (None, Verdict::NoCredentialIssuer(text)) => return Err(ReconcileError::Failed(text.clone())),
            (None, Verdict::Failed(text)) => {
                errors.push(ReconcileError::Failed(text.clone()));
                failed(StrategyReason::ErrorDuringSetup, text)
            }
            (None, Verdict::Disabled(message)) => failed(StrategyReason::Disabled, message),
            (None, Verdict::Pending) => failed(StrategyReason::Pending, status::WAITING),
            (None, Verdict::Listening { endpoint, bundle: wanted }) => match bundle(wanted) {
                Some(data) => status::listening(endpoint, data, now),
                // The leader creates the CA, and writes the status.
                None => return Err(NotLeader.into()),
            },
        };
        if progress.left_to_leader && errors.is_empty() {
            return Err(NotLeader.into());
        }
        let condition = ConditionReport { change: condition_change(&told), generation: sources.generation };
        errors.extend(self.report(&entry, &condition, now).await.err());
        ReconcileError::aggregate(errors).map_or(Ok(()), Err)
    }

    async fn take(
        &mut self,
        step: Step,
        sources: &Sources,
        progress: &mut Progress,
    ) -> Result<(), StepError> {
        match step {
            Step::Log(note) => self.log_note(&note),
            Step::StartProxy => {
                tracing::info!(logger = LOGGER, port = self.params.port, "starting impersonation proxy");
                self.supervisor.start().await.map_err(StepError::failed)?;
            }
            Step::StopProxy => {
                tracing::info!(logger = LOGGER, port = self.params.port, "stopping impersonation proxy");
                self.supervisor.stop(self.params.disable_grace);
            }
            Step::ForgetProxy => self.supervisor.stop(Duration::ZERO),
            Step::CreateService(kind, service) => self.create_service(kind, *service).await?,
            Step::UpdateService(kind, patch) => self.update_service(kind, &patch).await?,
            Step::DeleteService(kind, id) => self.delete_service(kind, &id).await?,
            Step::CreateCa => progress.fresh_ca = Some(self.create_ca().await?),
            Step::DeleteServing(id, removal) => self.delete_serving(&id, &removal).await?,
            Step::CreateServing(names) => {
                let ca = progress.fresh_ca.as_ref().or(sources.ca.as_ref()).ok_or(NotLeader)?;
                self.create_serving(ca, &names).await?;
            }
            Step::LoadServing => {
                if let Some(secret) = &sources.tls {
                    let name = self.settings.tls_secret.clone();
                    self.load_serving(secret, &name)?;
                }
            }
            Step::LoadExternal => {
                if let Some(secret) = &sources.external {
                    self.load_external(secret)?;
                }
            }
            Step::ClearServing => self.clear_serving(),
            Step::RefuseServing => self.refuse_serving(),
            Step::LoadSigner => {
                if let Some(secret) = &sources.signer {
                    self.load_signer(secret)?;
                }
            }
            Step::ClearSigner => self.clear_signer(),
        }
        Ok(())
    }

    async fn report(
        &self,
        entry: &CredentialIssuerStrategy,
        condition: &ConditionReport,
        now: Timestamp,
    ) -> Result<(), ReconcileError> {
        let Err(error) = self.issuers.report_with(entry, Some(condition)).await else { return Ok(()) };
        let info = entry.frontend.as_ref().and_then(|frontend| frontend.impersonation_proxy_info.as_ref());
        let Some(bundle) = info.map(|info| &info.certificate_authority_data) else {
            return Err(error.into());
        };
        let remedy = if error.is_invalid() && bundle.is_empty() {
            EMPTY_BUNDLE_REFUSED.to_owned()
        } else if error.is_too_large() {
            format!("the CA bundle to advertise is too large ({} bytes as base64): {error}", bundle.len())
        } else {
            return Err(error.into());
        };
        let (type_, reason) = (StrategyType::ImpersonationProxy, StrategyReason::ErrorDuringSetup);
        let entry = status::failing(type_, reason, &remedy, now);
        self.issuers.report_with(&entry, Some(condition)).await?;
        Err(ReconcileError::Failed(remedy))
    }

    fn publish_health(&self, wanted: Option<bool>, verdict: &Verdict) {
        let running = self.supervisor.state() == ProxyState::Running;
        let health = Health {
            observed: true,
            // If the spec is not valid, a running proxy continues to run.
            wanted: wanted.unwrap_or(running),
            running,
            expects_certificate: matches!(verdict, Verdict::Listening { .. }),
            has_certificate: self.loaded.serving.is_some(),
        };
        self.health.send_if_modified(|current| {
            let changed = *current != health;
            *current = health;
            changed
        });
    }

    pub(super) async fn expect_secret(&self, name: String, expect: Expect) {
        wait_for_cache(|| expect.is_met(self.secret(&name).as_deref().map(|secret| &secret.metadata))).await;
    }

    pub(super) async fn expect_service(&self, name: String, expect: Expect) {
        wait_for_cache(|| expect.is_met(self.service(&name).as_deref().map(|service| &service.metadata)))
            .await;
    }
}

/// Waits until the cache has this process's own write, so that the next pass does not repeat it.
async fn wait_for_cache(is_met: impl Fn() -> bool) {
    let look = async {
        while !is_met() {
            tokio::time::sleep(CACHE_POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(CACHE_TIMEOUT, look).await.is_err() {
        tracing::debug!(logger = LOGGER, "a write has not come back by watch yet");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_is_met_when_the_cache_has_the_write() {
        let meta = |uid: &str, version: &str| ObjectMeta {
            uid: Some(uid.into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        let object = meta("u", "1");
        for (expect, found, met) in [
            (Expect::Present("u".into()), None, false),
            (Expect::Present("u".into()), Some(&object), true),
            (Expect::Present("new".into()), Some(&object), false),
            (Expect::Gone("u".into()), Some(&object), false),
            (Expect::Gone("u".into()), None, true),
            (Expect::Gone("old".into()), Some(&object), true),
            (Expect::Changed("1".into()), Some(&object), false),
            (Expect::Changed("0".into()), Some(&object), true),
            (Expect::Changed("1".into()), None, true),
        ] {
            assert_eq!(expect.is_met(found), met, "{expect:?}");
        }
    }
}
