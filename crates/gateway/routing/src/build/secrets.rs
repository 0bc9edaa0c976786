//! The Secrets that objects refer to: permission checks, and their content.

mod content;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Secret;
use pinniped_delegation::grants::{Grants, SecretReference};
use pinniped_pki::{CaBundle, CertificatePair};

use crate::Name;

pub(super) use content::SecretFault;

/// The reason why a Secret cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The owner of the Secret has not delegated it. Checked first, so that the error does not
    /// reveal whether the Secret exists.
    NotPermitted,
    /// The Secret does not exist, or its content is invalid.
    Invalid(SecretFault),
}

/// The parsed content of Secrets, cached until it changes.
#[derive(Debug, Default)]
pub(super) struct SecretCache {
    serving: Cache<Arc<CertificatePair>>,
    ca: Cache<Arc<CaBundle>>,
    revocations: Cache<Arc<[Vec<u8>]>>,
}

impl SecretCache {
    pub(super) fn forget_unused(&mut self) {
        self.serving.forget_unused();
        self.ca.forget_unused();
        self.revocations.forget_unused();
    }
}

#[derive(Debug)]
struct Cache<T>(HashMap<SecretReference, Entry<T>>);

#[derive(Debug)]
struct Entry<T> {
    of: Arc<Secret>,
    used: bool,
    value: Result<T, SecretFault>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Cache<T> {
    fn value(
        &mut self,
        reference: &SecretReference,
        secret: &Arc<Secret>,
        read: impl FnOnce(&Secret) -> Result<T, SecretFault>,
    ) -> Result<T, SecretFault> {
        if let Some(entry) = self.0.get_mut(reference)
            && (Arc::ptr_eq(&entry.of, secret) || same_content(&entry.of, secret))
        {
            entry.of = Arc::clone(secret);
            entry.used = true;
            return entry.value.clone();
        }
        let value = read(secret);
        self.0.insert(reference.clone(), Entry { of: Arc::clone(secret), used: true, value: value.clone() });
        value
    }

    fn forget_unused(&mut self) {
        self.0.retain(|_, entry| std::mem::take(&mut entry.used));
    }
}

fn same_content(one: &Secret, other: &Secret) -> bool {
    one.type_ == other.type_ && one.data == other.data
}

/// The Secrets of one build.
pub(super) struct Secrets<'a> {
    grants: Grants,
    by_name: HashMap<(&'a str, &'a str), &'a Arc<Secret>>,
    cache: &'a mut SecretCache,
    referenced: HashSet<Name>,
}

impl<'a> Secrets<'a> {
    pub(super) fn new(grants: Grants, secrets: &'a [Arc<Secret>], cache: &'a mut SecretCache) -> Self {
        let by_name = secrets
            .iter()
            .filter_map(|secret| {
                let metadata = &secret.metadata;
                Some(((metadata.namespace.as_deref()?, metadata.name.as_deref()?), secret))
            })
            .collect();
        Self { grants, by_name, cache, referenced: HashSet::new() }
    }

    /// Returns a certificate and its key for an object in the namespace `referrer`.
    pub(super) fn serving(
        &mut self,
        reference: &SecretReference,
        referrer: &str,
    ) -> Result<Arc<CertificatePair>, Refusal> {
        self.permit(reference, referrer)?;
        self.serving_of_administrator(reference).map_err(Refusal::Invalid)
    }

    /// Returns a certificate and its key that an administrator configured.
    pub(super) fn serving_of_administrator(
        &mut self,
        reference: &SecretReference,
    ) -> Result<Arc<CertificatePair>, SecretFault> {
        let secret = self.find(reference)?;
        self.cache.serving.value(reference, secret, |secret| content::serving(secret).map(Arc::new))
    }

    /// Returns a CA bundle for an object in the namespace `referrer`.
    pub(super) fn ca(
        &mut self,
        reference: &SecretReference,
        referrer: &str,
    ) -> Result<Arc<CaBundle>, Refusal> {
        self.permit(reference, referrer)?;
        let secret = self.find(reference).map_err(Refusal::Invalid)?;
        let read = |secret: &Secret| content::ca(secret).map(Arc::new);
        self.cache.ca.value(reference, secret, read).map_err(Refusal::Invalid)
    }

    /// Returns revocation lists for an object in the namespace `referrer`.
    pub(super) fn revocations(
        &mut self,
        reference: &SecretReference,
        referrer: &str,
    ) -> Result<Arc<[Vec<u8>]>, Refusal> {
        self.permit(reference, referrer)?;
        let secret = self.find(reference).map_err(Refusal::Invalid)?;
        let read = |secret: &Secret| content::revocations(secret).map(Arc::from);
        self.cache.revocations.value(reference, secret, read).map_err(Refusal::Invalid)
    }

    fn permit(&self, reference: &SecretReference, referrer: &str) -> Result<(), Refusal> {
        // An invalid Secret name is reported as missing in the object's own namespace and as not
        // permitted in another.
        let own = reference.namespace == referrer;
        if own || self.grants.permit(reference, referrer) { Ok(()) } else { Err(Refusal::NotPermitted) }
    }

    /// Returns the Secrets that were requested, whether they exist or not.
    pub(super) fn referenced(self) -> HashSet<Name> {
        self.referenced
    }

    fn find(&mut self, reference: &SecretReference) -> Result<&'a Arc<Secret>, SecretFault> {
        let SecretReference { namespace, name } = reference.clone();
        self.referenced.insert(Name { namespace, name });
        self.by_name
            .get(&(reference.namespace.as_str(), reference.name.as_str()))
            .copied()
            .ok_or(SecretFault::NotFound)
    }
}
