//! Decides what the leader deletes or restores among all objects that were made for identities.
//!
//! The binding of an identity is deleted first, then the role, then the service account. At no time
//! is a role bound to a service account that another client could create again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use pinniped_concierge_api::names::{ANNOTATION_EXPIRES_AT, ANNOTATION_LAST_USED, SECRET_TYPE_BOUND_TOKEN};

use super::drift::{Compare as _, Drift, RoleCheck, check_role};
use super::objects::{Maker, NAME_PREFIX};
use super::settings::Settings;
use crate::identity_digest::SHORT_DIGEST_LENGTH;

/// Delay between the expiration of a token and the deletion of its bound Secret. After the delay no
/// client uses the token any more, even if clocks differ.
const EXPIRY_GRACE: Duration = Duration::from_secs(60);

/// Time after the creation of an object during which a login may still be creating the other ones.
const CREATION_GRACE: Duration = Duration::from_secs(60);

/// Assumed lifetime of a token whose Secret has no expiration time: no login requests a longer one.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(600);

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ClusterRoleBinding.
    Binding,
    /// ClusterRole.
    Role,
    /// ServiceAccount.
    Account,
    /// Secret.
    Secret,
}

/// An observed object. It is deleted only if its UID is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for roles and bindings.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Option<String>,
}

impl Object {
    fn of(kind: Kind, meta: &ObjectMeta) -> Self {
        Self {
            kind,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone(),
        }
    }
}

/// The reason of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionReason {
    /// The strategy was switched off.
    Disabled,
    /// The token has expired.
    Expired,
    /// There was no login within the idle timeout.
    Unused,
    /// The object was changed such that its purpose can no longer be determined.
    Drifted,
    /// The object to which it belongs does not exist.
    Orphaned,
    /// The configuration names another namespace now.
    Moved,
}

impl DeletionReason {
    /// Returns the reason for log lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "service account tokens are disabled",
            Self::Expired => "its token has expired",
            Self::Unused => "it was not used within the idle timeout",
            Self::Drifted => "another client has changed it",
            Self::Orphaned => "the object to which it belongs does not exist",
            Self::Moved => "the configuration names another namespace",
        }
    }

    /// Returns whether an administrator should investigate the deletion.
    pub fn is_suspicious(self) -> bool {
        matches!(self, Self::Drifted)
    }
}

/// One step to apply.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete this object.
    Delete(Object, DeletionReason),
    /// Delete these objects, unless the service account was used after it was observed.
    Retire {
        /// The service account.
        account: Object,
        /// The last use of the account when it was observed.
        last_used: Option<Timestamp>,
        /// The objects to delete, in this order; the service account is the last one.
        objects: Vec<Object>,
    },
    /// Replace a role with this one, for these reasons.
    RestoreRole(Box<ClusterRole>, Vec<&'static str>),
    /// Replace a binding with this one, for these reasons.
    RestoreBinding(Box<ClusterRoleBinding>, Vec<&'static str>),
}

/// An observed service account.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedAccount {
    object: Object,
    last_used: Option<Timestamp>,
    created: Option<Timestamp>,
}

/// An observed role.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedRole {
    object: Object,
    created: Option<Timestamp>,
    check: RoleCheck,
}

/// An observed binding.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedBinding {
    object: Object,
    created: Option<Timestamp>,
    binding: Box<ClusterRoleBinding>,
}

/// An observed bound Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedSecret {
    object: Object,
    ends: Option<Timestamp>,
}

/// All observed objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    accounts: Vec<ObservedAccount>,
    roles: Vec<ObservedRole>,
    bindings: Vec<ObservedBinding>,
    secrets: Vec<ObservedSecret>,
}

impl Observed {
    /// Adds an object. Objects with the label but without a name of the expected form are ignored.
    pub fn account(&mut self, account: &ServiceAccount) {
        let object = Object::of(Kind::Account, &account.metadata);
        if has_identity_name(&object.name) {
            let last_used = last_used(account);
            self.accounts.push(ObservedAccount { object, last_used, created: created(&account.metadata) });
        }
    }

    /// Adds an object like [`Self::account`].
    pub fn role(&mut self, role: &ClusterRole) {
        let object = Object::of(Kind::Role, &role.metadata);
        if has_identity_name(&object.name) {
            self.roles.push(ObservedRole {
                object,
                created: created(&role.metadata),
                check: check_role(role),
            });
        }
    }

    /// Adds an object like [`Self::account`].
    pub fn binding(&mut self, binding: ClusterRoleBinding) {
        let object = Object::of(Kind::Binding, &binding.metadata);
        if has_identity_name(&object.name) {
            let created = created(&binding.metadata);
            self.bindings.push(ObservedBinding { object, created, binding: Box::new(binding) });
        }
    }

    /// Adds an object like [`Self::account`].
    pub fn secret(&mut self, secret: &Secret) {
        let object = Object::of(Kind::Secret, &secret.metadata);
        let is_bound_secret =
            object.name.rsplit_once('-').is_some_and(|(identity, _)| has_identity_name(identity));
        if is_bound_secret && secret.type_.as_deref() == Some(SECRET_TYPE_BOUND_TOKEN) {
            let written = annotation(&secret.metadata, ANNOTATION_EXPIRES_AT);
            let ends = written.or_else(|| after(created(&secret.metadata)?, MAX_TOKEN_LIFETIME));
            self.secrets.push(ObservedSecret { object, ends });
        }
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.accounts.len() + self.roles.len() + self.bindings.len() + self.secrets.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the namespaces of the service accounts to which roles are bound.
    pub fn bound_namespaces(&self) -> BTreeSet<String> {
        let subjects = self.bindings.iter().flat_map(|item| item.binding.subjects.iter().flatten());
        subjects
            .filter(|subject| has_identity_name(&subject.name))
            .filter_map(|s| s.namespace.clone())
            .collect()
    }
}

/// Returns the time of the service account's last use, if the annotation has one.
pub fn last_used(account: &ServiceAccount) -> Option<Timestamp> {
    annotation(&account.metadata, ANNOTATION_LAST_USED)
}

/// Returns the steps that delete all objects, starting with those that allow tokens to impersonate.
pub fn remove_all(observed: &Observed) -> Vec<Step> {
    let mut objects: Vec<Object> = observed
        .bindings
        .iter()
        .map(|item| &item.object)
        .chain(observed.roles.iter().map(|item| &item.object))
        .chain(observed.accounts.iter().map(|item| &item.object))
        .chain(observed.secrets.iter().map(|item| &item.object))
        .cloned()
        .collect();
    objects.sort_by_key(|object| object.kind);
    objects.into_iter().map(|object| Step::Delete(object, DeletionReason::Disabled)).collect()
}

/// Returns the steps to apply while tokens are issued. A step that was applied is not returned for
/// the next observation.
pub fn plan(observed: &Observed, settings: &Settings, maker: &Maker, now: Timestamp) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut live = BTreeSet::new();
    for ObservedSecret { object, ends } in &observed.secrets {
        let over = ends.and_then(|ends| after(ends, EXPIRY_GRACE)).is_none_or(|over| over <= now);
        if object.namespace != settings.namespace {
            steps.push(Step::Delete(object.clone(), DeletionReason::Moved));
        } else if over {
            steps.push(Step::Delete(object.clone(), DeletionReason::Expired));
        } else if let Some((identity, _)) = object.name.rsplit_once('-') {
            live.insert(identity);
        }
    }
    let mut identities: BTreeMap<&str, Identity<'_>> = BTreeMap::new();
    for account in &observed.accounts {
        if account.object.namespace == settings.namespace {
            identities.entry(&account.object.name).or_default().account = Some(account);
        } else {
            steps.push(Step::Delete(account.object.clone(), DeletionReason::Moved));
        }
    }
    for role in &observed.roles {
        identities.entry(&role.object.name).or_default().role = Some(role);
    }
    for binding in &observed.bindings {
        identities.entry(&binding.object.name).or_default().binding = Some(binding);
    }
    for (name, identity) in identities {
        identity.plan(name, live.contains(name), settings, maker, now, &mut steps);
    }
    steps
}

#[derive(Default)]
struct Identity<'a> {
    account: Option<&'a ObservedAccount>,
    role: Option<&'a ObservedRole>,
    binding: Option<&'a ObservedBinding>,
}

impl Identity<'_> {
    fn plan(
        &self,
        name: &str,
        live: bool,
        settings: &Settings,
        maker: &Maker,
        now: Timestamp,
        steps: &mut Vec<Step>,
    ) {
        let objects = || {
            let binding = self.binding.map(|item| item.object.clone());
            let role = self.role.map(|item| item.object.clone());
            let account = self.account.map(|item| item.object.clone());
            [binding, role, account].into_iter().flatten()
        };
        let delete = |why| objects().map(move |object| Step::Delete(object, why));
        if self.role.is_some_and(|role| role.check == RoleCheck::Unrecoverable) {
            return steps.extend(delete(DeletionReason::Drifted));
        }
        let past = |since: Option<Timestamp>, age| {
            since.and_then(|since| after(since, age)).is_none_or(|end| end <= now)
        };
        let settled = |created| past(created, CREATION_GRACE);
        match self.account {
            Some(ObservedAccount { object, last_used, created }) => {
                if !live && past(last_used.or(*created), settings.idle_timeout) {
                    let (account, objects) = (object.clone(), objects().collect());
                    return steps.push(Step::Retire { account, last_used: *last_used, objects });
                }
            }
            None => {
                let role = self.role.is_none_or(|role| settled(role.created));
                let binding = self.binding.is_none_or(|binding| settled(binding.created));
                if role && binding {
                    return steps.extend(delete(DeletionReason::Orphaned));
                }
            }
        }
        if let Some(ObservedRole { check: RoleCheck::Restore(role, why), .. }) = self.role {
            steps.push(Step::RestoreRole(role.clone(), why.clone()));
        }
        let Some(binding) = self.binding else { return };
        let Some(role) = self.role else {
            if settled(binding.created) {
                steps.push(Step::Delete(binding.object.clone(), DeletionReason::Orphaned));
            }
            return;
        };
        let short = name.strip_prefix(NAME_PREFIX).unwrap_or_default();
        let wanted = maker.binding(short, role.object.uid.as_deref().unwrap_or_default());
        match wanted.drift(&binding.binding) {
            Drift::Repair(restored, why) => steps.push(Step::RestoreBinding(restored, why)),
            Drift::Recreate(_) => steps.push(Step::Delete(binding.object.clone(), DeletionReason::Drifted)),
            Drift::None | Drift::Foreign(_) => {}
        }
    }
}

fn has_identity_name(name: &str) -> bool {
    name.strip_prefix(NAME_PREFIX).is_some_and(|digest| {
        digest.len() == SHORT_DIGEST_LENGTH
            && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn created(meta: &ObjectMeta) -> Option<Timestamp> {
    meta.creation_timestamp.as_ref().map(|Time(time)| *time)
}

fn annotation(meta: &ObjectMeta, key: &str) -> Option<Timestamp> {
    meta.annotations.as_ref()?.get(key)?.parse().ok()
}

fn after(time: Timestamp, delay: Duration) -> Option<Timestamp> {
    time.checked_add(delay).ok()
}

#[cfg(test)]
mod tests;
