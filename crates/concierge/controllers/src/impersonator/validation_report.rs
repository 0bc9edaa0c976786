//! Reports the checks of an external serving certificate: this module writes the metric, the log
//! and the Event; the condition is written with the status.
//!
//! The condition is decided in `pinniped_concierge_domain::credential_issuer::conditions`; which
//! concerns are new is decided in `pinniped_concierge_domain::strategy::certificate_validation`.

use pinniped_concierge_domain::credential_issuer::conditions::{ConditionChange, serving_certificate_valid};
use pinniped_concierge_domain::strategy::certificate_validation::ValidationReport;
use pinniped_kube_types::event::NewEvent;
use pinniped_logging::value as log_value;
use serde_json::json;

use super::ImpersonatorController;
use super::log::LOGGER;

/// Reason of the Events.
const EVENT_REASON: &str = "TLSValidation";

const EVENT_ACTION: &str = "ValidateCertificate";

impl ImpersonatorController {
    /// Sets the metric, and writes a log line and an Event if the concerns are new. `condition` is
    /// the condition with the same report.
    pub(super) fn report_validation(&mut self, report: &ValidationReport) {
        let condition = &serving_certificate_valid(report);
        self.params.metrics.set_certificate_valid(report.is_valid());
        if self.reported.record(report, self.is_in_status(condition)) {
            let secret_name = match report {
                ValidationReport::Checked { secret_name, .. } => secret_name.as_str(),
                ValidationReport::Nothing | ValidationReport::NotChecked(_) => "",
            };
            tracing::warn!(
                logger = LOGGER,
                secretName = secret_name,
                problems = log_value::json(&json!(report.concerns())),
                "externally provided TLS certificate may not work for clients"
            );
        }
        self.record_event(condition);
    }

    fn is_in_status(&self, condition: &ConditionChange) -> bool {
        let issuer = self.issuers.get();
        let status = issuer.as_ref().and_then(|issuer| issuer.status.as_ref());
        status.is_some_and(|status| condition.is_reported(&status.conditions))
    }

    /// Records the Event that is due. The leader writes it, and the condition afterwards.
    fn record_event(&mut self, condition: &ConditionChange) {
        let Some(message) = self.reported.due_event() else { return };
        if self.context.events.is_active() {
            self.issuers.record(NewEvent::warning(EVENT_REASON, EVENT_ACTION, message));
        } else if !self.is_in_status(condition) {
            return;
        }
        self.reported.complete_event();
    }
}
