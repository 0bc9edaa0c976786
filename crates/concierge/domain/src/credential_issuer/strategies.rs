//! Builds and merges `status.strategies`: one entry per strategy, in a fixed order.

use jiff::Timestamp;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, CredentialIssuerStrategy, ImpersonationProxyInfo, StrategyReason,
    StrategyStatus, StrategyType,
};
use pinniped_kube_types::condition::wire_time;

/// Message of a proxy that serves requests.
pub const LISTENING: &str = "impersonation proxy is ready to accept client connections";

/// Message of a proxy whose Service has no address yet, also for type `ClusterIP`.
pub const WAITING: &str = "waiting for load balancer Service to be assigned IP or hostname";

/// Message of mode `disabled`.
pub const DISABLED: &str = "impersonation proxy was explicitly disabled by configuration";

/// Message of mode `auto` if a control plane node is visible.
pub const AUTO_DISABLED: &str = "automatically determined that impersonation proxy should be disabled";

/// Message of a cluster signing key that was read.
pub const FETCHED: &str = "key was fetched successfully";

/// The change of a strategy's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// The entry has this content.
    Set(Box<CredentialIssuerStrategy>),
    /// There is no entry.
    Remove,
}

impl EntryChange {
    /// Returns the change that sets this entry.
    pub fn set(entry: CredentialIssuerStrategy) -> Self {
        Self::Set(Box::new(entry))
    }
}

/// Returns an entry without a frontend.
pub fn failing(
    type_: StrategyType,
    reason: StrategyReason,
    message: impl Into<String>,
    now: Timestamp,
) -> CredentialIssuerStrategy {
    CredentialIssuerStrategy {
        type_,
        status: StrategyStatus::Error,
        reason,
        message: message.into(),
        last_update_time: wire_time(now),
        frontend: None,
    }
}

/// Returns the entry of a proxy that serves at `endpoint` with a certificate that verifies with the
/// bundle, given as base64.
pub fn listening(
    endpoint: &str,
    certificate_authority_data: String,
    now: Timestamp,
) -> CredentialIssuerStrategy {
    CredentialIssuerStrategy {
        type_: StrategyType::ImpersonationProxy,
        status: StrategyStatus::Success,
        reason: StrategyReason::Listening,
        message: LISTENING.to_owned(),
        last_update_time: wire_time(now),
        frontend: Some(CredentialIssuerFrontend::impersonation_proxy(ImpersonationProxyInfo {
            endpoint: endpoint.to_owned(),
            certificate_authority_data,
        })),
    }
}

/// Returns the entry of a cluster signing key that was read.
pub fn fetched(frontend: CredentialIssuerFrontend, now: Timestamp) -> CredentialIssuerStrategy {
    CredentialIssuerStrategy {
        type_: StrategyType::KubeClusterSigningCertificate,
        status: StrategyStatus::Success,
        reason: StrategyReason::FetchedKey,
        message: FETCHED.to_owned(),
        last_update_time: wire_time(now),
        frontend: Some(frontend),
    }
}

/// Returns the entry of a strategy that works and whose clients use this frontend.
pub fn ready(
    type_: StrategyType,
    message: impl Into<String>,
    frontend: CredentialIssuerFrontend,
    now: Timestamp,
) -> CredentialIssuerStrategy {
    CredentialIssuerStrategy {
        status: StrategyStatus::Success,
        frontend: Some(frontend),
        ..failing(type_, StrategyReason::Listening, message, now)
    }
}

/// Returns the list with `entry` in place of the one of the same type, at the position of its type.
/// Returns `None` if only the time would change.
pub fn merge(
    existing: &[CredentialIssuerStrategy],
    entry: CredentialIssuerStrategy,
) -> Option<Vec<CredentialIssuerStrategy>> {
    let mut merged: Vec<CredentialIssuerStrategy> =
        existing.iter().filter(|strategy| strategy.type_ != entry.type_).cloned().collect();
    let old = existing.iter().find(|strategy| strategy.type_ == entry.type_);
    merged.push(match old {
        Some(old) if same_but_for_the_time(old, &entry) => old.clone(),
        _ => entry,
    });
    sort(&mut merged);
    (merged != existing).then_some(merged)
}

/// Returns the list without the entry of this type, or `None` if there is no such entry.
pub fn without(
    existing: &[CredentialIssuerStrategy],
    type_: &StrategyType,
) -> Option<Vec<CredentialIssuerStrategy>> {
    let rest: Vec<_> = existing.iter().filter(|strategy| strategy.type_ != *type_).cloned().collect();
    (rest.len() < existing.len()).then_some(rest)
}

fn same_but_for_the_time(a: &CredentialIssuerStrategy, b: &CredentialIssuerStrategy) -> bool {
    let CredentialIssuerStrategy { type_, status, reason, message, last_update_time: _, frontend } = a;
    (type_, status, reason, message, frontend) == (&b.type_, &b.status, &b.reason, &b.message, &b.frontend)
}

/// Sorts known types by preference and others by name. The order matters because `DefaultStrategy`
/// and the command line use the first strategy that works.
fn sort(strategies: &mut [CredentialIssuerStrategy]) {
    strategies.sort_by(|a, b| {
        let key = |strategy: &CredentialIssuerStrategy| match &strategy.type_ {
            StrategyType::KubeClusterSigningCertificate => 0,
            StrategyType::KubeCertificateSigningRequest => 1,
            StrategyType::ImpersonationProxy => 2,
            StrategyType::ServiceAccountToken => 3,
            StrategyType::Other(_) => 4,
        };
        key(a).cmp(&key(b)).then_with(|| a.type_.as_str().cmp(b.type_.as_str()))
    });
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn entry(type_: &str, message: &str, second: i64) -> CredentialIssuerStrategy {
        failing(StrategyType::from(type_), StrategyReason::Pending, message, at(second))
    }

    #[test]
    fn known_types_have_a_fixed_order_and_others_are_sorted_by_name() {
        let mut list = Vec::new();
        for type_ in [
            "Zebra",
            "ServiceAccountToken",
            "ImpersonationProxy",
            "Aardvark",
            "KubeCertificateSigningRequest",
            "KubeClusterSigningCertificate",
        ] {
            list = merge(&list, entry(type_, "m", 0)).expect("a new entry is a change");
        }
        let order: Vec<&str> = list.iter().map(|strategy| strategy.type_.as_str()).collect();
        assert_eq!(
            order,
            [
                "KubeClusterSigningCertificate",
                "KubeCertificateSigningRequest",
                "ImpersonationProxy",
                "ServiceAccountToken",
                "Aardvark",
                "Zebra",
            ]
        );
    }

    #[test]
    fn a_new_time_alone_is_not_a_change() {
        let list = vec![entry("ImpersonationProxy", "m", 0), entry("Other", "m", 0)];
        assert_eq!(merge(&list, entry("ImpersonationProxy", "m", 9)), None);
    }

    #[test]
    fn a_change_replaces_only_its_own_entry() {
        let list = vec![entry("KubeClusterSigningCertificate", "a", 0), entry("ImpersonationProxy", "b", 0)];
        let merged = merge(&list, entry("ImpersonationProxy", "c", 9));
        assert_eq!(
            merged,
            Some(vec![entry("KubeClusterSigningCertificate", "a", 0), entry("ImpersonationProxy", "c", 9)])
        );
        let ready = listening("https://x", "data".to_owned(), at(9));
        let merged = merge(&list, ready.clone());
        assert_eq!(merged, Some(vec![entry("KubeClusterSigningCertificate", "a", 0), ready]));
    }

    #[test]
    fn an_entry_can_be_removed() {
        let list = vec![entry("ImpersonationProxy", "b", 0), entry("ServiceAccountToken", "a", 0)];
        let rest = without(&list, &StrategyType::ServiceAccountToken);
        assert_eq!(rest, Some(vec![list[0].clone()]));
        assert_eq!(without(&list[..1], &StrategyType::ServiceAccountToken), None);
    }

    #[test]
    fn a_wrong_order_is_corrected_without_changing_times() {
        let list = vec![entry("ImpersonationProxy", "m", 0), entry("KubeClusterSigningCertificate", "m", 0)];
        let merged = merge(&list, entry("ImpersonationProxy", "m", 9)).unwrap();
        assert_eq!(merged, [list[1].clone(), list[0].clone()]);
    }

    #[test]
    fn times_are_whole_seconds() {
        let now = Timestamp::new(5, 999_999_999).unwrap();
        assert_eq!(listening("https://x", String::new(), now).last_update_time, Time(at(5)));
    }
}
