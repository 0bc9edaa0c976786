//! Applies the steps of a plan, and writes the status that `conclude` decides.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinniped_concierge_api::config::CredentialIssuerStrategy;
use pinniped_concierge_domain::credential_issuer::conditions::{self, ConditionReport};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::impersonator::{
    AppliedSteps, Conclusion, EXTERNAL_FAILED, EntryRefusal, Health, PassError, Plan, ProxyState,
    SIGNER_FAILED, Step, StepFailure, StepFailureKind, conclude, conclude_refusal,
};
use pinniped_pki::{CertificateAuthority, IssueError, SetError};

use super::ImpersonatorController;
use super::log::LOGGER;
use super::observe::Sources;
use super::proxy_runner::ProxyStartError;
use crate::credential_issuer::ReportError;
use pinniped_controller::client::{NotLeader, WriteError};
use pinniped_controller::runtime::ReconcileError;

/// Time for which a pass waits for its own writes to appear in the caches. If they do not, the next
/// pass observes an old state, its writes conflict, and it runs again.
const CACHE_TIMEOUT: Duration = Duration::from_secs(2);

/// Reasons why a step did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// Only the leader applies the step.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The proxy could not be started.
    #[error(transparent)]
    Start(#[from] ProxyStartError),
    /// An object could not be written.
    #[error("{prefix}{source}")]
    Write {
        /// The text before the error of the API server; often empty.
        prefix: String,
        /// The error of the API server.
        source: WriteError,
    },
    /// A certificate could not be issued.
    #[error("could not create impersonation proxy certificate: {0}")]
    Issue(#[from] IssueError),
    /// The generated serving certificate could not be loaded.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The external serving certificate could not be loaded.
    #[error("{EXTERNAL_FAILED}: {0}")]
    External(#[source] ServingError),
    /// The signer could not be loaded.
    #[error("{SIGNER_FAILED}: {0}")]
    Signer(#[source] SetError),
}

/// A serving certificate could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("could not parse TLS cert PEM data from Secret: {0}")]
pub(super) struct ServingError(#[from] SetError);

impl From<WriteError> for StepError {
    fn from(error: WriteError) -> Self {
        Self::write(String::new(), error)
    }
}

impl StepError {
    /// Returns the error of a write with a prefix.
    pub(super) fn write(prefix: String, error: WriteError) -> Self {
        match error {
            WriteError::NotLeader(not_leader) => Self::NotLeader(not_leader),
            source @ WriteError::Api(_) => Self::Write { prefix, source },
        }
    }

    /// Returns the failure for the status; `None` if the step is left to the leader.
    fn failure(&self) -> Option<StepFailure> {
        let kind = match self {
            Self::NotLeader(_) => return None,
            Self::Write { source, .. } if source.is_race() => StepFailureKind::Conflict,
            Self::Write { source, .. } if source.is_forbidden() => StepFailureKind::Forbidden,
            _ => StepFailureKind::Other,
        };
        Some(StepFailure { message: StatusText::of(self), kind })
    }
}

/// The state that the cache must show after a write.
#[derive(Clone, Debug)]
pub(super) enum ExpectedState {
    /// The object with this UID exists.
    Present(String),
    /// No object with this UID exists.
    Gone(String),
    /// The object has another resource version.
    Changed(String),
}

impl ExpectedState {
    fn is_met(&self, meta: Option<&ObjectMeta>) -> bool {
        let uid = meta.and_then(|meta| meta.uid.as_deref());
        match self {
            Self::Present(wanted) => uid == Some(wanted),
            Self::Gone(old) => uid != Some(old),
            Self::Changed(old) => meta.and_then(|meta| meta.resource_version.as_deref()) != Some(old),
        }
    }
}

impl ImpersonatorController {
    pub(super) async fn apply(&mut self, plan: Plan, sources: Sources) -> Result<(), ReconcileError> {
        let Plan { steps, status, should_run, validation, .. } = plan;
        let mut applied = AppliedSteps::default();
        let mut created_ca = None;
        for step in steps {
            let Err(error) = self.take(step, &sources, &mut created_ca).await else { continue };
            applied.failure = error.failure();
            if applied.failure.is_some() {
                break;
            }
            // Later steps may concern only this pod, so the plan continues.
            applied.left_to_leader = true;
        }
        let ca = created_ca.as_ref().or(sources.ca.as_ref());
        applied.generated_ca = ca.map(|ca| ca.certificate_pem().to_owned());

        let running = self.proxy_runner.state() == ProxyState::Running;
        self.publish(Health::after_pass(should_run, &status, running, self.loaded.serving.is_some()));
        self.report_validation(&validation);

        let now = Timestamp::now();
        match conclude(&status, &applied, now) {
            Conclusion::LeftToLeader => Err(NotLeader.into()),
            Conclusion::NoCredentialIssuer(missing) => Err(ReconcileError::Failed(missing.to_string())),
            Conclusion::Report { entry, error } => {
                let conditions = conditions::of_impersonation_proxy(&validation, sources.generation);
                let mut errors: Vec<_> = error.iter().map(reconcile_error).collect();
                errors.extend(self.report(&entry, conditions, now).await.err());
                ReconcileError::aggregate(errors).map_or(Ok(()), Err)
            }
        }
    }

    async fn take(
        &mut self,
        step: Step,
        sources: &Sources,
        created_ca: &mut Option<CertificateAuthority>,
    ) -> Result<(), StepError> {
        match step {
            Step::Log(event) => self.log_event(&event),
            Step::StartProxy => {
                tracing::info!(logger = LOGGER, port = self.params.port, "starting impersonation proxy");
                self.proxy_runner.start().await?;
            }
            Step::StopProxy => {
                tracing::info!(logger = LOGGER, port = self.params.port, "stopping impersonation proxy");
                self.proxy_runner.stop(self.params.disable_grace);
            }
            Step::DropProxy => self.proxy_runner.stop(Duration::ZERO),
            Step::CreateService(kind, service) => self.create_service(kind, *service).await?,
            Step::UpdateService(kind, patch) => self.update_service(kind, &patch).await?,
            Step::DeleteService(kind, id) => self.delete_service(kind, &id).await?,
            Step::CreateCa => *created_ca = Some(self.create_ca().await?),
            Step::DeleteServing(id, removal) => self.delete_serving(&id, &removal).await?,
            Step::CreateServing(names) => {
                let ca = created_ca.as_ref().or(sources.ca.as_ref()).ok_or(NotLeader)?;
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

    /// Writes the entry, or the one that replaces it if the API server refuses it.
    async fn report(
        &self,
        entry: &CredentialIssuerStrategy,
        conditions: ConditionReport,
        now: Timestamp,
    ) -> Result<(), ReconcileError> {
        let loaded = self.loaded.serving.as_ref().and_then(|_| self.params.serving.current());
        let not_after = loaded.map(|pair| pair.leaf().not_after);
        let written = self.issuers.report_proxy(entry, conditions.clone(), not_after).await;
        let Err(error) = written else { return Ok(()) };
        let replacement = refusal(&error).and_then(|refusal| conclude_refusal(entry, &refusal, now));
        let Some((entry, failure)) = replacement else { return Err(error.into()) };
        self.issuers.report_proxy(&entry, conditions, not_after).await?;
        Err(reconcile_error(&failure))
    }

    fn publish(&self, health: Health) {
        self.health.send_if_modified(|current| {
            let changed = *current != health;
            *current = health;
            changed
        });
    }

    /// Waits until the cache has this process's own write, so that the next pass does not repeat
    /// it.
    pub(super) async fn await_secret(&self, name: &str, expected: ExpectedState) {
        let is_met = || expected.is_met(self.secret(name).as_deref().map(|secret| &secret.metadata));
        within_cache_timeout(self.secrets.wait_until(|_| is_met())).await;
    }

    /// Waits like [`Self::await_secret`].
    pub(super) async fn await_service(&self, name: &str, expected: ExpectedState) {
        let is_met = || expected.is_met(self.service(name).as_deref().map(|service| &service.metadata));
        within_cache_timeout(self.services.wait_until(|_| is_met())).await;
    }
}

async fn within_cache_timeout(change: impl Future<Output = ()>) {
    if tokio::time::timeout(CACHE_TIMEOUT, change).await.is_err() {
        tracing::debug!(logger = LOGGER, "the cache does not have the last write yet");
    }
}

/// Returns why the API server refuses an entry, if the entry is the cause.
fn refusal(error: &ReportError) -> Option<EntryRefusal> {
    if error.is_invalid() {
        Some(EntryRefusal::Invalid)
    } else if error.is_too_large() {
        Some(EntryRefusal::TooLarge(StatusText::of(error)))
    } else {
        None
    }
}

fn reconcile_error(error: &PassError) -> ReconcileError {
    let text = error.message.to_string();
    if error.is_forbidden { ReconcileError::Forbidden(text) } else { ReconcileError::Failed(text) }
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
        for (expected, found, met) in [
            (ExpectedState::Present("u".into()), None, false),
            (ExpectedState::Present("u".into()), Some(&object), true),
            (ExpectedState::Present("new".into()), Some(&object), false),
            (ExpectedState::Gone("u".into()), Some(&object), false),
            (ExpectedState::Gone("u".into()), None, true),
            (ExpectedState::Gone("old".into()), Some(&object), true),
            (ExpectedState::Changed("1".into()), Some(&object), false),
            (ExpectedState::Changed("0".into()), Some(&object), true),
            (ExpectedState::Changed("1".into()), None, true),
        ] {
            assert_eq!(expected.is_met(found), met, "{expected:?}");
        }
    }

    #[test]
    fn a_failed_step_is_a_conflict_a_missing_permission_or_another_failure() {
        let api = |code| {
            let status =
                kube::core::Status { code, message: "no".to_owned(), ..kube::core::Status::default() };
            WriteError::Api(kube::Error::Api(status.boxed()))
        };
        let table = [
            (StepError::from(NotLeader), None),
            (StepError::from(WriteError::NotLeader(NotLeader)), None),
            (StepError::from(api(409)), Some(("no", StepFailureKind::Conflict))),
            (StepError::from(api(403)), Some(("no", StepFailureKind::Forbidden))),
            (StepError::write("x: ".to_owned(), api(500)), Some(("x: no", StepFailureKind::Other))),
            (ProxyStartError("bind".to_owned()).into(), Some(("bind", StepFailureKind::Other))),
        ];
        for (error, wanted) in table {
            let wanted = wanted.map(|(text, kind)| StepFailure { message: text.into(), kind });
            assert_eq!(error.failure(), wanted);
        }
    }
}
