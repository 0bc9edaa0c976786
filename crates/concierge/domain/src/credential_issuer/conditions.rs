//! The conditions of the `CredentialIssuer`: their types and reasons, and the merge into an
//! existing status. The messages of `ServingCertificateValid` are in
//! [`crate::strategy::certificate_validation`].
//!
//! To add a condition, add its type here, and a function that derives its [`ConditionChange`] from
//! the observation of the controller that knows it. The controller of the impersonation proxy
//! reports the conditions of [`of_impersonation_proxy`]; the other controllers report none. The
//! condition `Ready` is derived from the strategies instead, see [`super::ready`]. `pinniped
//! doctor` shows every condition of the status, except `Ready` if it is not true, because it shows
//! the strategies.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pinniped_kube_types::condition::{self, Condition, DesiredCondition};
use pinniped_kube_types::text::truncated;

use crate::strategy::certificate_validation::ValidationReport;

/// Type of the condition that reports whether an external serving certificate works for clients.
pub const SERVING_CERTIFICATE_VALID: &str = "ServingCertificateValid";
/// Reason of that condition if all checks pass.
pub const VALID: &str = "Valid";
/// Reason of that condition if a check failed.
pub const INVALID: &str = "Invalid";
/// Reason of that condition if nothing was checked.
pub const NOT_CHECKED: &str = "NotChecked";

/// Maximum length of a message in bytes; the API server accepts twice as much.
pub(crate) const MAX_MESSAGE_LENGTH: usize = 16 * 1024;

/// Time after which a dropped condition is written again, because the definition may have been
/// replaced.
const DROPPED_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// A change of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionChange {
    /// The condition must have this content.
    Set(DesiredCondition),
    /// The status must not contain a condition of this type.
    Remove(&'static str),
}

impl ConditionChange {
    /// Returns whether the status already has the condition with this status and message.
    pub fn is_reported(&self, existing: &[Condition]) -> bool {
        let Self::Set(wanted) = self else { return false };
        existing.iter().any(|condition| {
            (&condition.type_, &condition.status, &condition.message)
                == (&wanted.type_, &wanted.status, &wanted.message)
        })
    }
}

/// The changes of one pass, and the generation from which they were derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionReport {
    /// The changes; conditions of other types stay as they are.
    pub changes: Vec<ConditionChange>,
    /// The generation of the observed object.
    pub generation: Option<i64>,
}

/// Returns the conditions that the controller of the impersonation proxy reports. `generation` is
/// that of the observed `CredentialIssuer`.
pub fn of_impersonation_proxy(validation: &ValidationReport, generation: Option<i64>) -> ConditionReport {
    ConditionReport { changes: vec![serving_certificate_valid(validation)], generation }
}

/// Returns the change of the condition [`SERVING_CERTIFICATE_VALID`].
pub fn serving_certificate_valid(report: &ValidationReport) -> ConditionChange {
    let message = || truncated(&report.concerns().join("; "), MAX_MESSAGE_LENGTH);
    match report {
        ValidationReport::Nothing => ConditionChange::Remove(SERVING_CERTIFICATE_VALID),
        ValidationReport::NotChecked(reason) => {
            ConditionChange::Set(DesiredCondition::unknown(SERVING_CERTIFICATE_VALID, NOT_CHECKED, reason))
        }
        ValidationReport::Checked { findings, .. } if findings.problems.is_empty() => ConditionChange::Set(
            DesiredCondition::new(SERVING_CERTIFICATE_VALID, condition::TRUE, VALID, message()),
        ),
        ValidationReport::Checked { .. } => {
            ConditionChange::Set(DesiredCondition::failure(SERVING_CERTIFICATE_VALID, INVALID, message()))
        }
    }
}

/// The conditions that the API server dropped when they were written, because the installed
/// definition has no conditions, like upstream's. Writing them again would change nothing.
#[derive(Debug, Default)]
pub struct DroppedConditions(Vec<(DesiredCondition, Instant)>);

impl DroppedConditions {
    /// Records which conditions of a report the API server dropped. `stored` has the conditions of
    /// its response.
    pub fn record(&mut self, report: &ConditionReport, stored: &[Condition], now: Instant) {
        for change in &report.changes {
            let ConditionChange::Set(wanted) = change else { continue };
            self.0.retain(|(dropped, _)| dropped.type_ != wanted.type_);
            if !stored.iter().any(|condition| condition.type_ == wanted.type_) {
                self.0.push((wanted.clone(), now));
            }
        }
    }

    fn has(&self, wanted: &DesiredCondition, now: Instant) -> bool {
        self.recent(now).any(|dropped| dropped == wanted)
    }

    /// Returns whether a condition was dropped recently, so that the API server drops the other
    /// additions to the status as well.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.recent(now).next().is_some()
    }

    fn recent(&self, now: Instant) -> impl Iterator<Item = &DesiredCondition> {
        let is_recent = move |since: Instant| now.saturating_duration_since(since) < DROPPED_RETRY_INTERVAL;
        self.0.iter().filter(move |(_, since)| is_recent(*since)).map(|(dropped, _)| dropped)
    }
}

/// Applies a report to the conditions and returns whether the status must be written. A condition
/// that was dropped recently does not require a write.
pub fn apply(
    conditions: &mut Vec<Condition>,
    report: &ConditionReport,
    dropped: &DroppedConditions,
    now: (Timestamp, Instant),
) -> bool {
    let mut must_write = false;
    for change in &report.changes {
        match change {
            ConditionChange::Remove(type_) => {
                let before = conditions.len();
                conditions.retain(|condition| condition.type_ != *type_);
                must_write |= conditions.len() < before;
            }
            ConditionChange::Set(wanted) => {
                let exists = conditions.iter().any(|condition| condition.type_ == wanted.type_);
                let changed = condition::merge(conditions, [wanted.clone()], report.generation, now.0);
                must_write |= changed && (exists || !dropped.has(wanted, now.1));
            }
        }
    }
    must_write
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::certificate_validation::Findings;

    fn checked(problems: &[&str], ends_soon: Option<&str>) -> ValidationReport {
        let findings = Findings {
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
            ends_soon: ends_soon.map(str::to_owned),
            changes_after: None,
        };
        ValidationReport::Checked { secret_name: "mine".to_owned(), findings }
    }

    #[test]
    fn the_condition_has_the_result_of_the_checks() {
        const CONDITION: &str = "ServingCertificateValid";
        for (report, wanted) in [
            (
                ValidationReport::NotChecked("why".into()),
                DesiredCondition::new(CONDITION, "Unknown", "NotChecked", "why"),
            ),
            (checked(&[], None), DesiredCondition::new(CONDITION, "True", "Valid", "")),
            (checked(&[], Some("soon")), DesiredCondition::new(CONDITION, "True", "Valid", "soon")),
            (checked(&["a", "b"], None), DesiredCondition::new(CONDITION, "False", "Invalid", "a; b")),
        ] {
            assert_eq!(serving_certificate_valid(&report), ConditionChange::Set(wanted));
        }
        assert_eq!(
            serving_certificate_valid(&ValidationReport::Nothing),
            ConditionChange::Remove("ServingCertificateValid")
        );
    }

    fn set(types: &[&str], status: &str) -> ConditionReport {
        let changes = types
            .iter()
            .map(|&type_| ConditionChange::Set(DesiredCondition::new(type_, status, "R", "m")))
            .collect();
        ConditionReport { changes, generation: Some(1) }
    }

    #[test]
    fn a_report_with_several_conditions_changes_only_their_types() {
        let (now, dropped) = ((Timestamp::UNIX_EPOCH, Instant::now()), DroppedConditions::default());
        let mut conditions = Vec::new();
        assert!(apply(&mut conditions, &set(&["B", "A"], "True"), &dropped, now));
        assert!(!apply(&mut conditions, &set(&["A"], "True"), &dropped, now));
        assert!(apply(&mut conditions, &set(&["A"], "False"), &dropped, now));
        let found: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
        assert_eq!(found, [("A", "False"), ("B", "True")]);
        let removal = ConditionReport { changes: vec![ConditionChange::Remove("A")], generation: Some(1) };
        assert!(apply(&mut conditions, &removal, &dropped, now));
        assert!(!apply(&mut conditions, &removal, &dropped, now));
        assert_eq!(conditions.len(), 1);
        assert!(set(&["B"], "True").changes[0].is_reported(&conditions));
        assert!(!set(&["A"], "True").changes[0].is_reported(&conditions));
    }

    #[test]
    fn a_dropped_condition_is_written_again_when_it_changes_or_after_ten_minutes() {
        let start = Instant::now();
        let mut dropped = DroppedConditions::default();
        let must_write = |report: &ConditionReport, dropped: &DroppedConditions, after| {
            apply(&mut Vec::new(), report, dropped, (Timestamp::UNIX_EPOCH, start + after))
        };
        let report = set(&["A", "B"], "True");
        assert!(must_write(&report, &dropped, Duration::ZERO));
        assert!(!dropped.is_recent(start));
        dropped.record(&report, &[], start);
        assert!(dropped.is_recent(start));
        assert!(!dropped.is_recent(start + DROPPED_RETRY_INTERVAL));
        let just_before = DROPPED_RETRY_INTERVAL.checked_sub(Duration::from_secs(1)).unwrap();
        assert!(!must_write(&report, &dropped, just_before));
        assert!(must_write(&report, &dropped, DROPPED_RETRY_INTERVAL));
        assert!(must_write(&set(&["A"], "False"), &dropped, Duration::ZERO));
        // The new definition stores the condition.
        let mut stored = Vec::new();
        condition::merge(
            &mut stored,
            [DesiredCondition::new("A", "True", "R", "m")],
            None,
            Timestamp::UNIX_EPOCH,
        );
        dropped.record(&set(&["A"], "True"), &stored, start);
        assert!(must_write(&set(&["A"], "True"), &dropped, Duration::ZERO));
        assert!(!must_write(&set(&["B"], "True"), &dropped, Duration::ZERO));
    }
}
