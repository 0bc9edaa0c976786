//! Checks whether an externally provided serving certificate works for clients.
//!
//! Upstream has no such check; its clients fail in the TLS handshake. Here the result is reported
//! in a condition ([`crate::credential_issuer::conditions`]), an Event, the log and a metric.
//! `spec.impersonationProxy.tls.validation` selects the consequence of a failure: see [`Mode`].
//!
//! The checks are those of clients (RFC 6125 for names, RFC 5280 for the rest). This module does
//! not parse certificates and verifies no signatures: the controllers do, and pass the result as
//! [`CertificateDetails`].

use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pinniped_go_compat::json::quote;

use super::certificate_names::CertificateNames;

/// Prefix of the error text of a failed check in mode [`Mode::Enforce`].
pub const FAILED: &str = "could not validate the externally provided TLS secret for the impersonation proxy";

/// Time before the expiration of a certificate from which a warning is reported.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Maximum number of a certificate's names in a message.
const MAX_LISTED_NAMES: usize = 32;

/// Maximum number of characters of a name in a message; the longest DNS name has 253.
const MAX_NAME_LENGTH: usize = 256;

/// The consequence of a failed check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The certificate is served, and the failure is reported.
    #[default]
    Warn,
    /// The certificate is not loaded, and the previous one is kept.
    Enforce,
    /// Nothing is checked.
    Off,
}

impl Mode {
    /// Returns the mode for a value of the field. The schema allows no other values; where the
    /// schema is not installed, the field does not exist.
    pub fn of_field(value: Option<&str>) -> Self {
        match value {
            Some("Enforce") => Self::Enforce,
            Some("Off") => Self::Off,
            _ => Self::Warn,
        }
    }
}

/// The result of inspecting the leaf (the first certificate of `tls.crt`) and the advertised
/// bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateDetails {
    /// IP addresses of the leaf.
    pub ips: Vec<IpAddr>,
    /// DNS names of the leaf.
    pub dns_names: Vec<String>,
    /// Start of the leaf's validity.
    pub not_before: Timestamp,
    /// End of the leaf's validity.
    pub not_after: Timestamp,
    /// Whether the extended key usages of the leaf allow server authentication.
    pub may_serve: bool,
    /// Weaknesses of the leaf's key, or of a signature between the leaf and the root.
    pub weaknesses: Vec<String>,
    /// Whether the leaf verifies with the advertised bundle at a time within its own validity.
    pub chain: Chain,
    /// Whether the certificate and its key are a pair that can be served.
    pub loadable: bool,
}

/// Whether the leaf verifies with the advertised bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chain {
    /// No bundle is advertised: clients use their system's roots, which are not known to the
    /// Concierge.
    NoBundle,
    /// The leaf verifies.
    Verified,
    /// The leaf does not verify; the text is the reason.
    Failed(String),
    /// The bundle has an entry that is not a certificate: its position, counted from 1, and the
    /// reason.
    BadBundle(usize, String),
}

/// The expectations of clients for the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected<'a> {
    /// Name of the certificate's Secret in messages.
    pub secret: &'a str,
    /// The names that are advertised to clients.
    pub names: &'a CertificateNames,
    /// The address that was requested from the load balancer, if clients use the load balancer's
    /// address.
    pub load_balancer_ip: Option<IpAddr>,
}

/// The result of the checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Failed checks, in the order of the checks.
    pub problems: Vec<String>,
    /// The warning about an expiration in the near future, which is not a failure.
    pub ends_soon: Option<String>,
    /// Time after which the result changes without a change of the inputs.
    pub changes_after: Option<Duration>,
}

/// Checks a certificate against the expectations of clients at `now`.
pub fn check(details: &CertificateDetails, expected: &Expected<'_>, now: Timestamp) -> Findings {
    let secret = quote(expected.secret);
    let mut problems = Vec::new();
    problems.extend(wrong_host(details, expected).map(|host| {
        format!("certificate in secret {secret} is valid for [{}], not {}", listed(details), quote(&host))
    }));
    let mut ends_soon = None;
    if now < details.not_before {
        problems.push(format!("certificate in secret {secret} is not valid before {}", details.not_before));
    } else if now > details.not_after {
        problems.push(format!("certificate in secret {secret} expired at {}", details.not_after));
    } else if details.not_after.duration_since(now) <= EXPIRY_WARNING {
        ends_soon = Some(format!("certificate in secret {secret} expires at {}", details.not_after));
    }
    if !details.may_serve {
        problems.push(format!("certificate in secret {secret} is not usable for server authentication"));
    }
    match &details.chain {
        Chain::NoBundle | Chain::Verified => {}
        Chain::Failed(error) => problems.push(format!(
            "certificate in secret {secret} does not verify with the advertised CA bundle: {error}"
        )),
        Chain::BadBundle(position, error) => problems.push(format!(
            "advertised CA bundle contains invalid certificate at position {position}: {error}"
        )),
    }
    if !details.weaknesses.is_empty() {
        let weaknesses = details.weaknesses.join(", ");
        problems.push(format!("certificate in secret {secret} has a weak key or signature: {weaknesses}"));
    }
    Findings { problems, ends_soon, changes_after: changes_after(details, now) }
}

/// Returns the first host that clients may use and the certificate does not cover.
fn wrong_host(details: &CertificateDetails, expected: &Expected<'_>) -> Option<String> {
    let names = expected.names;
    if let Some(hostname) = &names.hostname
        && !details.dns_names.iter().any(|pattern| covers(pattern, hostname))
    {
        return Some(hostname.clone());
    }
    let requested = expected.load_balancer_ip.filter(|_| !details.ips.is_empty());
    let missing = names.ips.iter().chain(&requested).find(|ip| !details.ips.contains(ip));
    missing.map(ToString::to_string)
}

/// Returns whether a dNSName covers a host. ASCII case and one trailing dot are ignored; `*` is a
/// wildcard only as the whole leftmost label, and matches exactly one label.
pub fn covers(pattern: &str, host: &str) -> bool {
    let undotted = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let (pattern, host) = (undotted(pattern), undotted(host));
    match pattern.strip_prefix("*.") {
        Some(parent) => {
            !parent.is_empty()
                && host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == parent)
        }
        None => !pattern.is_empty() && pattern == host,
    }
}

/// Lists the names of a certificate for a message: a limited number, and escaped because their
/// content is not trusted.
fn listed(details: &CertificateDetails) -> String {
    let dns_names = details.dns_names.iter().map(|name| {
        let mut shown: String = name.chars().take(MAX_NAME_LENGTH).collect();
        if shown.len() < name.len() {
            shown.push('…');
        }
        shown.escape_debug().to_string()
    });
    let all = details.dns_names.len() + details.ips.len();
    let mut listed: Vec<String> =
        dns_names.chain(details.ips.iter().map(ToString::to_string)).take(MAX_LISTED_NAMES).collect();
    if all > MAX_LISTED_NAMES {
        listed.push(format!("… {all} in all"));
    }
    listed.join(", ")
}

fn changes_after(details: &CertificateDetails, now: Timestamp) -> Option<Duration> {
    let soon = details.not_after.checked_sub(EXPIRY_WARNING).unwrap_or(details.not_before);
    [details.not_before, soon, details.not_after]
        .into_iter()
        .filter_map(|time| Duration::try_from(time.duration_since(now)).ok())
        // The end of the validity is inclusive.
        .map(|after| after + Duration::from_millis(1))
        .min()
}

/// The content of the condition, the log line, the Event and the metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValidationReport {
    /// There is no external certificate: nothing is reported.
    Nothing,
    /// Nothing was checked; the text is the reason.
    NotChecked(String),
    /// The checks took place.
    Checked {
        /// Name of the Secret as in the spec.
        secret_name: String,
        /// The result of the checks.
        findings: Findings,
    },
}

impl ValidationReport {
    /// Returns the messages that need attention: failed checks, and an expiration in the near
    /// future.
    pub fn concerns(&self) -> Vec<String> {
        match self {
            Self::Nothing | Self::NotChecked(_) => Vec::new(),
            Self::Checked { findings, .. } => {
                findings.problems.iter().chain(&findings.ends_soon).cloned().collect()
            }
        }
    }

    /// Returns whether the certificate passed the checks; `None` if nothing was checked.
    pub fn is_valid(&self) -> Option<bool> {
        match self {
            Self::Nothing | Self::NotChecked(_) => None,
            Self::Checked { findings, .. } => Some(findings.problems.is_empty()),
        }
    }
}

/// De-duplicates the log lines and Events about the concerns of an external certificate.
#[derive(Debug, Default)]
pub struct ReportedConcerns {
    /// The concerns that were logged.
    logged: Vec<String>,
    /// Whether these concerns still need an Event.
    event_due: bool,
}

impl ReportedConcerns {
    /// Records a report and returns whether its concerns must be logged, because they are new. A
    /// report without checks withdraws nothing. `is_in_status` is true if the condition already
    /// has the report: then an earlier leader, or this pod before a restart, has written the Event.
    pub fn record(&mut self, report: &ValidationReport, is_in_status: bool) -> bool {
        let concerns = report.concerns();
        if !matches!(report, ValidationReport::Checked { .. }) || self.logged == concerns {
            return false;
        }
        let is_new = !concerns.is_empty();
        self.event_due = is_new && !is_in_status;
        self.logged = concerns;
        is_new
    }

    /// Returns the message of the Event that must be written, if there is one.
    pub fn due_event(&self) -> Option<String> {
        self.event_due.then(|| self.logged.join("; "))
    }

    /// Records that no Event is due any more: it was written, or it cannot be written.
    pub fn complete_event(&mut self) {
        self.event_due = false;
    }
}

#[cfg(test)]
mod tests;
