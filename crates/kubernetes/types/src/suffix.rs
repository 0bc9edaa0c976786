//! The API group suffix of an installation.
//!
//! Pinniped's API groups end in `.pinniped.dev` unless the administrator configures another suffix,
//! which allows two installations in one cluster. Custom resources, `APIService` objects, discovery
//! and request paths all use the configured suffix. A group that does not end in `.pinniped.dev` is
//! never rewritten.

use std::fmt;

/// The description of a DNS-1123 subdomain in the wording of Kubernetes' own validation.
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
     and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The maximum length of a DNS name, in bytes.
const SUBDOMAIN_MAX: usize = 253;

/// A suffix that forms valid API group names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupSuffix(String);

/// The reasons why a text is not a valid group suffix: all of them at once, formatted like
/// Kubernetes' error lists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", aggregate(.reasons))]
pub struct SuffixError {
    reasons: Vec<String>,
}

impl GroupSuffix {
    /// The default suffix.
    pub const DEFAULT: &str = "pinniped.dev";

    /// Validates a suffix: it must contain a dot and be a DNS-1123 subdomain.
    ///
    /// # Errors
    /// Lists every rule that `s` violates.
    pub fn parse(s: &str) -> Result<Self, SuffixError> {
        let mut reasons = Vec::new();
        if !s.contains('.') {
            reasons.push("must contain '.'".to_owned());
        }
        reasons.extend(subdomain_errors(s));
        if reasons.is_empty() { Ok(Self(s.to_owned())) } else { Err(SuffixError { reasons }) }
    }

    /// Returns the suffix without a leading dot.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `pinniped.dev`.
    pub fn is_default(&self) -> bool {
        self.0 == Self::DEFAULT
    }

    /// Returns the installation's name of a group: `login.concierge.pinniped.dev` becomes
    /// `login.concierge.<suffix>`. A group that does not end in `.pinniped.dev` is returned
    /// unchanged.
    pub fn replace(&self, group: &str) -> String {
        match strip(group, Self::DEFAULT) {
            Some(base) => format!("{base}.{}", self.0),
            None => group.to_owned(),
        }
    }

    /// Reverses [`replace`](Self::replace): `login.concierge.<suffix>` becomes
    /// `login.concierge.pinniped.dev`. Returns `None` for a group that does not end in the suffix.
    pub fn unreplace(&self, group: &str) -> Option<String> {
        strip(group, &self.0).map(|base| format!("{base}.{}", Self::DEFAULT))
    }
}

impl Default for GroupSuffix {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

impl fmt::Display for GroupSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for GroupSuffix {
    type Err = SuffixError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::parse(s)
    }
}

/// Returns the rules of a DNS-1123 subdomain that `s` violates, in the wording of Kubernetes'
/// validation; empty when `s` is valid.
pub fn subdomain_errors(s: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if s.len() > SUBDOMAIN_MAX {
        reasons.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !s.split('.').all(is_label) {
        reasons.push(SUBDOMAIN_MESSAGE.to_owned());
    }
    reasons
}

/// Returns whether this is a valid label of a subdomain. Kubernetes does not limit the length of
/// labels here, only of the whole name.
fn is_label(label: &str) -> bool {
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = label.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if alphanumeric(first) && alphanumeric(last))
        && bytes.iter().all(|b| alphanumeric(b) || *b == b'-')
}

fn strip<'a>(group: &'a str, suffix: &str) -> Option<&'a str> {
    group.strip_suffix(suffix)?.strip_suffix('.')
}

/// Formats several errors like Kubernetes: a single one unchanged, more than one in brackets,
/// without duplicates.
fn aggregate(reasons: &[String]) -> String {
    match reasons {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_dns_subdomains_with_a_dot() {
        for good in ["pinniped.dev", "tuna.io", "a.b", "suffix-1.with.many.parts", "0.0"] {
            assert_eq!(GroupSuffix::parse(good).unwrap().as_str(), good);
        }
        for (bad, message) in [
            ("tuna", "must contain '.'".to_owned()),
            (".starts.with.dot", SUBDOMAIN_MESSAGE.to_owned()),
            ("ends.with.dot.", SUBDOMAIN_MESSAGE.to_owned()),
            ("two..dots", SUBDOMAIN_MESSAGE.to_owned()),
            ("Upper.case", SUBDOMAIN_MESSAGE.to_owned()),
            ("a.-b", SUBDOMAIN_MESSAGE.to_owned()),
            ("no_dot_no_dns", format!("[must contain '.', {SUBDOMAIN_MESSAGE}]")),
            ("", format!("[must contain '.', {SUBDOMAIN_MESSAGE}]")),
        ] {
            assert_eq!(GroupSuffix::parse(bad).unwrap_err().to_string(), message, "{bad:?}");
        }
        let long = format!("a.{}", "b".repeat(252));
        assert_eq!(GroupSuffix::parse(&long).unwrap_err().to_string(), "must be no more than 253 characters");
    }

    #[test]
    fn only_groups_under_the_suffix_are_rewritten() {
        let tuna = GroupSuffix::parse("tuna.io").unwrap();
        for (group, replaced) in [
            ("login.concierge.pinniped.dev", "login.concierge.tuna.io"),
            ("x.pinniped.dev", "x.tuna.io"),
            ("pinniped.dev", "pinniped.dev"),
            ("notpinniped.dev", "notpinniped.dev"),
            ("apps", "apps"),
            ("", ""),
        ] {
            assert_eq!(tuna.replace(group), replaced, "{group}");
            assert_eq!(GroupSuffix::default().replace(group), group);
        }
        for (group, plain) in [
            ("login.concierge.tuna.io", Some("login.concierge.pinniped.dev")),
            ("login.concierge.pinniped.dev", None),
            ("tuna.io", None),
            ("apps", None),
        ] {
            assert_eq!(tuna.unreplace(group).as_deref(), plain, "{group}");
        }
        assert!(GroupSuffix::default().is_default());
        assert!(!tuna.is_default());
    }
}
