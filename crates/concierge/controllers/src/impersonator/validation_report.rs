//! Reports the checks of an external serving certificate: this module writes the metric, the log
//! and the Event; the condition is written with the status.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use pinniped_concierge_api::config::CredentialIssuer;
use pinniped_concierge_domain::strategy::validation::{
    CONDITION, INVALID, NOT_CHECKED, VALID, ValidationReport,
};
use pinniped_kube_types::condition::{self, Wanted};
use pinniped_logging::value as log_value;
use serde_json::json;

use super::ImpersonatorController;
use super::log::LOGGER;
use crate::credential_issuer::ConditionChange;
use pinniped_controller::event::{Warning, shortened, warning};

/// Reason of the Events.
const EVENT_REASON: &str = "TLSValidation";

/// Namespace of Events about cluster-scoped objects.
const EVENT_NAMESPACE: &str = "default";

/// Maximum length of a condition's message; the API server accepts twice as much.
const MAX_CONDITION_MESSAGE: usize = 16 * 1024;

/// The concerns that were already reported.
#[derive(Default)]
pub(super) struct Announced {
    /// The concerns that were logged.
    logged: Vec<String>,
    /// Whether these concerns still need an Event.
    event_due: bool,
    /// Whether a missing permission to write Events was logged.
    forbidden: bool,
}

impl Announced {
    /// Returns whether these concerns are new. A certificate that was not checked withdraws
    /// nothing.
    fn is_news(&mut self, report: &ValidationReport) -> bool {
        let concerns = report.concerns();
        if !matches!(report, ValidationReport::Checked { .. }) || self.logged == concerns {
            return false;
        }
        self.event_due = !concerns.is_empty();
        self.logged = concerns;
        self.event_due
    }
}

/// Returns the change of the condition.
pub(super) fn condition_change(report: &ValidationReport) -> ConditionChange {
    let message = || shortened(&report.concerns().join("; "), MAX_CONDITION_MESSAGE);
    match report {
        ValidationReport::Nothing => ConditionChange::Remove(CONDITION),
        ValidationReport::NotChecked(why) => {
            ConditionChange::Set(Wanted::unknown(CONDITION, NOT_CHECKED, why))
        }
        ValidationReport::Checked { findings, .. } if findings.problems.is_empty() => {
            ConditionChange::Set(Wanted::new(CONDITION, condition::TRUE, VALID, message()))
        }
        ValidationReport::Checked { .. } => {
            ConditionChange::Set(Wanted::failure(CONDITION, INVALID, message()))
        }
    }
}

impl ImpersonatorController {
    /// Sets the metric, and writes a log line and an Event if the concerns are new.
    pub(super) async fn tell(&mut self, report: &ValidationReport) {
        self.params.metrics.set_certificate_valid(report.is_valid());
        if self.announced.is_news(report) {
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
            // Not due if an earlier leader, or this pod before a restart, has reported the same.
            self.announced.event_due = !self.is_in_the_status(report);
        }
        if self.announced.event_due {
            self.write_event(report).await;
        }
    }

    /// Returns whether the condition already has this content.
    fn is_in_the_status(&self, report: &ValidationReport) -> bool {
        let ConditionChange::Set(wanted) = condition_change(report) else { return false };
        let status = self.issuers.get().and_then(|issuer| issuer.status.clone()).unwrap_or_default();
        status.conditions.iter().any(|condition| {
            (&condition.type_, &condition.status, &condition.message)
                == (&wanted.type_, &wanted.status, &wanted.message)
        })
    }

    async fn write_event(&mut self, report: &ValidationReport) {
        let writer = self.context.writer();
        if writer.guard().is_err() {
            // The leader writes the Event, and the condition afterwards.
            self.announced.event_due = !self.is_in_the_status(report);
            return;
        }
        let Some(issuer) = self.issuers.get() else { return };
        let event = event(&issuer, &self.announced.logged.join("; "), Timestamp::now());
        let events: Api<Event> = Api::namespaced(self.context.client.clone(), EVENT_NAMESPACE);
        match writer.create(&events, &event).await {
            Ok(_) => self.announced.event_due = false,
            Err(error) if error.is_forbidden() => {
                self.announced.event_due = false;
                if !std::mem::replace(&mut self.announced.forbidden, true) {
                    tracing::warn!(
                        verb = "create",
                        resource = "events in namespace default",
                        %error,
                        "a right is missing: there are no Events about the serving certificate"
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

#[cfg(test)]
mod tests {
    use pinniped_concierge_domain::strategy::validation::Findings;

    use super::*;

    fn checked(problems: &[&str], ends_soon: Option<&str>) -> ValidationReport {
        let findings = Findings {
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
            ends_soon: ends_soon.map(str::to_owned),
            changes_after: None,
        };
        ValidationReport::Checked { secret_name: "mine".to_owned(), findings }
    }

    #[test]
    fn each_list_of_concerns_is_reported_once() {
        let mut announced = Announced::default();
        let nothing = ValidationReport::NotChecked("x".to_owned());
        for (step, report, news) in [
            ("all is well", checked(&[], None), false),
            ("a problem", checked(&["a"], None), true),
            ("the same", checked(&["a"], None), false),
            ("not checked for a moment", nothing, false),
            ("the same", checked(&["a"], None), false),
            ("one more", checked(&["a", "b"], None), true),
            ("only an end that is near", checked(&[], Some("c")), true),
            ("solved", checked(&[], None), false),
            ("there again", checked(&["a"], None), true),
        ] {
            assert_eq!(announced.is_news(&report), news, "{step}");
        }
    }

    #[test]
    fn the_condition_has_the_result_of_the_checks() {
        for (report, wanted) in [
            (
                ValidationReport::NotChecked("why".into()),
                Wanted::new(CONDITION, "Unknown", "NotChecked", "why"),
            ),
            (checked(&[], None), Wanted::new(CONDITION, "True", "Valid", "")),
            (checked(&[], Some("soon")), Wanted::new(CONDITION, "True", "Valid", "soon")),
            (checked(&["a", "b"], None), Wanted::new(CONDITION, "False", "Invalid", "a; b")),
        ] {
            assert_eq!(condition_change(&report), ConditionChange::Set(wanted));
        }
        assert_eq!(
            condition_change(&ValidationReport::Nothing),
            ConditionChange::Remove("ServingCertificateValid")
        );
    }
}
