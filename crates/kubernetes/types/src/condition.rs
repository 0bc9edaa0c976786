//! Conditions of an object's status, and the merge of new conditions into existing ones.
//!
//! Controllers compute conditions in every reconcile, but `lastTransitionTime` changes only when
//! the status of a condition changes, and an object whose conditions have not changed is not
//! written at all.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use jiff::{Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Values of [`Condition::status`].
pub const TRUE: &str = "True";
/// See [`TRUE`].
pub const FALSE: &str = "False";
/// See [`TRUE`].
pub const UNKNOWN: &str = "Unknown";

/// The reason of a condition that is true.
pub const REASON_SUCCESS: &str = "Success";

/// The type of the condition that summarizes all other conditions.
pub const TYPE_READY: &str = "Ready";

/// The condition of one type that a controller computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    /// Type of the condition.
    pub type_: String,
    /// [`TRUE`], [`FALSE`] or [`UNKNOWN`].
    pub status: String,
    /// The reason, for programs.
    pub reason: String,
    /// The message, for users.
    pub message: String,
}

impl DesiredCondition {
    /// Returns a condition with the given fields.
    pub fn new(
        type_: impl Into<String>,
        status: &str,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_: type_.into(),
            status: status.to_owned(),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Returns a condition that is true, with the reason `Success`.
    pub fn success(type_: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(type_, TRUE, REASON_SUCCESS, message)
    }

    /// Returns a condition that is false.
    pub fn failure(type_: impl Into<String>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(type_, FALSE, reason, message)
    }

    /// Returns a condition whose status could not be determined.
    pub fn unknown(type_: impl Into<String>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(type_, UNKNOWN, reason, message)
    }
}

/// Merges the conditions of a controller into the existing ones, and returns whether anything
/// except timestamps changed.
///
/// The result is sorted by type. A condition keeps its `lastTransitionTime` while its status is
/// unchanged and gets `now`, in whole seconds, otherwise. Conditions of types that are not in
/// `wanted` are not changed. Each condition in `wanted` gets the generation of the object for which
/// it was computed.
pub fn merge(
    conditions: &mut Vec<Condition>,
    wanted: impl IntoIterator<Item = DesiredCondition>,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let mut changed = false;
    for desired in wanted {
        let old = conditions.iter().position(|c| c.type_ == desired.type_);
        let last_transition_time = match old.map(|at| &conditions[at]) {
            Some(old) if old.status == desired.status => old.last_transition_time.clone(),
            _ => wire_time(now),
        };
        let new = Condition {
            type_: desired.type_,
            status: desired.status,
            reason: desired.reason,
            message: desired.message,
            observed_generation: generation,
            last_transition_time,
        };
        match old {
            Some(at) if conditions[at] == new => {}
            Some(at) => {
                conditions[at] = new;
                changed = true;
            }
            None => {
                conditions.push(new);
                changed = true;
            }
        }
    }
    if !conditions.is_sorted_by(|a, b| a.type_ <= b.type_) {
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        changed = true;
    }
    changed
}

/// Truncates a time to whole seconds, the precision of the API, so that the value read back equals
/// the value written.
pub fn wire_time(now: Timestamp) -> Time {
    // Rounding to a second fails only within a second of the last representable instant.
    let round = jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Floor);
    Time(now.round(round).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn row(conditions: &[Condition]) -> Vec<String> {
        conditions
            .iter()
            .map(|c| {
                let time = serde_json::to_value(&c.last_transition_time).unwrap();
                let generation = c.observed_generation.unwrap_or(-1);
                format!(
                    "{} {} {} {} {generation} {}",
                    c.type_,
                    c.status,
                    c.reason,
                    c.message,
                    time.as_str().unwrap()
                )
            })
            .collect()
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        let first = at("2026-01-01T00:00:00.9Z");
        let second = at("2026-01-02T00:00:00Z");
        assert!(merge(
            &mut conditions,
            [DesiredCondition::success("B", "b"), DesiredCondition::failure("A", "Bad", "a")],
            Some(1),
            first
        ));
        assert_eq!(
            row(&conditions),
            ["A False Bad a 1 2026-01-01T00:00:00Z", "B True Success b 1 2026-01-01T00:00:00Z"]
        );
        assert_eq!(
            conditions[0].last_transition_time.0,
            at("2026-01-01T00:00:00Z"),
            "whole seconds also in memory"
        );

        assert!(!merge(
            &mut conditions,
            [DesiredCondition::failure("A", "Bad", "a"), DesiredCondition::success("B", "b")],
            Some(1),
            second
        ));

        assert!(merge(&mut conditions, [DesiredCondition::failure("A", "Worse", "a2")], Some(2), second));
        assert_eq!(
            row(&conditions),
            ["A False Worse a2 2 2026-01-01T00:00:00Z", "B True Success b 1 2026-01-01T00:00:00Z"]
        );

        assert!(merge(&mut conditions, [DesiredCondition::success("A", "ok")], Some(2), second));
        assert_eq!(row(&conditions)[0], "A True Success ok 2 2026-01-02T00:00:00Z");
    }

    #[test]
    fn a_new_generation_alone_is_a_change() {
        let mut conditions = Vec::new();
        let now = at("2026-01-01T00:00:00Z");
        merge(&mut conditions, [DesiredCondition::success("A", "a")], Some(1), now);
        assert!(merge(&mut conditions, [DesiredCondition::success("A", "a")], Some(2), now));
    }

    #[test]
    fn merging_sorts_conditions_and_keeps_other_types() {
        let now = at("2026-01-01T00:00:00Z");
        let mut conditions = Vec::new();
        merge(
            &mut conditions,
            [DesiredCondition::success("A", "a"), DesiredCondition::unknown("Z", "Why", "z")],
            None,
            now,
        );
        conditions.reverse();
        assert!(merge(&mut conditions, [DesiredCondition::success("A", "a")], None, now));
        assert_eq!(
            row(&conditions),
            ["A True Success a -1 2026-01-01T00:00:00Z", "Z Unknown Why z -1 2026-01-01T00:00:00Z"]
        );
    }
}
