//! Values by host name: exact ones, wildcards, and the one for every host.

use std::{borrow::Cow, collections::HashMap};

/// A host as objects name it, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    /// Exactly this name.
    Exact(Box<str>),
    /// `*.` and this: the names with one more label in front (as a server name in TLS: with any number more).
    Wildcard(Box<str>),
    /// Every host; never one of TLS.
    Any,
}

impl HostPattern {
    /// Reads a name, `*.name` or `*`.
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
    /// Sets the value of a pattern; the one that was there is returned.
    pub fn insert(&mut self, pattern: HostPattern, value: T) -> Option<T> {
        match pattern {
            HostPattern::Exact(name) => self.exact.insert(name, value),
            HostPattern::Wildcard(rest) => self.wildcards.insert(rest, value),
            HostPattern::Any => self.any.replace(value),
        }
    }

    /// The value of a pattern.
    pub fn of_pattern(&self, pattern: &HostPattern) -> Option<&T> {
        match pattern {
            HostPattern::Exact(name) => self.exact.get(name),
            HostPattern::Wildcard(rest) => self.wildcards.get(rest),
            HostPattern::Any => self.any.as_ref(),
        }
    }

    /// The value for a server name of TLS: the exact one, else that of the longest wildcard, whatever the number of
    /// labels that it stands for.
    pub fn by_sni(&self, name: &str) -> Option<&T> {
        let name = lower(name);
        self.exact.get(name.as_ref()).or_else(|| self.longest_wildcard(&name).map(|(value, _)| value))
    }

    /// The value for the host of a request: the exact one, else that of the longest wildcard, else the one for every
    /// host. A wildcard stands for one label; it answers for deeper names, too, but has nothing for them.
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

    /// The pattern by which [`Self::by_host`] finds its value.
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

    /// The value of the longest wildcard, and how many labels it stands for.
    fn longest_wildcard(&self, name: &str) -> Option<(&T, usize)> {
        if self.wildcards.is_empty() {
            return None;
        }
        let mut labels = 0;
        let mut rest = name;
        while let Some((label, after)) = rest.split_once('.') {
            // An empty label is none: `*.foo.com` does not answer for `.foo.com`.
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

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = (HostPattern, &T)> {
        let exact = self.exact.iter().map(|(name, value)| (HostPattern::Exact(name.clone()), value));
        let wild = self.wildcards.iter().map(|(rest, value)| (HostPattern::Wildcard(rest.clone()), value));
        exact.chain(wild).chain(self.any.iter().map(|value| (HostPattern::Any, value)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcards.len() + usize::from(self.any.is_some())
    }

    /// Whether there is none.
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

/// The host of an `authority` or a `Host` header: without the port.
pub fn host_of(authority: &str) -> &str {
    if authority.starts_with('[') {
        // An IPv6 address: its colons are no ports.
        return authority.find(']').map_or(authority, |end| &authority[..=end]);
    }
    authority.split_once(':').map_or(authority, |(host, _)| host)
}

/// Lower case, without a copy of what is so already.
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
    fn a_request_goes_to_the_exact_host_then_to_a_wildcard_of_one_label_then_to_every_host() {
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
    fn a_server_name_may_be_deeper_than_its_wildcard() {
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
    fn the_port_is_no_part_of_the_host() {
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
    fn patterns_are_written_as_they_are_read() {
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
