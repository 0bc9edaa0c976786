//! Whose certificates may be served: references to Secrets of other namespaces, and the grants of their owners.
//!
//! A reference is `name` or `namespace/name`. Another namespace's Secret may be used only if an object of kind
//! `TLSCertificateDelegation` *in that namespace* names the Secret and the namespace of whoever refers to it. The rules
//! are Contour's, with two readings made strict: `*` opens a Secret to everybody only when it stands alone, and
//! permission is asked before existence, so that nobody learns from a refusal whether a Secret exists.

use std::collections::{BTreeSet, HashMap};

use crate::api::CertificateDelegation;

/// Stands for every namespace when it is the only one named.
const EVERY_NAMESPACE: &str = "*";

/// Which Secret is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretReference {
    /// The namespace that owns it.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl SecretReference {
    /// Reads `name`, `/name` or `namespace/name`; without a namespace, `default_namespace` is meant. Only the first
    /// slash divides, see [`Self::is_malformed`].
    pub fn parse(written: &str, default_namespace: &str) -> Self {
        let (namespace, name) = match written.split_once('/') {
            Some(("", name)) => (default_namespace, name),
            Some((namespace, name)) => (namespace, name),
            None => (default_namespace, written),
        };
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Whether no Secret can have this name: it is empty, or has a slash of its own.
    pub fn is_malformed(&self) -> bool {
        self.name.is_empty() || self.name.contains('/')
    }
}

impl std::fmt::Display for SecretReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// To whom a Secret is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Audience {
    everyone: bool,
    namespaces: BTreeSet<String>,
}

/// The grants of any number of objects, in whatever API groups they were found. Any of them is enough; none takes away
/// what another one gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(HashMap<SecretReference, Audience>);

impl Grants {
    /// Adds what an object of `owner`, a namespace, delegates.
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
                // A `*` among others stays in: no namespace has that name.
                named => self.0.entry(secret).or_default().namespaces.extend(named.iter().cloned()),
            }
        }
    }

    /// Whether an object in namespace `referrer` may use this Secret. Its own namespace's it may always.
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

/// The Secrets of entries whose `*` does nothing because other names stand beside it: worth a warning.
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

    /// The grants of one object each.
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

    /// Each row: the grants, and whether an object in `app` may refer to `certs/w`.
    #[test]
    fn only_the_owner_opens_a_secret_and_only_to_whom_it_names() {
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
    fn the_own_namespace_needs_no_grant() {
        for written in ["w", "/w", "app/w"] {
            assert!(Grants::default().permit(&SecretReference::parse(written, "app"), "app"), "{written}");
        }
    }

    #[test]
    fn no_grant_fits_a_malformed_reference() {
        let open = grants(&[("certs", "", &["*"]), ("certs", "a/b", &["*"])]);
        for written in ["certs/", "certs/a/b", "app/", "app/a/b", "/", ""] {
            assert!(!open.permit(&SecretReference::parse(written, "app"), "app"), "{written}");
        }
    }

    #[test]
    fn a_wildcard_that_does_nothing_is_found() {
        let entries =
            [entry("a", &["*"]), entry("b", &["*", "x"]), entry("c", &["x", "y"]), entry("d", &["y", "*"])];
        assert_eq!(inert_wildcards(&entries).collect::<Vec<_>>(), ["b", "d"]);
    }
}
