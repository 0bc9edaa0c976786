//! Reports the checks of an external serving certificate: this module writes the metric, the log
//! and the Event; the condition is written with the status.
//!
//! The condition is decided in `pinniped_concierge_domain::credential_issuer::conditions`; which
//! concerns are new is decided in `pinniped_concierge_domain::strategy::certificate_validation`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use pinniped_concierge_api::config::CredentialIssuer;
use pinniped_concierge_domain::credential_issuer::conditions::{ConditionChange, serving_certificate_valid};
use pinniped_concierge_domain::strategy::certificate_validation::ValidationReport;
use pinniped_logging::value as log_value;
use serde_json::json;

use super::ImpersonatorController;
use super::log::LOGGER;
use pinniped_controller::event::{Warning, warning};

/// Reason of the Events.
const EVENT_REASON: &str = "TLSValidation";

/// Namespace of Events about cluster-scoped objects.
const EVENT_NAMESPACE: &str = "default";

impl ImpersonatorController {
    /// Sets the metric, and writes a log line and an Event if the concerns are new. `condition` is
    /// the condition with the same report.
    pub(super) async fn report_validation(&mut self, report: &ValidationReport) {
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
        if let Some(message) = self.reported.due_event() {
            self.write_event(&message, condition).await;
        }
    }

    fn is_in_status(&self, condition: &ConditionChange) -> bool {
        let issuer = self.issuers.get();
        let status = issuer.as_ref().and_then(|issuer| issuer.status.as_ref());
        status.is_some_and(|status| condition.is_reported(&status.conditions))
    }

    async fn write_event(&mut self, message: &str, condition: &ConditionChange) {
        let writer = self.context.writer();
        if writer.guard().is_err() {
            // The leader writes the Event, and the condition afterwards.
            if self.is_in_status(condition) {
                self.reported.complete_event();
            }
            return;
        }
        let Some(issuer) = self.issuers.get() else { return };
        let event = event(&issuer, message, Timestamp::now());
        let events: Api<Event> = Api::namespaced(self.context.client.clone(), EVENT_NAMESPACE);
        match writer.create(&events, &event).await {
            Ok(_) => self.reported.complete_event(),
            Err(error) if error.is_forbidden() => {
                self.reported.complete_event();
                if !std::mem::replace(&mut self.events_forbidden, true) {
                    tracing::warn!(
                        verb = "create",
                        resource = "events in namespace default",
                        %error,
                        "a permission is missing: there are no Events about the serving certificate"
                    );
                }
            }
            // The Event stays due: the next pass tries again.
            Err(error) => tracing::debug!(logger = LOGGER, %error, "could not write an Event"),
        }
    }
}

fn event(issuer: &CredentialIssuer, message: &str, now: Timestamp) -> Event {
    let name = issuer.metadata.name.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        generate_name: Some(format!("{name}.")),
        namespace: Some(EVENT_NAMESPACE.to_owned()),
        ..ObjectMeta::default()
    };
    let about = ObjectReference {
        api_version: Some(issuer.api_version.clone()).filter(|version| !version.is_empty()),
        kind: Some(CredentialIssuer::KIND.to_owned()),
        name: Some(name),
        uid: issuer.metadata.uid.clone(),
        resource_version: issuer.metadata.resource_version.clone(),
        ..ObjectReference::default()
    };
    warning(Warning { metadata, about, component: LOGGER, reason: EVENT_REASON, message }, now)
}
