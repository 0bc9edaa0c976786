//! Decides the condition `Ready` of the `CredentialIssuer`, which summarizes its strategies for
//! `kubectl wait` and for tools that apply manifests.
//!
//! Several controllers write entries, each when it has observed the spec. The condition therefore
//! has the smallest generation that all of them have observed, so a client that waits for the
//! condition after a change of the spec waits for every controller.

use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyStatus, StrategyType};
use pinniped_kube_types::condition::{Condition, DesiredCondition, TYPE_READY};
use pinniped_kube_types::text::truncated;

use super::conditions::{ConditionChange, ConditionReport, MAX_MESSAGE_LENGTH};

/// Reason of the condition if no strategy works.
pub const NO_WORKING_STRATEGY: &str = "NoWorkingStrategy";
/// Reason of the condition while not every controller has observed the object.
pub const PENDING: &str = "Pending";

/// The strategies, each of which has a controller that observes the spec.
const STRATEGIES: [StrategyType; 4] = [
    StrategyType::KubeClusterSigningCertificate,
    StrategyType::KubeCertificateSigningRequest,
    StrategyType::ImpersonationProxy,
    StrategyType::ServiceAccountToken,
];

/// The generation of the `CredentialIssuer` that the controller of each strategy has observed, and
/// for which the status has its result.
#[derive(Clone, Debug, Default)]
pub struct ObservedGenerations(Vec<(StrategyType, Option<i64>)>);

impl ObservedGenerations {
    /// Records that the status has the result of a strategy's controller for this generation.
    pub fn record(&mut self, type_: &StrategyType, generation: Option<i64>) {
        self.0.retain(|(recorded, _)| recorded != type_);
        self.0.push((type_.clone(), generation));
    }

    /// Returns the same generations with another one recorded.
    #[must_use]
    pub fn with(&self, type_: &StrategyType, generation: Option<i64>) -> Self {
        let mut observed = self.clone();
        observed.record(type_, generation);
        observed
    }

    fn of(&self, type_: &StrategyType) -> Option<&Option<i64>> {
        self.0.iter().find(|(recorded, _)| recorded == type_).map(|(_, generation)| generation)
    }

    fn missing(&self) -> Vec<&'static str> {
        STRATEGIES.iter().filter(|type_| self.of(type_).is_none()).map(name).collect()
    }

    fn smallest(&self) -> Option<i64> {
        STRATEGIES.iter().filter_map(|type_| *self.of(type_)?).min()
    }
}

/// Decides the condition from the strategies in the status. While a controller has not observed the
/// object since this process started, an existing condition stays as it is.
pub fn ready(
    strategies: &[CredentialIssuerStrategy],
    existing: &[Condition],
    observed: &ObservedGenerations,
) -> ConditionReport {
    let missing = observed.missing();
    let wanted = if missing.is_empty() {
        summary(strategies)
    } else if existing.iter().any(|condition| condition.type_ == TYPE_READY && condition.reason != PENDING) {
        return ConditionReport::default();
    } else {
        let message = format!("waiting for the first result of {}", listed(&missing));
        DesiredCondition::unknown(TYPE_READY, PENDING, message)
    };
    ConditionReport { changes: vec![ConditionChange::Set(wanted)], generation: observed.smallest() }
}

fn summary(strategies: &[CredentialIssuerStrategy]) -> DesiredCondition {
    let known = || strategies.iter().filter(|strategy| StrategyType::KNOWN.contains(&strategy.type_));
    let working: Vec<&str> = known()
        .filter(|strategy| strategy.status == StrategyStatus::Success)
        .map(|strategy| name(&strategy.type_))
        .collect();
    if !working.is_empty() {
        let message = format!("credentials are issued with {}", listed(&working));
        return DesiredCondition::success(TYPE_READY, message);
    }
    let failing: Vec<String> =
        known().map(|strategy| format!("{}: {}", strategy.type_, strategy.message)).collect();
    let message = match failing.as_slice() {
        [] => "no strategy is in use".to_owned(),
        failing => format!("no strategy works: {}", failing.join("; ")),
    };
    DesiredCondition::failure(TYPE_READY, NO_WORKING_STRATEGY, truncated(&message, MAX_MESSAGE_LENGTH))
}

fn name(type_: &StrategyType) -> &str {
    type_.as_str()
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pinniped_concierge_api::config::StrategyReason;
    use pinniped_kube_types::condition;

    use super::*;
    use crate::credential_issuer::strategies::failing;

    const KEY: &str = "KubeClusterSigningCertificate";
    const REQUEST: &str = "KubeCertificateSigningRequest";
    const PROXY: &str = "ImpersonationProxy";
    const TOKEN: &str = "ServiceAccountToken";

    fn entry(type_: &str, status: &str, message: &str) -> CredentialIssuerStrategy {
        let entry =
            failing(StrategyType::from(type_), StrategyReason::Pending, message, Timestamp::UNIX_EPOCH);
        CredentialIssuerStrategy { status: StrategyStatus::from(status), ..entry }
    }

    fn observed(generations: &[(&str, i64)]) -> ObservedGenerations {
        let mut observed = ObservedGenerations::default();
        for (type_, generation) in generations {
            observed.record(&StrategyType::from(*type_), Some(*generation));
        }
        observed
    }

    /// Formats the change: status, reason, message, and generation.
    fn text(report: &ConditionReport) -> String {
        match report.changes.as_slice() {
            [] => "unchanged".to_owned(),
            [ConditionChange::Set(DesiredCondition { type_, status, reason, message })] => {
                assert_eq!(type_, "Ready");
                format!("{status} {reason} {message} @{}", report.generation.unwrap_or(-1))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_condition_is_true_if_a_strategy_works_and_otherwise_names_all() {
        let all = observed(&[(KEY, 3), (REQUEST, 3), (PROXY, 2), (TOKEN, 4)]);
        for (strategies, wanted) in [
            (
                vec![entry(KEY, "Success", "a"), entry(PROXY, "Error", "b")],
                "True Success credentials are issued with KubeClusterSigningCertificate @2",
            ),
            (
                vec![entry(KEY, "Success", "a"), entry(PROXY, "Success", "b"), entry(TOKEN, "Success", "c")],
                "True Success credentials are issued with \
                 KubeClusterSigningCertificate, ImpersonationProxy and ServiceAccountToken @2",
            ),
            (
                vec![entry(KEY, "Error", "a"), entry(PROXY, "Error", "b")],
                "False NoWorkingStrategy no strategy works: \
                 KubeClusterSigningCertificate: a; ImpersonationProxy: b @2",
            ),
            // A strategy of another version does not count.
            (
                vec![entry(KEY, "Error", "a"), entry("Other", "Success", "b")],
                "False NoWorkingStrategy no strategy works: KubeClusterSigningCertificate: a @2",
            ),
            (
                vec![entry(KEY, "Maybe", "a")],
                "False NoWorkingStrategy no strategy works: KubeClusterSigningCertificate: a @2",
            ),
            (vec![], "False NoWorkingStrategy no strategy is in use @2"),
        ] {
            assert_eq!(text(&ready(&strategies, &[], &all)), wanted);
        }
    }

    #[test]
    fn the_condition_is_unknown_until_every_controller_has_observed_the_object() {
        let works = [entry(KEY, "Success", "a")];
        let waiting = "Unknown Pending waiting for the first result of";
        for (generations, wanted) in [
            (
                vec![(KEY, 1), (REQUEST, 1)],
                format!("{waiting} ImpersonationProxy and ServiceAccountToken @1"),
            ),
            (vec![(KEY, 1), (TOKEN, 1), (REQUEST, 1)], format!("{waiting} ImpersonationProxy @1")),
            (
                vec![(KEY, 1), (TOKEN, 1), (REQUEST, 1), (PROXY, 1)],
                "True Success credentials are issued with KubeClusterSigningCertificate @1".to_owned(),
            ),
        ] {
            assert_eq!(text(&ready(&works, &[], &observed(&generations))), wanted);
        }
    }

    #[test]
    fn a_condition_of_the_previous_leader_stays_until_every_controller_has_observed_the_object() {
        let mut existing = Vec::new();
        let works = DesiredCondition::success("Ready", "m");
        condition::merge(&mut existing, [works], Some(1), Timestamp::UNIX_EPOCH);
        let strategies = [entry(KEY, "Error", "a")];
        let some = observed(&[(KEY, 2), (REQUEST, 2), (PROXY, 2)]);
        assert_eq!(text(&ready(&strategies, &existing, &some)), "unchanged");
        let all = some.with(&StrategyType::ServiceAccountToken, Some(2));
        assert_eq!(
            text(&ready(&strategies, &existing, &all)),
            "False NoWorkingStrategy no strategy works: KubeClusterSigningCertificate: a @2"
        );
    }

    #[test]
    fn a_long_message_is_cut() {
        let all = observed(&[(KEY, 1), (REQUEST, 1), (PROXY, 1), (TOKEN, 1)]);
        let long = "x".repeat(2 * MAX_MESSAGE_LENGTH);
        let report = ready(&[entry(KEY, "Error", &long)], &[], &all);
        assert!(text(&report).len() < MAX_MESSAGE_LENGTH + 200);
    }
}
