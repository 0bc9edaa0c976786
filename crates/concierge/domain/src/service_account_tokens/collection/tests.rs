use k8s_openapi::api::rbac::v1::{PolicyRule, Subject};
use pinniped_concierge_api::login::ImpersonatedUser;

use super::super::Form;
use super::super::fixtures::{at, identity, maker, settings};
use super::*;
use crate::identity_digest::IdentityDigest;

/// The objects of one identity, created and last used at second 0.
struct Set {
    account: ServiceAccount,
    role: ClusterRole,
    binding: ClusterRoleBinding,
    secrets: Vec<Secret>,
}

impl Set {
    fn of(user: &ImpersonatedUser) -> Self {
        let (maker, digest) = (maker(Form::Plain), IdentityDigest::of(user));
        let mut account = maker.service_account(&digest, user, at(0));
        let mut role = maker.cluster_role(&digest, user);
        let mut binding = maker.cluster_role_binding(&digest, "role-uid");
        for (meta, uid) in [
            (&mut account.metadata, "account-uid"),
            (&mut role.metadata, "role-uid"),
            (&mut binding.metadata, "binding-uid"),
        ] {
            meta.uid = Some(uid.to_owned());
            meta.creation_timestamp = Some(Time(at(0)));
        }
        Self { account, role, binding, secrets: Vec::new() }
    }

    fn with_login(mut self, expires: i64) -> Self {
        let digest = IdentityDigest::of(&identity("pinny", &["a"]));
        self.secrets.push(maker(Form::Plain).bound_secret(&digest, "abcd2345", at(expires)));
        self
    }

    fn observed(&self) -> Observed {
        let mut observed = Observed::default();
        observed.account(&self.account);
        observed.role(&self.role);
        observed.binding(self.binding.clone());
        self.secrets.iter().for_each(|secret| observed.secret(secret));
        observed
    }
}

fn pinny() -> Set {
    Set::of(&identity("pinny", &["a"]))
}

fn planned(observed: &Observed, now: i64) -> Vec<Step> {
    plan(observed, &settings(), &maker(Form::Plain), at(now))
}

/// Formats the steps: the action and the kinds of its objects, in order.
fn summary(steps: &[Step]) -> Vec<String> {
    steps
        .iter()
        .map(|step| match step {
            Step::Delete(object, why) => format!("delete {:?}: {why:?}", object.kind),
            Step::Retire { objects, .. } => {
                format!("retire {:?}", objects.iter().map(|object| object.kind).collect::<Vec<_>>())
            }
            Step::RestoreRole(_, why) => format!("restore role: {}", why.join(", ")),
            Step::RestoreBinding(_, why) => format!("restore binding: {}", why.join(", ")),
        })
        .collect()
}

#[test]
fn objects_in_use_are_kept() {
    assert_eq!(planned(&pinny().observed(), 3599), []);
    assert_eq!(planned(&pinny().with_login(300).observed(), 300), []);
    // Idle for a long time, but a token may still be in use.
    assert_eq!(planned(&pinny().with_login(3590).observed(), 3640), []);
}

#[test]
fn a_secret_is_deleted_a_minute_after_its_token_expires() {
    assert_eq!(planned(&pinny().with_login(300).observed(), 359), []);
    assert_eq!(summary(&planned(&pinny().with_login(300).observed(), 360)), ["delete Secret: Expired"]);
    let mut silent = pinny().with_login(300);
    silent.secrets[0].metadata.annotations = None;
    silent.secrets[0].metadata.creation_timestamp = Some(Time(at(0)));
    assert_eq!(planned(&silent.observed(), 659), []);
    assert_eq!(summary(&planned(&silent.observed(), 660)), ["delete Secret: Expired"]);
}

#[test]
fn an_unused_identity_is_deleted_from_the_binding_to_the_account() {
    let steps = planned(&pinny().observed(), 3600);
    assert_eq!(summary(&steps), ["retire [Binding, Role, Account]"]);
    let Step::Retire { account, last_used, objects } = &steps[0] else { panic!("{steps:?}") };
    assert_eq!((account, *last_used), (&objects[2], Some(at(0))));
    assert_eq!(account.uid.as_deref(), Some("account-uid"));
    let mut unnoted = pinny();
    unnoted.account.metadata.annotations = None;
    assert_eq!(planned(&unnoted.observed(), 3599), [], "its creation counts");
    assert_eq!(summary(&planned(&unnoted.observed(), 3600)), ["retire [Binding, Role, Account]"]);
}

#[test]
fn changed_objects_are_restored_or_deleted() {
    let mut more = pinny();
    more.role.rules.as_mut().unwrap().push(PolicyRule::default());
    assert_eq!(summary(&planned(&more.observed(), 1)), ["restore role: its rules are others"]);

    let mut other_user = pinny();
    other_user.role.rules.as_mut().unwrap()[0].resource_names = Some(vec!["admin".into()]);
    assert_eq!(
        summary(&planned(&other_user.observed(), 1)),
        ["delete Binding: Drifted", "delete Role: Drifted", "delete Account: Drifted"]
    );

    let mut subject = pinny();
    subject.binding.subjects.as_mut().unwrap().push(Subject::default());
    assert_eq!(summary(&planned(&subject.observed(), 1)), ["restore binding: its subjects are others"]);

    let mut ownerless = pinny();
    ownerless.binding.metadata.owner_references = None;
    assert_eq!(summary(&planned(&ownerless.observed(), 1)), ["restore binding: the role does not own it"]);

    let mut admin = pinny();
    admin.binding.role_ref.name = "cluster-admin".into();
    assert_eq!(summary(&planned(&admin.observed(), 1)), ["delete Binding: Drifted"]);
}

#[test]
fn a_role_without_an_account_is_deleted_when_no_login_can_be_in_progress() {
    let set = pinny();
    let mut alone = Observed::default();
    alone.role(&set.role);
    alone.binding(set.binding.clone());
    assert_eq!(planned(&alone, 59), []);
    assert_eq!(summary(&planned(&alone, 60)), ["delete Binding: Orphaned", "delete Role: Orphaned"]);

    let mut without_role = Observed::default();
    without_role.account(&set.account);
    without_role.binding(set.binding);
    assert_eq!(planned(&without_role, 59), []);
    assert_eq!(summary(&planned(&without_role, 60)), ["delete Binding: Orphaned"]);
}

#[test]
fn objects_in_another_namespace_are_deleted() {
    let mut set = pinny().with_login(300);
    set.account.metadata.namespace = Some("before".into());
    set.secrets[0].metadata.namespace = Some("before".into());
    set.binding.subjects.as_mut().unwrap()[0].namespace = Some("before".into());
    let observed = set.observed();
    assert_eq!(observed.bound_namespaces(), ["before".to_owned()].into());
    assert_eq!(
        summary(&planned(&observed, 1)),
        ["delete Secret: Moved", "delete Account: Moved", "restore binding: its subjects are others"]
    );
}

#[test]
fn disabling_tokens_deletes_all_objects_permissions_first() {
    let (one, other) = (pinny().with_login(300), Set::of(&identity("other", &[])));
    let mut observed = one.observed();
    observed.role(&other.role);
    observed.account(&other.account);
    observed.binding(other.binding);
    assert_eq!(observed.len(), 7);
    let kinds: Vec<Kind> = remove_all(&observed)
        .iter()
        .map(|step| match step {
            Step::Delete(object, DeletionReason::Disabled) => object.kind,
            other => panic!("{other:?}"),
        })
        .collect();
    use Kind::{Account, Binding, Role, Secret};
    assert_eq!(kinds, [Binding, Binding, Role, Role, Account, Account, Secret]);
}

#[test]
fn objects_of_other_names_or_types_are_not_touched() {
    let mut set = pinny().with_login(300);
    for meta in [&mut set.account.metadata, &mut set.role.metadata, &mut set.binding.metadata] {
        meta.name = Some("pinniped-user-of-somebody".into());
    }
    set.secrets[0].type_ = Some("Opaque".into());
    assert!(set.observed().is_empty());
    set.secrets[0].type_ = Some(SECRET_TYPE_BOUND_TOKEN.into());
    set.secrets[0].metadata.name = Some("pinniped-user-of-somebody-abcd2345".into());
    assert!(set.observed().is_empty());
}
