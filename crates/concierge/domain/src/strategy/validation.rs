//! Whether a serving certificate that the administrator brings can work for clients.
//!
//! Upstream leaves this to the clients, which then fail in the handshake. Here it is checked beforehand, and said
//! where the administrator looks: in a condition, an Event, the log and a metric. What follows from a failure is the
//! choice of `spec.impersonationProxy.tls.validation`: see [`Mode`].
//!
//! The checks follow what clients do (RFC 6125 for names, RFC 5280 for the rest). Parsing and signatures are not done
//! here: [`Facts`] come in as data.

use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pinniped_go_compat::json::quote;

use super::certificate_names::CertificateNames;

/// Type of the condition that tells the result.
pub const CONDITION: &str = "ServingCertificateValid";
/// Reason of the condition when all is well.
pub const VALID: &str = "Valid";
/// Reason of the condition when a check failed.
pub const INVALID: &str = "Invalid";
/// Reason of the condition when nothing was checked.
pub const NOT_CHECKED: &str = "NotChecked";

/// Begins the error that a failed check is in mode [`Mode::Enforce`].
pub const FAILED: &str = "could not validate the externally provided TLS secret for the impersonation proxy";

/// How long before the end of a certificate it is spoken of.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// So many names of a certificate are listed in a message.
const LISTED_NAMES: usize = 32;

/// So much of a name is shown; the longest DNS name has 253 characters.
const SHOWN_OF_A_NAME: usize = 256;

/// What a failed check leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The certificate is served all the same, and the failure is told.
    #[default]
    Warn,
    /// The certificate is not loaded; the one before stays.
    Enforce,
    /// There are no checks.
    Off,
}

impl Mode {
    /// The mode that the field's value means. The schema allows no other values; where it is not installed, the field
    /// does not exist.
    pub fn of_field(value: Option<&str>) -> Self {
        match value {
            Some("Enforce") => Self::Enforce,
            Some("Off") => Self::Off,
            _ => Self::Warn,
        }
    }
}

/// What was found out about the leaf (the first certificate of `tls.crt`) and the bundle that is advertised with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// Its DNS names.
    pub dns_names: Vec<String>,
    /// Start of its life.
    pub not_before: Timestamp,
    /// End of its life.
    pub not_after: Timestamp,
    /// Its extended key usages let it serve.
    pub may_serve: bool,
    /// What is weak about its key, or about a signature between it and the root.
    pub weaknesses: Vec<String>,
    /// Whether it leads to the advertised bundle, at a time within its own life.
    pub chain: Chain,
    /// It and its key are a pair that can be served.
    pub loadable: bool,
}

/// Whether the leaf verifies with the advertised bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chain {
    /// No bundle is advertised: clients use their system's roots, which are not known here.
    NoBundle,
    /// It does.
    Verified,
    /// It does not; why.
    Failed(String),
    /// The bundle holds something that is no certificate, at this position, counted from 1; why.
    BadBundle(usize, String),
}

/// For whom the certificate has to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected<'a> {
    /// Its Secret, as it is called in messages.
    pub secret: &'a str,
    /// What clients are told.
    pub names: &'a CertificateNames,
    /// The address that was asked of the load balancer, if clients are told what the load balancer got.
    pub load_balancer_ip: Option<IpAddr>,
}

/// What the checks found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Failures, in the order of the checks.
    pub problems: Vec<String>,
    /// The certificate ends soon, which is no failure.
    pub ends_soon: Option<String>,
    /// When time alone changes the result.
    pub changes_after: Option<Duration>,
}

/// Checks.
pub fn check(facts: &Facts, expected: &Expected<'_>, now: Timestamp) -> Findings {
    let secret = quote(expected.secret);
    let mut problems = Vec::new();
    problems.extend(wrong_host(facts, expected).map(|host| {
        format!("certificate in secret {secret} is valid for [{}], not {}", listed(facts), quote(&host))
    }));
    let mut ends_soon = None;
    if now < facts.not_before {
        problems.push(format!("certificate in secret {secret} is not valid before {}", facts.not_before));
    } else if now > facts.not_after {
        problems.push(format!("certificate in secret {secret} expired at {}", facts.not_after));
    } else if facts.not_after.duration_since(now) <= SOON {
        ends_soon = Some(format!("certificate in secret {secret} expires at {}", facts.not_after));
    }
    if !facts.may_serve {
        problems.push(format!("certificate in secret {secret} is not usable for server authentication"));
    }
    match &facts.chain {
        Chain::NoBundle | Chain::Verified => {}
        Chain::Failed(error) => problems.push(format!(
            "certificate in secret {secret} does not verify with the advertised CA bundle: {error}"
        )),
        Chain::BadBundle(position, error) => problems.push(format!(
            "advertised CA bundle contains invalid certificate at position {position}: {error}"
        )),
    }
    if !facts.weaknesses.is_empty() {
        let what = facts.weaknesses.join(", ");
        problems.push(format!("certificate in secret {secret} has a weak key or signature: {what}"));
    }
    Findings { problems, ends_soon, changes_after: changes_after(facts, now) }
}

/// The first host that clients may use and the certificate is not for.
fn wrong_host(facts: &Facts, expected: &Expected<'_>) -> Option<String> {
    let names = expected.names;
    if let Some(hostname) = &names.hostname
        && !facts.dns_names.iter().any(|pattern| covers(pattern, hostname))
    {
        return Some(hostname.clone());
    }
    let asked = expected.load_balancer_ip.filter(|_| !facts.ips.is_empty());
    let missing = names.ips.iter().chain(&asked).find(|ip| !facts.ips.contains(ip));
    missing.map(ToString::to_string)
}

/// Whether a dNSName covers a host: ASCII case is ignored, as is one trailing dot; `*` counts as the whole leftmost
/// label only, and stands for exactly one.
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

/// The names of a certificate, which are a stranger's words: some of them, escaped.
fn listed(facts: &Facts) -> String {
    let dns_names = facts.dns_names.iter().map(|name| {
        let mut shown: String = name.chars().take(SHOWN_OF_A_NAME).collect();
        if shown.len() < name.len() {
            shown.push('…');
        }
        shown.escape_debug().to_string()
    });
    let all = facts.dns_names.len() + facts.ips.len();
    let mut listed: Vec<String> =
        dns_names.chain(facts.ips.iter().map(ToString::to_string)).take(LISTED_NAMES).collect();
    if all > LISTED_NAMES {
        listed.push(format!("… {all} in all"));
    }
    listed.join(", ")
}

fn changes_after(facts: &Facts, now: Timestamp) -> Option<Duration> {
    let soon = facts.not_after.checked_sub(SOON).unwrap_or(facts.not_before);
    [facts.not_before, soon, facts.not_after]
        .into_iter()
        .filter_map(|time| Duration::try_from(time.duration_since(now)).ok())
        // The end itself still belongs to the life of a certificate.
        .map(|after| after + Duration::from_millis(1))
        .min()
}

/// What the condition, the log, the Event and the metric say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// There is no external certificate: nothing is said.
    Nothing,
    /// Nothing was checked; why.
    NotChecked(String),
    /// The result of the checks.
    Checked {
        /// The Secret, as the spec writes it.
        secret_name: String,
        /// What was found.
        findings: Findings,
    },
}

impl Told {
    /// What should be somebody's concern: failures, and an end that is near.
    pub fn concerns(&self) -> Vec<String> {
        match self {
            Self::Nothing | Self::NotChecked(_) => Vec::new(),
            Self::Checked { findings, .. } => {
                findings.problems.iter().chain(&findings.ends_soon).cloned().collect()
            }
        }
    }

    /// Whether the certificate is good; `None` when that was not checked.
    pub fn is_valid(&self) -> Option<bool> {
        match self {
            Self::Nothing | Self::NotChecked(_) => None,
            Self::Checked { findings, .. } => Some(findings.problems.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests;
