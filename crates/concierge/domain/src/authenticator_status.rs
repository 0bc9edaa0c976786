//! Decides the status of an authenticator of any kind from its conditions: the summary condition,
//! and the phase.

use jiff::Timestamp;
use pinniped_concierge_api::authentication::{AuthenticatorPhase, AuthenticatorStatus};
use pinniped_kube_types::condition::{self, DesiredCondition};

/// Reason of a condition that depends on another condition that is not true.
pub const UNABLE_TO_VALIDATE: &str = "UnableToValidate";

/// The condition of the last step of every kind: the authenticator is built from its inputs.
pub const AUTHENTICATOR_VALID: &str = "AuthenticatorValid";

/// Message of [`AUTHENTICATOR_VALID`] when it is true.
pub const INITIALIZED: &str = "authenticator initialized";

/// Returns a condition that cannot be determined, because another one is not true.
pub fn unable_to_validate(type_: &str) -> DesiredCondition {
    DesiredCondition::unknown(
        type_,
        UNABLE_TO_VALIDATE,
        "unable to validate; see other conditions for details",
    )
}

/// All conditions of an authenticator, with the condition `Ready` that summarizes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatorConditions {
    conditions: Vec<DesiredCondition>,
    phase: AuthenticatorPhase,
}

impl AuthenticatorConditions {
    /// Adds the summary to the conditions of an authenticator of this kind.
    pub fn summarize(mut conditions: Vec<DesiredCondition>, kind: &str) -> Self {
        let is_ready = conditions.iter().all(|condition| condition.status == condition::TRUE);
        conditions.push(if is_ready {
            DesiredCondition::success(condition::TYPE_READY, format!("the {kind} is ready"))
        } else {
            let message = format!("the {kind} is not ready: see other conditions for details");
            DesiredCondition::failure(condition::TYPE_READY, "NotReady", message)
        });
        let phase = if is_ready { AuthenticatorPhase::Ready } else { AuthenticatorPhase::Error };
        Self { conditions, phase }
    }

    /// Returns the conditions; the summary is the last one.
    pub fn conditions(&self) -> &[DesiredCondition] {
        &self.conditions
    }

    /// Returns whether all conditions are true.
    pub fn is_ready(&self) -> bool {
        self.phase == AuthenticatorPhase::Ready
    }

    /// Returns the status to write, or `None` if the object already has it. `generation` is that of
    /// the object from which the conditions were derived.
    pub fn next_status(
        &self,
        existing: Option<&AuthenticatorStatus>,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<AuthenticatorStatus> {
        let mut status = existing.cloned().unwrap_or_default();
        let is_changed =
            condition::merge(&mut status.conditions, self.conditions.iter().cloned(), generation, now);
        if !is_changed && status.phase.as_ref() == Some(&self.phase) {
            return None;
        }
        status.phase = Some(self.phase.clone());
        Some(status)
    }
}

/// Returns whether a status says the same as another one, in other words at most: phase,
/// generation, and status and reason of every condition are equal.
pub fn differ_only_in_messages(one: &AuthenticatorStatus, other: &AuthenticatorStatus) -> bool {
    let comparable = |status: &AuthenticatorStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.message.clear();
        }
        status
    };
    comparable(one) == comparable(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn an_authenticator_is_ready_if_all_conditions_are_true() {
        let table = [
            (
                vec![DesiredCondition::success("A", ""), DesiredCondition::success("B", "")],
                true,
                "True",
                "the Kind is ready",
            ),
            (
                vec![DesiredCondition::success("A", ""), DesiredCondition::failure("B", "Bad", "")],
                false,
                "False",
                "the Kind is not ready: see other conditions for details",
            ),
            (
                vec![unable_to_validate("A")],
                false,
                "False",
                "the Kind is not ready: see other conditions for details",
            ),
        ];
        for (conditions, is_ready, status, message) in table {
            let count = conditions.len();
            let summarized = AuthenticatorConditions::summarize(conditions, "Kind");
            assert_eq!(summarized.is_ready(), is_ready);
            assert_eq!(summarized.conditions().len(), count + 1);
            let summary = &summarized.conditions()[count];
            assert_eq!((summary.type_.as_str(), summary.status.as_str()), ("Ready", status));
            assert_eq!(summary.message, message);
        }
    }

    #[test]
    fn messages_do_not_count_for_pods_that_do_not_write() {
        let status = |conditions: Vec<DesiredCondition>, generation| {
            let conditions = AuthenticatorConditions::summarize(conditions, "Kind");
            conditions.next_status(None, Some(generation), at(1)).unwrap()
        };
        let one = status(vec![DesiredCondition::success("A", "a")], 1);
        for (other, is_same) in [
            (status(vec![DesiredCondition::success("A", "b")], 1), true),
            (status(vec![DesiredCondition::success("A", "a")], 2), false),
            (status(vec![DesiredCondition::success("B", "a")], 1), false),
            (status(vec![DesiredCondition::failure("A", "R", "a")], 1), false),
        ] {
            assert_eq!(differ_only_in_messages(&one, &other), is_same, "{other:?}");
        }
    }

    #[test]
    fn a_status_is_written_only_if_a_condition_or_the_phase_changes() {
        let ready = AuthenticatorConditions::summarize(vec![DesiredCondition::success("A", "a")], "Kind");
        let first = ready.next_status(None, Some(1), at(1)).unwrap();
        assert_eq!(first.phase, Some(AuthenticatorPhase::Ready));
        assert_eq!(first.conditions.len(), 2);
        assert_eq!(ready.next_status(Some(&first), Some(1), at(2)), None);

        let next = ready.next_status(Some(&first), Some(2), at(2)).unwrap();
        assert!(next.conditions.iter().all(|condition| condition.observed_generation == Some(2)));
        assert_eq!(next.conditions[0].last_transition_time, first.conditions[0].last_transition_time);

        let other_phase = AuthenticatorStatus { phase: Some(AuthenticatorPhase::Pending), ..first.clone() };
        assert_eq!(ready.next_status(Some(&other_phase), Some(1), at(2)), Some(first.clone()));

        let failed = AuthenticatorConditions::summarize(vec![unable_to_validate("A")], "Kind");
        let status = failed.next_status(Some(&first), Some(1), at(2)).unwrap();
        assert_eq!(status.phase, Some(AuthenticatorPhase::Error));
    }
}
