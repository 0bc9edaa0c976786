//! Decides the status of an authenticator of any kind from its conditions (the summary condition,
//! and the phase), and the Events about its transitions.

use jiff::Timestamp;
use pinniped_concierge_api::authentication::{AuthenticatorPhase, AuthenticatorStatus};
use pinniped_kube_types::condition::{self, Condition, DesiredCondition};
use pinniped_kube_types::event::NewEvent;

/// Reason of a condition that depends on another condition that is not true.
pub const UNABLE_TO_VALIDATE: &str = "UnableToValidate";

/// The condition of the last step of every kind: the authenticator is built from its inputs.
pub const AUTHENTICATOR_VALID: &str = "AuthenticatorValid";

/// Action of Events about authenticators.
const VALIDATE: &str = "Validate";

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

/// Returns the Events about the change from one status to another one: one Event if the
/// authenticator becomes ready, and one for each condition that becomes false, is false for another
/// reason, or is still false for a new spec. Conditions that could not be determined follow from
/// others. A new message alone is not an Event.
pub fn events(old: Option<&AuthenticatorStatus>, new: &AuthenticatorStatus) -> Vec<NewEvent> {
    let was = |type_: &str| old?.conditions.iter().find(|condition| condition.type_ == type_);
    let is_new_failure = |condition: &Condition| {
        condition.status == condition::FALSE
            && was(&condition.type_).is_none_or(|old| {
                (&old.status, &old.reason, old.observed_generation)
                    != (&condition.status, &condition.reason, condition.observed_generation)
            })
    };
    let (summaries, conditions): (Vec<&Condition>, Vec<&Condition>) =
        new.conditions.iter().partition(|condition| condition.type_ == condition::TYPE_READY);
    let failure = |condition: &Condition| {
        let note = format!("{}: {}", condition.type_, condition.message);
        NewEvent::warning(condition.reason.clone(), VALIDATE, note)
    };
    let became_ready = |summary: &&&Condition| {
        summary.status == condition::TRUE
            && was(condition::TYPE_READY).is_none_or(|old| old.status != condition::TRUE)
    };
    let ready = |summary: &&Condition| NewEvent::normal("Ready", VALIDATE, summary.message.clone());
    let failures = conditions.into_iter().filter(|condition| is_new_failure(condition)).map(failure);
    failures.chain(summaries.iter().filter(became_ready).map(ready)).collect()
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
    fn a_transition_of_an_authenticator_is_an_event() {
        let status = |conditions: Vec<DesiredCondition>, generation| {
            let conditions = AuthenticatorConditions::summarize(conditions, "Kind");
            conditions.next_status(None, Some(generation), at(1)).unwrap()
        };
        let good = |generation| status(vec![DesiredCondition::success("A", "")], generation);
        let bad = |reason: &str, message: &str, generation| {
            let failure = DesiredCondition::failure("A", reason, message);
            status(vec![failure, unable_to_validate("B")], generation)
        };
        let no_dial = "Warning NoDial A: refused";
        for (case, old, new, expected) in [
            ("a new one is ready", None, good(1), vec!["Normal Ready the Kind is ready"]),
            ("a new one is not", None, bad("NoDial", "refused", 1), vec![no_dial]),
            ("it stays ready", Some(good(1)), good(2), vec![]),
            ("it fails", Some(good(1)), bad("NoDial", "refused", 1), vec![no_dial]),
            ("it recovers", Some(bad("NoDial", "", 1)), good(1), vec!["Normal Ready the Kind is ready"]),
            ("it still fails", Some(bad("NoDial", "refused", 1)), bad("NoDial", "late", 1), vec![]),
            ("for another reason", Some(bad("BadURL", "", 1)), bad("NoDial", "refused", 1), vec![no_dial]),
            ("a new spec fails, too", Some(bad("NoDial", "", 1)), bad("NoDial", "refused", 2), vec![no_dial]),
            (
                "two conditions",
                Some(AuthenticatorStatus::default()),
                status(
                    vec![DesiredCondition::failure("A", "X", "x"), DesiredCondition::failure("B", "Y", "y")],
                    1,
                ),
                vec!["Warning X A: x", "Warning Y B: y"],
            ),
        ] {
            let events = events(old.as_ref(), &new);
            let shown =
                |event: &NewEvent| format!("{} {} {}", event.type_.as_str(), event.reason, event.note);
            assert_eq!(events.iter().map(shown).collect::<Vec<_>>(), expected, "{case}");
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
