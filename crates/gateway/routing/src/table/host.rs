//! A map by host name: exact names, wildcards, and an entry for every host.

use std::{borrow::Cow, collections::HashMap};

/// The host of an object, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// Exactly this name.
    Exact(Box<str>),
    /// `*.` followed by this name: all names with one more label in front (for a TLS server name:
    /// with any number of labels).
    Wildcard(Box<str>),
    /// Every host; never used for TLS.
    Any,
}

impl HostPattern {
    /// Parses a name, `*.name` or `*`.
    pub fn parse(written: &str) -> Self {
        let lower = written.to_ascii_lowercase();
        match lower.strip_prefix("*.") {
            Some(rest) => Self::Wildcard(rest.into()),
            None if lower == "*" => Self::Any,
            None => Self::Exact(lower.into()),
        }
    }
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(rest) => write!(f, "*.{rest}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// Values by [`HostPattern`].
#[derive(Clone, Debug)]
pub struct HostMap<T> {
    exact: HashMap<Box<str>, T>,
    wildcards: HashMap<Box<str>, T>,
    any: Option<T>,
}

impl<T> Default for HostMap<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcards: HashMap::new(), any: None }
    }
}

impl<T> HostMap<T> {
    /// Sets the value of a pattern and returns the previous one.
    pub fn insert(&mut self, pattern: HostPattern, value: T) -> Option<T> {
        match pattern {
            HostPattern::Exact(name) => self.exact.insert(name, value),
            HostPattern::Wildcard(rest) => self.wildcards.insert(rest, value),
            HostPattern::Any => self.any.replace(value),
        }
    }

    /// Returns the value of a pattern.
    pub fn of_pattern(&self, pattern: &HostPattern) -> Option<&T> {
        match pattern {
            HostPattern::Exact(name) => self.exact.get(name),
            HostPattern::Wildcard(rest) => self.wildcards.get(rest),
            HostPattern::Any => self.any.as_ref(),
        }
    }

    /// Returns the value for a TLS server name: the exact entry, otherwise the longest wildcard,
    /// which may represent any number of labels.
    pub fn by_sni(&self, name: &str) -> Option<&T> {
        let name = lower(name);
        self.exact.get(name.as_ref()).or_else(|| self.longest_wildcard(&name).map(|(value, _)| value))
    }

    /// Returns the value for the host of a request: the exact entry, otherwise the longest
    /// wildcard, otherwise the entry for every host. A wildcard matches one label; for names with
    /// more labels it hides shorter entries but has no value.
    pub fn by_host(&self, host: &str) -> Option<&T> {
        let host = lower(host);
        if let Some(value) = self.exact.get(host.as_ref()) {
            return Some(value);
        }
        match self.longest_wildcard(&host) {
            Some((value, labels)) => (labels == 1).then_some(value),
            None => self.any.as_ref(),
        }
    }

    /// Returns the pattern of the entry that [`Self::by_host`] finds.
    pub fn pattern_by_host(&self, host: &str) -> Option<HostPattern> {
        let host = lower(host);
        if self.exact.contains_key(host.as_ref()) {
            return Some(HostPattern::Exact(host.into()));
        }
        match self.longest_wildcard(&host) {
            Some((_, 1)) => host.split_once('.').map(|(_, rest)| HostPattern::Wildcard(rest.into())),
            Some(_) => None,
            None => self.any.as_ref().map(|_| HostPattern::Any),
        }
    }

    /// Returns the value of the longest wildcard, and the number of labels that it represents.
    fn longest_wildcard(&self, name: &str) -> Option<(&T, usize)> {
        if self.wildcards.is_empty() {
            return None;
        }
        let mut labels = 0;
        let mut rest = name;
        while let Some((label, after)) = rest.split_once('.') {
            // An empty label does not count: `*.foo.com` does not match `.foo.com`.
            if labels == 0 && label.is_empty() {
                return None;
            }
            labels += 1;
            rest = after;
            if let Some(value) = self.wildcards.get(rest) {
                return Some((value, labels));
            }
        }
        None
    }

    /// Returns all entries.
    pub fn iter(&self) -> impl Iterator<Item = (HostPattern, &T)> {
        let exact = self.exact.iter().map(|(name, value)| (HostPattern::Exact(name.clone()), value));
        let wild = self.wildcards.iter().map(|(rest, value)| (HostPattern::Wildcard(rest.clone()), value));
        exact.chain(wild).chain(self.any.iter().map(|value| (HostPattern::Any, value)))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcards.len() + usize::from(self.any.is_some())
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> FromIterator<(HostPattern, T)> for HostMap<T> {
    fn from_iter<I: IntoIterator<Item = (HostPattern, T)>>(hosts: I) -> Self {
        let mut map = Self::default();
        for (pattern, value) in hosts {
            map.insert(pattern, value);
        }
        map
    }
}

/// Returns the host of an `authority` or a `Host` header without the port.
pub fn host_of(authority: &str) -> &str {
    if authority.starts_with('[') {
        // An IPv6 address: its colons do not separate a port.
        return authority.find(']').map_or(authority, |end| &authority[..=end]);
    }
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

/// Converts to lower case, without a copy if the name already is.
pub(crate) fn lower(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(patterns: &[&'static str]) -> HostMap<&'static str> {
        patterns.iter().map(|&pattern| (HostPattern::parse(pattern), pattern)).collect()
    }

    #[test]
    fn a_request_matches_the_exact_host_then_a_wildcard_of_one_label_then_every_host() {
        let named = map(&["domain.io", "*.domain.io", "bar.domain.io", "*.deep.domain.io"]);
        let with_any = map(&["*", "*.domain.io", "a.domain.io"]);
        for (hosts, host, wanted) in [
            (&named, "domain.io", Some("domain.io")),
            (&named, "foo.domain.io", Some("*.domain.io")),
            (&named, "bar.domain.io", Some("bar.domain.io")),
            (&named, "BAR.Domain.io", Some("bar.domain.io")),
            (&named, "bar.foo.domain.io", None),
            (&named, "x.deep.domain.io", Some("*.deep.domain.io")),
            (&named, "deep.domain.io", Some("*.domain.io")),
            (&named, ".domain.io", None),
            (&named, "io", None),
            (&named, "", None),
            (&with_any, "a.domain.io", Some("a.domain.io")),
            (&with_any, "elsewhere", Some("*")),
            (&with_any, "", Some("*")),
            (&with_any, "a.b.domain.io", None),
        ] {
            assert_eq!(hosts.by_host(host).copied(), wanted, "{host}");
        }
    }

    #[test]
    fn a_wildcard_matches_server_names_at_any_depth() {
        let hosts = map(&["a.w", "*.w", "*.b.w", "*"]);
        for (name, wanted) in [
            ("a.w", Some("a.w")),
            ("x.w", Some("*.w")),
            ("x.y.w", Some("*.w")),
            ("x.y.b.W", Some("*.b.w")),
            ("w", None),
            ("other", None),
        ] {
            assert_eq!(hosts.by_sni(name).copied(), wanted, "{name}");
        }
    }

    #[test]
    fn the_port_is_not_part_of_the_host() {
        for (authority, host) in [
            ("a.b", "a.b"),
            ("a.b:80", "a.b"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("", ""),
            ("[", "["),
        ] {
            assert_eq!(host_of(authority), host, "{authority}");
        }
    }

    #[test]
    fn parsed_patterns_print_their_source() {
        for written in ["a.b", "*.a.b", "*"] {
            assert_eq!(HostPattern::parse(written).to_string(), written);
        }
        assert_eq!(HostPattern::parse("A.b"), HostPattern::Exact("a.b".into()));
        let hosts = map(&["a", "*.b", "*"]);
        assert_eq!(hosts.len(), 3);
        for (pattern, value) in hosts.iter() {
            assert_eq!(hosts.of_pattern(&pattern), Some(value));
        }
    }
}
