//! The API group suffix of an installation.
//!
//! Pinniped's API groups end in `.pinniped.dev` unless the administrator chose otherwise, so that two installations can
//! live in one cluster. Custom resources, `APIService` objects, discovery and request paths all carry the chosen
//! suffix; a group that does not end in `.pinniped.dev` is nobody's business and stays as it is.

use std::fmt;

/// What a DNS-1123 subdomain may look like, in the words of Kubernetes' own validation.
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
     and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Longest DNS name, in bytes.
const SUBDOMAIN_MAX: usize = 253;

/// A suffix that names valid API groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupSuffix(String);

/// Why a text is not a group suffix; every reason at once, written as Kubernetes writes lists of errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", aggregate(.reasons))]
pub struct SuffixError {
    reasons: Vec<String>,
}

impl GroupSuffix {
    /// The suffix of an installation that says nothing else.
    pub const DEFAULT: &str = "pinniped.dev";

    /// Checks a suffix: it must contain a dot and be a DNS-1123 subdomain.
    ///
    /// # Errors
    /// Lists every rule that `s` breaks.
    pub fn parse(s: &str) -> Result<Self, SuffixError> {
        let mut reasons = Vec::new();
        if !s.contains('.') {
            reasons.push("must contain '.'".to_owned());
        }
        reasons.extend(subdomain_errors(s));
        if reasons.is_empty() { Ok(Self(s.to_owned())) } else { Err(SuffixError { reasons }) }
    }

    /// The suffix without a leading dot.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `pinniped.dev`.
    pub fn is_default(&self) -> bool {
        self.0 == Self::DEFAULT
    }

    /// The installation's name of a group: `login.concierge.pinniped.dev` becomes `login.concierge.<suffix>`; any group
    /// that does not end in `.pinniped.dev` comes back unchanged.
    pub fn replace(&self, group: &str) -> String {
        match strip(group, Self::DEFAULT) {
            Some(base) => format!("{base}.{}", self.0),
            None => group.to_owned(),
        }
    }

    /// The reverse of [`replace`](Self::replace): `login.concierge.<suffix>` becomes `login.concierge.pinniped.dev`, a
    /// group that does not end in the suffix gives nothing.
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

/// The rules of a DNS-1123 subdomain that `s` breaks, in the words of Kubernetes' validation; empty when it is one.
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

/// One dot-free part of a subdomain. Kubernetes does not bound the length of the parts here, only of the whole.
fn is_label(label: &str) -> bool {
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = label.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if alphanumeric(first) && alphanumeric(last))
        && bytes.iter().all(|b| alphanumeric(b) || *b == b'-')
}

fn strip<'a>(group: &'a str, suffix: &str) -> Option<&'a str> {
    group.strip_suffix(suffix)?.strip_suffix('.')
}

/// Kubernetes' rendering of several errors: one stands alone, more are listed in brackets, repeated ones once.
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
