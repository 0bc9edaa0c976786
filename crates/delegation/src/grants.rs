//! Permission to serve the certificates of other namespaces: references to Secrets, and the grants
//! of their owners.
//!
//! A reference has the form `name` or `namespace/name`. An object may use a Secret of another
//! namespace only if a `TLSCertificateDelegation` *in the namespace of the Secret* names the Secret
//! and the namespace of the object. The rules are Contour's, with two stricter interpretations: `*`
//! grants access to all namespaces only when it is the only entry, and the permission is checked
//! before the existence, so that a refusal does not reveal whether a Secret exists.

use std::collections::{BTreeSet, HashMap};

use crate::api::CertificateDelegation;

/// Represents all namespaces when it is the only entry.
const EVERY_NAMESPACE: &str = "*";

/// A reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretReference {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The name of the Secret.
    pub name: String,
}

impl SecretReference {
    /// Parses `name`, `/name` or `namespace/name`; without a namespace, `default_namespace`
    /// applies. Only the first slash separates, see [`Self::is_malformed`].
    pub fn parse(written: &str, default_namespace: &str) -> Self {
        let (namespace, name) = match written.split_once('/') {
            Some(("", name)) => (default_namespace, name),
            Some((namespace, name)) => (namespace, name),
            None => (default_namespace, written),
        };
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns whether no Secret can have this name: it is empty or contains a slash.
    pub fn is_malformed(&self) -> bool {
        self.name.is_empty() || self.name.contains('/')
    }
}

impl std::fmt::Display for SecretReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The namespaces that may use a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Audience {
    everyone: bool,
    namespaces: BTreeSet<String>,
}

/// The grants of any number of objects in all API groups. One grant is sufficient; no object can
/// revoke the grant of another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(HashMap<SecretReference, Audience>);

impl Grants {
    /// Adds the delegations of an object in the namespace `owner`.
    pub fn add(&mut self, owner: &str, delegations: &[CertificateDelegation]) {
        for delegation in delegations {
            let secret =
                SecretReference { namespace: owner.to_owned(), name: delegation.secret_name.clone() };
            if secret.is_malformed() {
                continue;
            }
            match delegation.target_namespaces.as_slice() {
                [] => {}
                [one] if one == EVERY_NAMESPACE => self.0.entry(secret).or_default().everyone = true,
                // A `*` among other names has no effect, because no namespace has that name.
                named => self.0.entry(secret).or_default().namespaces.extend(named.iter().cloned()),
            }
        }
    }

    /// Returns whether an object in the namespace `referrer` may use this Secret. A Secret in the
    /// same namespace is always permitted.
    pub fn permit(&self, secret: &SecretReference, referrer: &str) -> bool {
        if secret.is_malformed() {
            return false;
        }
        secret.namespace == referrer
            || self
                .0
                .get(secret)
                .is_some_and(|audience| audience.everyone || audience.namespaces.contains(referrer))
    }
}

/// Returns the Secrets of entries whose `*` has no effect because there are other names, for a
/// warning.
pub fn inert_wildcards(delegations: &[CertificateDelegation]) -> impl Iterator<Item = &str> {
    delegations
        .iter()
        .filter(|delegation| {
            let targets = &delegation.target_namespaces;
            targets.len() > 1 && targets.iter().any(|target| target == EVERY_NAMESPACE)
        })
        .map(|delegation| delegation.secret_name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(secret: &str, targets: &[&str]) -> CertificateDelegation {
        CertificateDelegation {
            secret_name: secret.to_owned(),
            target_namespaces: targets.iter().map(|&target| target.to_owned()).collect(),
        }
    }

    /// Returns the grants of these objects.
    fn grants(objects: &[(&str, &str, &[&str])]) -> Grants {
        let mut grants = Grants::default();
        for (owner, secret, targets) in objects {
            grants.add(owner, &[entry(secret, targets)]);
        }
        grants
    }

    #[test]
    fn a_reference_is_split_at_the_first_slash() {
        for (written, namespace, name, malformed) in [
            ("cert", "own", "cert", false),
            ("ns/cert", "ns", "cert", false),
            ("/cert", "own", "cert", false),
            ("own/cert", "own", "cert", false),
            ("ns/", "ns", "", true),
            ("ns/a/b", "ns", "a/b", true),
            ("/", "own", "", true),
            ("//a", "own", "/a", true),
            ("", "own", "", true),
        ] {
            let reference = SecretReference::parse(written, "own");
            assert_eq!((reference.namespace.as_str(), reference.name.as_str()), (namespace, name));
            assert_eq!(reference.is_malformed(), malformed, "{written}");
        }
    }

    /// The columns are the grants, and whether an object in `app` may refer to `certs/w`.
    #[test]
    fn only_the_owner_delegates_a_secret_and_only_to_the_named_namespaces() {
        type Object = (&'static str, &'static str, &'static [&'static str]);
        let rows: [(&str, &[Object], bool); 16] = [
            ("nothing", &[], false),
            ("named", &[("certs", "w", &["app"])], true),
            ("named among others", &[("certs", "w", &["x", "app"])], true),
            ("everybody", &[("certs", "w", &["*"])], true),
            ("another Secret", &[("certs", "different", &["*"])], false),
            ("another namespace", &[("certs", "w", &["other"])], false),
            ("a wildcard beside another name", &[("certs", "w", &["*", "other"])], false),
            ("a wildcard beside this name", &[("certs", "w", &["*", "app"])], true),
            ("two wildcards", &[("certs", "w", &["*", "*"])], false),
            ("nobody", &[("certs", "w", &[])], false),
            ("every Secret is no Secret", &[("certs", "*", &["*"])], false),
            ("a name with a namespace", &[("certs", "certs/w", &["*"])], false),
            ("granted to oneself", &[("app", "w", &["app"])], false),
            ("two objects, one matches", &[("certs", "w", &["app"]), ("certs", "w", &["x"])], true),
            ("nothing takes away", &[("certs", "w", &["app"]), ("certs", "w", &[])], true),
            ("a part of the name", &[("certs", "w", &["ap", "apps", "App"])], false),
        ];
        let secret = SecretReference::parse("certs/w", "app");
        for (row, objects, wanted) in rows {
            assert_eq!(grants(objects).permit(&secret, "app"), wanted, "{row}");
        }
    }

    #[test]
    fn a_secret_in_the_same_namespace_needs_no_grant() {
        for written in ["w", "/w", "app/w"] {
            assert!(Grants::default().permit(&SecretReference::parse(written, "app"), "app"), "{written}");
        }
    }

    #[test]
    fn no_grant_matches_a_malformed_reference() {
        let open = grants(&[("certs", "", &["*"]), ("certs", "a/b", &["*"])]);
        for written in ["certs/", "certs/a/b", "app/", "app/a/b", "/", ""] {
            assert!(!open.permit(&SecretReference::parse(written, "app"), "app"), "{written}");
        }
    }

    #[test]
    fn an_ineffective_wildcard_is_found() {
        let entries =
            [entry("a", &["*"]), entry("b", &["*", "x"]), entry("c", &["x", "y"]), entry("d", &["y", "*"])];
        assert_eq!(inert_wildcards(&entries).collect::<Vec<_>>(), ["b", "d"]);
    }
}
