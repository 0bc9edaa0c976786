//! What the leader removes or restores: everything that was made for identities, looked at as a whole.
//!
//! Of an identity the binding goes first, then the role, then the service account: at no moment does a role stay bound to
//! an account that somebody else could make anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use pinniped_concierge_api::names::{ANNOTATION_EXPIRES_AT, ANNOTATION_LAST_USED, SECRET_TYPE_BOUND_TOKEN};

use super::drift::{Compare as _, Drift, Judgement, judge};
use super::objects::{Maker, NAME_PREFIX};
use super::settings::Settings;

/// How long after its token's end a bound Secret goes: by then no client uses the token any more, and clocks may differ.
const AFTER_EXPIRY: Duration = Duration::from_secs(60);

/// Within this time of an object's creation a login may still be at work on the others.
const BEING_MADE: Duration = Duration::from_secs(60);

/// The end of a token whose Secret does not say it: no login asks the API server for more.
const LONGEST_TOKEN: Duration = Duration::from_secs(600);

/// A kind of object.
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

/// One object as it was seen; it is deleted only while it is still that one.
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

/// Why something is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The strategy was switched off.
    Disabled,
    /// The token has ended.
    Expired,
    /// Nobody has logged in for a while.
    Unused,
    /// Somebody changed it so that nobody can tell any more what it is for.
    Drifted,
    /// What it belongs to is not there.
    Orphaned,
    /// Another namespace is configured now.
    Moved,
}

impl Why {
    /// For log lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "service account tokens are disabled",
            Self::Expired => "its token has ended",
            Self::Unused => "nobody used it for longer than the idle timeout",
            Self::Drifted => "it was changed by somebody else",
            Self::Orphaned => "what it belongs to is missing",
            Self::Moved => "service accounts are in another namespace now",
        }
    }

    /// Whether somebody should look at it.
    pub fn is_suspicious(self) -> bool {
        matches!(self, Self::Drifted)
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete this object.
    Delete(Object, Why),
    /// Delete these objects, unless the service account turns out to have been used since it was seen.
    Retire {
        /// The service account.
        account: Object,
        /// Its last use as it was seen.
        last_used: Option<Timestamp>,
        /// What goes, in this order; the service account is the last of it.
        objects: Vec<Object>,
    },
    /// Replace a role with this.
    RestoreRole(Box<ClusterRole>, Vec<&'static str>),
    /// Replace a binding with this.
    RestoreBinding(Box<ClusterRoleBinding>, Vec<&'static str>),
}

/// A service account that was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenAccount {
    object: Object,
    last_used: Option<Timestamp>,
    created: Option<Timestamp>,
}

/// A role that was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenRole {
    object: Object,
    created: Option<Timestamp>,
    judgement: Judgement,
}

/// A binding that was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenBinding {
    object: Object,
    created: Option<Timestamp>,
    binding: Box<ClusterRoleBinding>,
}

/// A bound Secret that was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenSecret {
    object: Object,
    ends: Option<Timestamp>,
}

/// Everything that was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    accounts: Vec<SeenAccount>,
    roles: Vec<SeenRole>,
    bindings: Vec<SeenBinding>,
    secrets: Vec<SeenSecret>,
}

impl Observed {
    /// Takes note of an object. One that has the label but not the name of those that are made here is left alone.
    pub fn account(&mut self, account: &ServiceAccount) {
        let object = Object::of(Kind::Account, &account.metadata);
        if is_ours(&object.name) {
            let last_used = last_used(account);
            self.accounts.push(SeenAccount { object, last_used, created: created(&account.metadata) });
        }
    }

    /// As [`Self::account`].
    pub fn role(&mut self, role: &ClusterRole) {
        let object = Object::of(Kind::Role, &role.metadata);
        if is_ours(&object.name) {
            self.roles.push(SeenRole { object, created: created(&role.metadata), judgement: judge(role) });
        }
    }

    /// As [`Self::account`].
    pub fn binding(&mut self, binding: ClusterRoleBinding) {
        let object = Object::of(Kind::Binding, &binding.metadata);
        if is_ours(&object.name) {
            let created = created(&binding.metadata);
            self.bindings.push(SeenBinding { object, created, binding: Box::new(binding) });
        }
    }

    /// As [`Self::account`].
    pub fn secret(&mut self, secret: &Secret) {
        let object = Object::of(Kind::Secret, &secret.metadata);
        let ours = object.name.rsplit_once('-').is_some_and(|(identity, _)| is_ours(identity));
        if ours && secret.type_.as_deref() == Some(SECRET_TYPE_BOUND_TOKEN) {
            let written = annotation(&secret.metadata, ANNOTATION_EXPIRES_AT);
            let ends = written.or_else(|| after(created(&secret.metadata)?, LONGEST_TOKEN));
            self.secrets.push(SeenSecret { object, ends });
        }
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.accounts.len() + self.roles.len() + self.bindings.len() + self.secrets.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The namespaces of the service accounts that roles are bound to.
    pub fn bound_namespaces(&self) -> BTreeSet<String> {
        let subjects = self.bindings.iter().flat_map(|seen| seen.binding.subjects.iter().flatten());
        subjects.filter(|subject| is_ours(&subject.name)).filter_map(|s| s.namespace.clone()).collect()
    }
}

/// When the service account was last used, as far as it says so.
pub fn last_used(account: &ServiceAccount) -> Option<Timestamp> {
    annotation(&account.metadata, ANNOTATION_LAST_USED)
}

/// Everything goes: what lets tokens impersonate first, then the rest.
pub fn remove_all(observed: &Observed) -> Vec<Step> {
    let mut objects: Vec<Object> = observed
        .bindings
        .iter()
        .map(|seen| &seen.object)
        .chain(observed.roles.iter().map(|seen| &seen.object))
        .chain(observed.accounts.iter().map(|seen| &seen.object))
        .chain(observed.secrets.iter().map(|seen| &seen.object))
        .cloned()
        .collect();
    objects.sort_by_key(|object| object.kind);
    objects.into_iter().map(|object| Step::Delete(object, Why::Disabled)).collect()
}

/// What is to be done while tokens are issued. Nothing twice in a row: what is done here is not there the next time.
pub fn plan(observed: &Observed, settings: &Settings, maker: &Maker, now: Timestamp) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut live = BTreeSet::new();
    for SeenSecret { object, ends } in &observed.secrets {
        let over = ends.and_then(|ends| after(ends, AFTER_EXPIRY)).is_none_or(|over| over <= now);
        if object.namespace != settings.namespace {
            steps.push(Step::Delete(object.clone(), Why::Moved));
        } else if over {
            steps.push(Step::Delete(object.clone(), Why::Expired));
        } else if let Some((identity, _)) = object.name.rsplit_once('-') {
            live.insert(identity);
        }
    }
    let mut identities: BTreeMap<&str, Identity<'_>> = BTreeMap::new();
    for account in &observed.accounts {
        if account.object.namespace == settings.namespace {
            identities.entry(&account.object.name).or_default().account = Some(account);
        } else {
            steps.push(Step::Delete(account.object.clone(), Why::Moved));
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
    account: Option<&'a SeenAccount>,
    role: Option<&'a SeenRole>,
    binding: Option<&'a SeenBinding>,
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
            let binding = self.binding.map(|seen| seen.object.clone());
            let role = self.role.map(|seen| seen.object.clone());
            let account = self.account.map(|seen| seen.object.clone());
            [binding, role, account].into_iter().flatten()
        };
        let delete = |why| objects().map(move |object| Step::Delete(object, why));
        if self.role.is_some_and(|role| role.judgement == Judgement::Beyond) {
            return steps.extend(delete(Why::Drifted));
        }
        let past = |since: Option<Timestamp>, age| {
            since.and_then(|since| after(since, age)).is_none_or(|end| end <= now)
        };
        let settled = |created| past(created, BEING_MADE);
        match self.account {
            Some(SeenAccount { object, last_used, created }) => {
                if !live && past(last_used.or(*created), settings.idle_timeout) {
                    let (account, objects) = (object.clone(), objects().collect());
                    return steps.push(Step::Retire { account, last_used: *last_used, objects });
                }
            }
            None => {
                let role = self.role.is_none_or(|role| settled(role.created));
                let binding = self.binding.is_none_or(|binding| settled(binding.created));
                if role && binding {
                    return steps.extend(delete(Why::Orphaned));
                }
            }
        }
        if let Some(SeenRole { judgement: Judgement::Restore(role, why), .. }) = self.role {
            steps.push(Step::RestoreRole(role.clone(), why.clone()));
        }
        let Some(binding) = self.binding else { return };
        let Some(role) = self.role else {
            if settled(binding.created) {
                steps.push(Step::Delete(binding.object.clone(), Why::Orphaned));
            }
            return;
        };
        let short = name.strip_prefix(NAME_PREFIX).unwrap_or_default();
        let wanted = maker.binding(short, role.object.uid.as_deref().unwrap_or_default());
        match wanted.drift(&binding.binding) {
            Drift::Repair(restored, why) => steps.push(Step::RestoreBinding(restored, why)),
            Drift::Recreate(_) => steps.push(Step::Delete(binding.object.clone(), Why::Drifted)),
            Drift::None | Drift::Foreign(_) => {}
        }
    }
}

fn is_ours(name: &str) -> bool {
    name.strip_prefix(NAME_PREFIX).is_some_and(|digest| {
        digest.len() == 32 && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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
