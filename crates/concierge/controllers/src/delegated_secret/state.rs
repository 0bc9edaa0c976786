//! The current information: the grants of each API group, and the Secret once it is permitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use pinniped_concierge_domain::strategy::impersonator::Permission;
use pinniped_delegation::api::{CertificateDelegation, DelegationGroup, TlsCertificateDelegation};
use pinniped_delegation::grants::{Grants, SecretReference, inert_wildcards};

use super::Access;
use pinniped_controller::follow::{Change, Refusal};
use pinniped_controller::watch::NOT_READ_YET;

/// The state of one reference.
pub(super) struct State {
    /// The namespace of the Concierge, which the owner must permit.
    referrer: String,
    pub(super) reference: Option<SecretReference>,
    sources: BTreeMap<DelegationGroup, Source>,
    secret: SecretState,
    /// The Secrets for which a warning about an ineffective wildcard was logged, by object.
    warned: BTreeMap<(DelegationGroup, String), Vec<String>>,
}

/// The grants of one API group in the owner's namespace, by object name.
#[derive(Default)]
enum Source {
    #[default]
    Pending,
    Failing(String),
    Refused(Refusal),
    Known(BTreeMap<String, Vec<CertificateDelegation>>),
}

/// The Secret itself.
#[derive(Default)]
enum SecretState {
    #[default]
    Pending,
    Failing(String),
    Unreadable(String),
    Absent,
    Present(Arc<Secret>),
}

impl State {
    /// Returns a state without information about `reference`.
    pub(super) fn new(referrer: String, reference: Option<SecretReference>) -> Self {
        let (sources, secret, warned) = Default::default();
        Self { referrer, reference, sources, secret, warned }
    }

    /// Returns whether the owner permits the use of the Secret.
    pub(super) fn permits(&self) -> bool {
        let Some(reference) = &self.reference else { return false };
        let mut grants = Grants::default();
        for source in self.sources.values() {
            if let Source::Known(objects) = source {
                for delegations in objects.values() {
                    grants.add(&reference.namespace, delegations);
                }
            }
        }
        grants.permit(reference, &self.referrer)
    }

    /// Returns the current information, and whether all requests have a response.
    pub(super) fn current(&self) -> (Access, bool) {
        let without = |permission, settled| (Access { permission, secret: None }, settled);
        if self.permits() {
            return match &self.secret {
                SecretState::Pending => without(Permission::Unreadable(NOT_READ_YET.into()), false),
                SecretState::Failing(text) => without(Permission::Unreadable(text.clone().into()), false),
                SecretState::Unreadable(text) => without(Permission::Unreadable(text.clone().into()), true),
                SecretState::Absent => without(Permission::Granted, true),
                SecretState::Present(secret) => {
                    let secret = Some(Arc::clone(secret));
                    (Access { permission: Permission::Granted, secret }, true)
                }
            };
        }
        for group in DelegationGroup::ALL {
            match self.sources.get(&group).unwrap_or(&Source::Pending) {
                Source::Pending => return without(Permission::Unknown(NOT_READ_YET.into()), false),
                Source::Failing(text) => return without(Permission::Unknown(text.clone().into()), false),
                Source::Refused(_) | Source::Known(_) => {}
            }
        }
        without(Permission::Denied, true)
    }

    pub(super) fn apply_grants(&mut self, group: DelegationGroup, change: Change<TlsCertificateDelegation>) {
        let source = self.sources.entry(group).or_default();
        match change {
            Change::All(objects) => {
                let mut known = BTreeMap::new();
                for object in objects {
                    known.insert(object.name_any(), object.spec.delegations);
                }
                *source = Source::Known(known);
            }
            Change::Set(object) => {
                if let Source::Known(known) = source {
                    known.insert(object.name_any(), object.spec.delegations);
                }
            }
            Change::Gone(object) => {
                if let Source::Known(known) = source {
                    known.remove(&object.name_any());
                }
            }
            Change::Refused(refusal) => {
                let is_logged = matches!(source, Source::Refused(logged) if *logged == refusal);
                if !is_logged {
                    log_refusal(group, &refusal);
                }
                *source = Source::Refused(refusal);
            }
            // The previous grants stay valid: they were not revoked.
            Change::Failing(text) => {
                if !matches!(source, Source::Known(_)) {
                    *source = Source::Failing(text);
                }
            }
        }
        self.warn_of_wildcards(group);
        if !self.permits() {
            // The key must not stay in memory longer than it may be used.
            self.secret = SecretState::Pending;
        }
    }

    pub(super) fn apply_secret(&mut self, change: Change<Secret>) {
        self.secret = match change {
            Change::All(secrets) => secrets
                .into_iter()
                .next()
                .map_or(SecretState::Absent, |secret| SecretState::Present(Arc::new(secret))),
            Change::Set(secret) => SecretState::Present(Arc::new(secret)),
            Change::Gone(_) => SecretState::Absent,
            Change::Refused(refusal) => SecretState::Unreadable(refusal.text),
            // The previous state stays valid.
            Change::Failing(text) => match std::mem::take(&mut self.secret) {
                SecretState::Pending | SecretState::Failing(_) => SecretState::Failing(text),
                known => known,
            },
        };
    }

    fn warn_of_wildcards(&mut self, group: DelegationGroup) {
        let known = match self.sources.get(&group) {
            Some(Source::Known(known)) => known,
            _ => return,
        };
        self.warned.retain(|(of, name), _| *of != group || known.contains_key(name));
        for (name, delegations) in known {
            let inert: Vec<String> = inert_wildcards(delegations).map(str::to_owned).collect();
            if inert.is_empty() {
                self.warned.remove(&(group, name.clone()));
            } else if self.warned.get(&(group, name.clone())) != Some(&inert) {
                tracing::warn!(
                    apiGroup = group.group(),
                    namespace = self.reference.as_ref().map_or("", |secret| &secret.namespace),
                    delegation = name.as_str(),
                    secretNames = ?inert,
                    "a wildcard has no effect beside other target namespaces: \"*\" must be the only one"
                );
                self.warned.insert((group, name.clone()), inert);
            }
        }
    }
}

fn log_refusal(group: DelegationGroup, refusal: &Refusal) {
    let Refusal { missing, text } = refusal;
    let resource = format!("{}.{}", TlsCertificateDelegation::PLURAL, group.group());
    if *missing {
        tracing::debug!(resource, "the API server does not serve certificate delegations of this group");
    } else {
        let error = text.as_str();
        tracing::warn!(
            resource,
            error,
            "a permission is missing: certificate delegations of this group have no effect"
        );
    }
}

#[cfg(test)]
mod tests;
