//! Decides the Events about the `CredentialIssuer`: transitions of its strategies, and changes of
//! certificates that the Concierge generates. Upstream writes no Events.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyReason, StrategyStatus};
use pinniped_kube_types::event::NewEvent;

/// Action of Events about strategies.
const RECONCILE_STRATEGY: &str = "ReconcileStrategy";

/// Action of Events about certificates.
const MANAGE_CERTIFICATE: &str = "ManageCertificate";

/// Returns the Events about the change from one list of strategies to another one: for each entry
/// that is new or has another status or reason, and for each that is gone. A new message alone is
/// not an Event, because some messages contain counts or the errors of a retried request.
pub fn of_strategies(old: &[CredentialIssuerStrategy], new: &[CredentialIssuerStrategy]) -> Vec<NewEvent> {
    let same_type = |list: &[CredentialIssuerStrategy], entry: &CredentialIssuerStrategy| {
        list.iter().find(|other| other.type_ == entry.type_).cloned()
    };
    let changed = new.iter().filter(|entry| {
        same_type(old, entry).is_none_or(|old| (&old.status, &old.reason) != (&entry.status, &entry.reason))
    });
    let gone = old.iter().filter(|entry| same_type(new, entry).is_none());
    let removed = |entry: &CredentialIssuerStrategy| {
        let note = format!("{} is not in use any more", entry.type_);
        NewEvent::normal("StrategyRemoved", RECONCILE_STRATEGY, note)
    };
    changed.map(of_strategy).chain(gone.map(removed)).collect()
}

fn of_strategy(entry: &CredentialIssuerStrategy) -> NewEvent {
    let note = format!("{}: {}: {}", entry.type_, entry.reason, entry.message);
    match (&entry.status, &entry.reason) {
        (StrategyStatus::Success, _) => NewEvent::normal("StrategyReady", RECONCILE_STRATEGY, note),
        (_, StrategyReason::Disabled) => NewEvent::normal("StrategyDisabled", RECONCILE_STRATEGY, note),
        (_, StrategyReason::Pending) => NewEvent::normal("StrategyPending", RECONCILE_STRATEGY, note),
        _ => NewEvent::warning("StrategyFailed", RECONCILE_STRATEGY, note),
    }
}

/// A certificate that the Concierge generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratedCertificate {
    /// The serving certificate of the aggregated API, with its CA.
    ApiServing,
    /// The CA that signs client certificates for the impersonation proxy.
    ImpersonationSigner,
    /// The CA of the impersonation proxy's serving certificate.
    ImpersonationCa,
    /// The serving certificate of the impersonation proxy.
    ImpersonationServing,
}

impl GeneratedCertificate {
    /// Returns the use of the certificate, for users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiServing => "the serving certificate of the aggregated API",
            Self::ImpersonationSigner => "the CA of the impersonation proxy's client certificates",
            Self::ImpersonationCa => "the CA of the impersonation proxy's serving certificate",
            Self::ImpersonationServing => "the serving certificate of the impersonation proxy",
        }
    }
}

/// A generated certificate in a Secret.
#[derive(Clone, Copy, Debug)]
pub struct CertificateInSecret<'a> {
    /// The use of the certificate.
    pub certificate: GeneratedCertificate,
    /// The namespace of the Secret.
    pub namespace: &'a str,
    /// The name of the Secret.
    pub secret: &'a str,
}

impl CertificateInSecret<'_> {
    /// Returns the Event of a certificate that was created, as the first one or as a replacement.
    pub fn created(&self, not_after: Timestamp) -> NewEvent {
        self.event("CertificateCreated", format!("created {self}, valid until {}", seconds(not_after)))
    }

    /// Returns the Event of a certificate that was deleted because it is due for renewal. The Event
    /// of its replacement follows.
    pub fn renewed(&self, not_after: Timestamp) -> NewEvent {
        let note = format!("deleted {self} for its renewal; it was valid until {}", seconds(not_after));
        self.event("CertificateRenewal", note)
    }

    /// Returns the Event of a certificate that was deleted for another reason.
    pub fn deleted(&self, why: &str) -> NewEvent {
        self.event("CertificateDeleted", format!("deleted {self}: {why}"))
    }

    /// Returns the Event of a certificate that is due for renewal and could not be renewed.
    pub fn renewal_failed(&self, not_after: Timestamp, error: &str) -> NewEvent {
        let not_after = seconds(not_after);
        self.warning(
            "CertificateRenewalFailed",
            format!("{self} is valid until {not_after}, and could not be renewed: {error}"),
        )
    }

    /// Returns the Event of a Secret without a readable certificate, which is never renewed.
    pub fn unreadable(&self, error: &str) -> NewEvent {
        let remedy = "delete the Secret to have it created again";
        self.warning("CertificateUnreadable", format!("{self} is not renewed: {error}: {remedy}"))
    }

    fn event(&self, reason: &str, note: String) -> NewEvent {
        NewEvent::normal(reason, MANAGE_CERTIFICATE, note).related_to(self.reference())
    }

    fn warning(&self, reason: &str, note: String) -> NewEvent {
        NewEvent::warning(reason, MANAGE_CERTIFICATE, note).related_to(self.reference())
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            namespace: Some(self.namespace.to_owned()),
            name: Some(self.secret.to_owned()),
            ..ObjectReference::default()
        }
    }
}

impl std::fmt::Display for CertificateInSecret<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { certificate, namespace, secret } = self;
        write!(f, "{} in Secret {namespace}/{secret}", certificate.as_str())
    }
}

/// Returns the time in whole seconds.
fn seconds(time: Timestamp) -> Timestamp {
    pinniped_kube_types::condition::wire_time(time).0
}

#[cfg(test)]
mod tests {
    use pinniped_concierge_api::config::StrategyType;
    use pinniped_kube_types::event::EventType;

    use super::*;
    use crate::credential_issuer::strategies::{failing, listening};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failed(reason: StrategyReason, message: &str) -> CredentialIssuerStrategy {
        failing(StrategyType::ImpersonationProxy, reason, message, at(0))
    }

    fn shown(events: &[NewEvent]) -> Vec<String> {
        let shown = |event: &NewEvent| format!("{} {} {}", event.type_.as_str(), event.reason, event.note);
        events.iter().map(shown).collect()
    }

    #[test]
    fn a_transition_of_a_strategy_is_one_event() {
        let proxy = || listening("https://x", String::new(), at(0));
        let ready = "Normal StrategyReady ImpersonationProxy: Listening: \
                     impersonation proxy is ready to accept client connections";
        let error = failed(StrategyReason::ErrorDuringSetup, "no");
        let failure = "Warning StrategyFailed ImpersonationProxy: ErrorDuringSetup: no";
        let key = || {
            failing(StrategyType::KubeClusterSigningCertificate, StrategyReason::CouldNotFetchKey, "k", at(0))
        };
        for (case, old, new, events) in [
            ("nothing", vec![], vec![], vec![]),
            ("the first entry", vec![], vec![proxy()], vec![ready]),
            ("the first entry fails", vec![], vec![error.clone()], vec![failure]),
            ("it fails", vec![proxy()], vec![error.clone()], vec![failure]),
            ("it recovers", vec![error.clone()], vec![proxy()], vec![ready]),
            (
                "only the message differs",
                vec![error.clone()],
                vec![failed(StrategyReason::ErrorDuringSetup, "x")],
                vec![],
            ),
            ("another frontend", vec![proxy()], vec![listening("https://y", String::new(), at(9))], vec![]),
            (
                "another reason",
                vec![error],
                vec![failed(StrategyReason::Pending, "wait")],
                vec!["Normal StrategyPending ImpersonationProxy: Pending: wait"],
            ),
            (
                "it is disabled",
                vec![proxy()],
                vec![failed(StrategyReason::Disabled, "off")],
                vec!["Normal StrategyDisabled ImpersonationProxy: Disabled: off"],
            ),
            (
                "it is removed",
                vec![key(), proxy()],
                vec![key()],
                vec!["Normal StrategyRemoved ImpersonationProxy is not in use any more"],
            ),
            ("another one does not change", vec![key()], vec![key(), proxy()], vec![ready]),
        ] {
            assert_eq!(shown(&of_strategies(&old, &new)), events, "{case}");
        }
    }

    #[test]
    fn an_event_about_a_certificate_names_its_use_and_its_secret() {
        let secret = |certificate| CertificateInSecret { certificate, namespace: "ns", secret: "s" };
        let serving = secret(GeneratedCertificate::ApiServing);
        let end = Timestamp::new(60, 999).unwrap();
        let events = [
            serving.created(end),
            serving.renewed(end),
            serving.deleted("why"),
            serving.renewal_failed(end, "no"),
            serving.unreadable("what"),
        ];
        let is = "the serving certificate of the aggregated API in Secret ns/s";
        assert_eq!(
            shown(&events),
            [
                format!("Normal CertificateCreated created {is}, valid until 1970-01-01T00:01:00Z"),
                format!(
                    "Normal CertificateRenewal deleted {is} for its renewal; it was valid until 1970-01-01T00:01:00Z"
                ),
                format!("Normal CertificateDeleted deleted {is}: why"),
                format!(
                    "Warning CertificateRenewalFailed {is} is valid until 1970-01-01T00:01:00Z, and could not be renewed: no"
                ),
                format!(
                    "Warning CertificateUnreadable {is} is not renewed: what: delete the Secret to have it created again"
                ),
            ]
        );
        for event in events {
            let related = event.related.unwrap();
            assert_eq!((related.namespace.as_deref(), related.name.as_deref()), (Some("ns"), Some("s")));
        }
        assert_eq!(serving.renewal_failed(end, "").type_, EventType::Warning);
    }
}
