//! The strategy `KubeCertificateSigningRequest`: client certificates that the cluster's own signer
//! signs through the certificate API.
//!
//! The strategy is for clusters whose signing key is not accessible, but whose signer
//! `kubernetes.io/kube-apiserver-client` signs requests that the Concierge creates and approves.
//!
//! ```text
//! mode       spec.certificateSigningRequests, validated
//! subject    the users for whom no certificate is requested
//! request    the CertificateSigningRequest of one login, and its progress
//! orphans    requests that were not deleted after their login
//! ```
//!
//! [`Memory::decide`] decides the strategy's entry in the status. In mode `auto`, the strategy
//! gives way to the strategies of upstream: it has an entry only while the signing key is not
//! available, the impersonation proxy is switched off, and the cluster signed the last probe.
//! Clients prefer this strategy to the proxy because of its position in the list, so an entry
//! beside a running proxy would move new kubeconfigs from the proxy to the API server. The
//! controller logs the error of a failed probe.
//!
//! A probe request shows whether the strategy works: the Concierge requests a certificate for a
//! user that has no permissions, and discards its key.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pinniped_concierge_api::config::{
    CredentialIssuerFrontend, CredentialIssuerStrategy, StrategyReason, StrategyStatus, StrategyType,
    TokenCredentialRequestApiInfo,
};

use super::api_server_address::UnknownAddress;
use crate::credential_issuer::strategies::{EntryChange, failing, ready};
use crate::status_text::StatusText;
use mode::{Mode, ModeError};

pub mod mode;
pub mod orphans;
pub mod request;
pub mod subject;

/// Message of a strategy that works.
pub const READY: &str = "client certificates are signed through the cluster's certificate API";

/// Time for which no other strategy must be in use before this one is, in mode `auto`. The agent
/// needs some time until it has read the signing key, and a control plane that is being upgraded
/// has no kube-controller-manager pod for a while.
const TAKEOVER_DELAY: Duration = Duration::from_secs(60);

/// Interval between a successful probe and the next one.
const PROBE_INTERVAL: Duration = Duration::from_secs(600);

/// Interval between a failed probe and the next one. In mode `auto` it doubles with each further
/// failure up to [`PROBE_INTERVAL`], because the signer may never answer, and no user asked for it.
const PROBE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The observed state.
#[derive(Debug)]
pub struct Observed<'a> {
    /// The mode in the spec.
    pub mode: &'a Result<Mode, ModeError>,
    /// The entries in the status.
    pub strategies: &'a [CredentialIssuerStrategy],
    /// The address of the API server for clients.
    pub address: Result<TokenCredentialRequestApiInfo, UnknownAddress>,
}

/// The action to take.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Send a probe request, [record](Memory::probed) its result, and decide again.
    Probe,
    /// Apply this result.
    Conclude(Conclusion),
}

/// The result of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// The change of the strategy's entry.
    pub change: EntryChange,
    /// Time after which to decide again if no event occurs before.
    pub recheck_after: Option<Duration>,
}

/// The memory of the leader between two decisions. Times are readings of a monotonic clock, which
/// the controller passes.
#[derive(Debug, Default)]
pub struct Memory {
    /// Time since which no other strategy is in use.
    alone_since: Option<Instant>,
    probe: Option<Probe>,
}

/// The last probe.
#[derive(Debug)]
struct Probe {
    result: Result<(), StatusText>,
    at: Instant,
    /// Number of probes that failed one after another.
    failures: u32,
}

impl Probe {
    /// Returns the time until the next probe.
    fn interval(&self, is_auto: bool) -> Duration {
        match self.failures.checked_sub(1) {
            None => PROBE_INTERVAL,
            Some(repeated) if is_auto => {
                PROBE_RETRY_INTERVAL.saturating_mul(2_u32.saturating_pow(repeated)).min(PROBE_INTERVAL)
            }
            Some(_) => PROBE_RETRY_INTERVAL,
        }
    }
}

impl Memory {
    /// Decides the entry.
    pub fn decide(&mut self, observed: Observed<'_>, now: Instant, time: Timestamp) -> Plan {
        let conclude = |change, recheck_after| Plan::Conclude(Conclusion { change, recheck_after });
        let off = |recheck_after| conclude(EntryChange::Remove, recheck_after);
        let type_ = StrategyType::KubeCertificateSigningRequest;
        let failed = |reason, message: String, recheck_after| {
            conclude(EntryChange::set(failing(type_.clone(), reason, message, time)), recheck_after)
        };
        let is_auto = matches!(observed.mode, Ok(Mode::Auto));
        match observed.mode {
            Err(error) => {
                self.forget();
                return failed(StrategyReason::ErrorDuringSetup, error.to_string(), None);
            }
            Ok(Mode::Disabled) => {
                self.forget();
                return off(None);
            }
            Ok(Mode::Enabled) => {}
            Ok(Mode::Auto) if !is_alone(observed.strategies) => {
                self.forget();
                return off(None);
            }
            Ok(Mode::Auto) => {
                let since = *self.alone_since.get_or_insert(now);
                let left = TAKEOVER_DELAY.saturating_sub(now.saturating_duration_since(since));
                // An entry of the previous leader stays.
                if !left.is_zero() && entry(observed.strategies).is_none() {
                    return off(Some(left));
                }
            }
        }
        let address = match observed.address {
            Ok(address) => address,
            Err(_) if is_auto => return off(None),
            Err(error) => return failed(StrategyReason::CouldNotGetClusterInfo, error.to_string(), None),
        };
        let Some(probe) = &self.probe else { return Plan::Probe };
        let left = probe.interval(is_auto).saturating_sub(now.saturating_duration_since(probe.at));
        if left.is_zero() {
            return Plan::Probe;
        }
        match &probe.result {
            Err(_) if is_auto => off(Some(left)),
            Err(error) => failed(StrategyReason::ErrorDuringSetup, error.to_string(), Some(left)),
            Ok(()) => {
                let frontend = CredentialIssuerFrontend::token_credential_request_api(address);
                conclude(EntryChange::set(ready(type_, READY, frontend, time)), Some(left))
            }
        }
    }

    /// Records the result of a probe.
    pub fn probed(&mut self, result: Result<(), StatusText>, now: Instant) {
        let before = self.probe.as_ref().map_or(0, |probe| probe.failures);
        let failures = if result.is_ok() { 0 } else { before.saturating_add(1) };
        self.probe = Some(Probe { result, at: now, failures });
    }

    /// Discards everything, because the strategy is not in use, or another replica is the leader.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Returns whether logins get certificates of this strategy. Every replica decides this from the
/// entry that the leader wrote, so that all replicas change at the same time, and only if the
/// installed definition has the strategy.
pub fn is_in_use(mode: &Result<Mode, ModeError>, strategies: &[CredentialIssuerStrategy]) -> bool {
    matches!(mode, Ok(Mode::Auto | Mode::Enabled))
        && entry(strategies).is_some_and(|entry| entry.status == StrategyStatus::Success)
}

/// Returns the entry of this strategy.
pub fn entry(strategies: &[CredentialIssuerStrategy]) -> Option<&CredentialIssuerStrategy> {
    find(strategies, &StrategyType::KubeCertificateSigningRequest)
}

/// Returns whether the signing key is not available and the impersonation proxy is switched off. A
/// strategy without an entry has not been decided yet.
fn is_alone(strategies: &[CredentialIssuerStrategy]) -> bool {
    let key = find(strategies, &StrategyType::KubeClusterSigningCertificate);
    let proxy = find(strategies, &StrategyType::ImpersonationProxy);
    key.is_some_and(|key| key.status == StrategyStatus::Error)
        && proxy.is_some_and(|proxy| proxy.reason == StrategyReason::Disabled)
}

fn find<'a>(
    strategies: &'a [CredentialIssuerStrategy],
    type_: &StrategyType,
) -> Option<&'a CredentialIssuerStrategy> {
    strategies.iter().find(|strategy| strategy.type_ == *type_)
}

#[cfg(test)]
mod tests;
