//! `certificate-signing-request-controller`: applies `spec.certificateSigningRequests` and reports
//! the strategy.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_concierge_api::config::{CredentialIssuer, CredentialIssuerStrategy, StrategyType};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::certificate_signing_requests::mode::Mode;
use pinniped_concierge_domain::strategy::certificate_signing_requests::orphans::Schedule;
use pinniped_concierge_domain::strategy::certificate_signing_requests::subject::PROBE_USERNAME;
use pinniped_concierge_domain::strategy::certificate_signing_requests::{
    Conclusion, Memory, Observed, Plan, entry, is_in_use,
};
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_pki::ClientSubject;
use tokio::time::Instant;

use super::signing::SigningClient;
use super::sweep::sweep;
use super::switch::SigningSwitch;
use crate::api_server_address::ApiServerAddress;
use crate::context::Context;
use crate::credential_issuer::{AdditionalEntry, CredentialIssuers};
use pinniped_controller::client::WriteError;
use pinniped_controller::runtime::{Action, Reconcile, ReconcileError};

/// Parameters of the controller besides the context.
pub struct CertificateSigningRequestParams {
    /// The current decision for logins.
    pub switch: SigningSwitch,
    /// Sends the requests.
    pub signing: SigningClient,
}

/// The controller.
pub struct CertificateSigningRequestController {
    context: Context,
    params: CertificateSigningRequestParams,
    issuers: CredentialIssuers,
    address: ApiServerAddress,
    entry: AdditionalEntry,
    memory: Memory,
    orphans: Schedule,
    /// Errors of deletions of orphans.
    failures: Repetitions,
}

impl CertificateSigningRequestController {
    pub(crate) fn new(
        context: Context,
        params: CertificateSigningRequestParams,
        issuers: CredentialIssuers,
        address: ApiServerAddress,
    ) -> Self {
        Self {
            entry: AdditionalEntry::new(issuers.clone(), StrategyType::KubeCertificateSigningRequest),
            context,
            params,
            issuers,
            address,
            memory: Memory::default(),
            orphans: Schedule::default(),
            failures: Repetitions::each_ten_minutes(),
        }
    }

    /// Decides, after a probe if one is needed.
    async fn decide(&mut self, issuer: &CredentialIssuer) -> Conclusion {
        loop {
            let mode = Mode::parse(issuer.spec.as_ref());
            let observed =
                Observed { mode: &mode, strategies: strategies(issuer), address: self.address.current() };
            match self.memory.decide(observed, now(), Timestamp::now()) {
                Plan::Probe => {
                    self.orphans.used();
                    let result = self.probe().await;
                    if let (Ok(Mode::Auto), Err(error)) = (&mode, &result) {
                        // The entry in the status has the error only in mode enabled.
                        tracing::info!(%error, "the cluster does not sign client certificates");
                    }
                    self.memory.probed(result, now());
                }
                Plan::Conclude(conclusion) => return conclusion,
            }
        }
    }

    async fn probe(&self) -> Result<(), StatusText> {
        let subject = ClientSubject { username: PROBE_USERNAME.to_owned(), ..ClientSubject::default() };
        // The shortest lifetime. The certificate is of no use without its key, which is dropped
        // here.
        match self.params.signing.sign(&subject, Duration::ZERO).await {
            Ok(_) => Ok(()),
            Err(error) => Err(StatusText::of(&error)),
        }
    }

    /// Deletes orphaned requests if it is time, and returns the time until the next deletion.
    async fn delete_orphans(&mut self) -> Result<Option<Duration>, ReconcileError> {
        if self.orphans.due_in(now()).is_some_and(|due| due.is_zero()) {
            let swept = sweep(&self.context.writer(), &self.params.signing).await;
            let found = match swept {
                Ok(found) => {
                    self.failures.clear();
                    Some(found)
                }
                Err(WriteError::NotLeader(error)) => return Err(error.into()),
                Err(error) => {
                    let error = error.to_string();
                    if let Some(Line { repetitions }) =
                        self.failures.record(&error, Instant::now().into_std())
                    {
                        tracing::warn!(
                            repetitions,
                            error,
                            "could not delete CertificateSigningRequests of ended logins"
                        );
                    }
                    None
                }
            };
            self.orphans.swept(found, now());
        }
        Ok(self.orphans.due_in(now()))
    }
}

impl Reconcile for CertificateSigningRequestController {
    fn name(&self) -> &'static str {
        "certificate-signing-request-controller"
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let Some(issuer) = self.issuers.get() else {
            self.params.switch.set(false);
            return Ok(Action::done());
        };
        let mode = Mode::parse(issuer.spec.as_ref());
        self.params.switch.set(is_in_use(&mode, strategies(&issuer)));
        if entry(strategies(&issuer)).is_some() {
            self.orphans.used();
        }
        if !self.context.leadership.is_leader() {
            self.memory.forget();
            return Ok(Action::done());
        }
        let Conclusion { change, recheck_after } = self.decide(&issuer).await;
        self.entry.write(&change, issuer.metadata.generation).await?;
        let sweep_after = self.delete_orphans().await?;
        Ok(Action { recheck_after: [recheck_after, sweep_after].into_iter().flatten().min() })
    }
}

fn strategies(issuer: &CredentialIssuer) -> &[CredentialIssuerStrategy] {
    issuer.status.as_ref().map_or(&[], |status| &status.strategies)
}

/// Returns the present time on the monotonic clock, which tests can pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
