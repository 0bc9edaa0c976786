//! Computes the differences between an existing object and the wanted one.
//!
//! Additions of other tools, such as labels or image pull secrets, are kept. Additions that would
//! let the role grant more than intended, or grant it to another subject, are not.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinniped_concierge_api::login::ImpersonatedUser;

use super::objects::{Form, object_name, rules};
use crate::identity_digest::IdentityDigest;
use pinniped_kube_request::identity::AUTHENTICATED;

/// Prefix of the labels that add a role's rules to those of another role.
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// The difference of an object from the wanted one.
#[derive(Clone, Debug, PartialEq)]
pub enum Drift<K> {
    /// There is no difference.
    None,
    /// The object must be replaced with this one, for these reasons.
    Repair(Box<K>, Vec<&'static str>),
    /// The difference cannot be repaired in place.
    Recreate(&'static str),
    /// Another installation made the object; the text names the evidence.
    Foreign(String),
}

/// Compares an existing object with the wanted one of the same name.
pub trait Compare: Sized {
    /// Returns the difference of `found` from `self`.
    fn drift(&self, found: &Self) -> Drift<Self>;
}

impl Compare for ServiceAccount {
    fn drift(&self, found: &Self) -> Drift<Self> {
        with_labels(
            &self.metadata,
            found,
            |found| &mut found.metadata,
            |repaired, why| {
                if repaired.automount_service_account_token != Some(false) {
                    repaired.automount_service_account_token = Some(false);
                    why.push("its token would be mounted");
                }
            },
        )
    }
}

impl Compare for ClusterRole {
    fn drift(&self, found: &Self) -> Drift<Self> {
        with_labels(
            &self.metadata,
            found,
            |found| &mut found.metadata,
            |repaired, why| {
                repair_role(repaired, self.rules.as_deref().unwrap_or_default(), why);
            },
        )
    }
}

impl Compare for ClusterRoleBinding {
    fn drift(&self, found: &Self) -> Drift<Self> {
        if self.role_ref != found.role_ref {
            return Drift::Recreate("it binds another role");
        }
        with_labels(
            &self.metadata,
            found,
            |found| &mut found.metadata,
            |repaired, why| {
                if !same_subjects(self.subjects.as_deref(), repaired.subjects.as_deref()) {
                    repaired.subjects.clone_from(&self.subjects);
                    why.push("its subjects are others");
                }
                if repaired.metadata.owner_references != self.metadata.owner_references {
                    repaired.metadata.owner_references.clone_from(&self.metadata.owner_references);
                    why.push("the role does not own it");
                }
            },
        )
    }
}

fn with_labels<K: Clone>(
    wanted: &ObjectMeta,
    found: &K,
    meta: impl Fn(&mut K) -> &mut ObjectMeta,
    repair: impl FnOnce(&mut K, &mut Vec<&'static str>),
) -> Drift<K> {
    let mut repaired = found.clone();
    let mut why = Vec::new();
    let labels = meta(&mut repaired).labels.get_or_insert_default();
    for (key, value) in wanted.labels.iter().flatten() {
        match labels.get(key) {
            Some(other) if other == value => {}
            // The digest cannot differ between installations: objects of the same name have the
            // same digest.
            Some(other) if key != pinniped_concierge_api::names::LABEL_IMPERSONATION_SUBJECT => {
                return Drift::Foreign(format!("its label {key} is {other:?} instead of {value:?}"));
            }
            _ => {
                labels.insert(key.clone(), value.clone());
                why.push("a label is missing");
            }
        }
    }
    repair(&mut repaired, &mut why);
    if why.is_empty() { Drift::None } else { Drift::Repair(Box::new(repaired), why) }
}

fn repair_role(role: &mut ClusterRole, wanted: &[PolicyRule], why: &mut Vec<&'static str>) {
    if role.rules.as_deref().unwrap_or_default() != wanted {
        role.rules = Some(wanted.to_vec());
        why.push("its rules are others");
    }
    if role.aggregation_rule.take().is_some() {
        why.push("it would be aggregated from other roles");
    }
    if let Some(labels) = &mut role.metadata.labels {
        let before = labels.len();
        labels.retain(|key, _| !key.starts_with(AGGREGATE_TO));
        if labels.len() < before {
            why.push("it would be aggregated to another role");
        }
    }
}

/// Compares subjects. The API server stores an absent API group of a service account as an empty
/// one.
fn same_subjects(a: Option<&[Subject]>, b: Option<&[Subject]>) -> bool {
    let plain = |subjects: Option<&[Subject]>| -> Vec<(String, String, Option<String>, String)> {
        subjects
            .unwrap_or_default()
            .iter()
            .cloned()
            .map(|s| (s.kind, s.name, s.namespace, s.api_group.unwrap_or_default()))
            .collect()
    };
    plain(a) == plain(b)
}

/// The result of checking a role against its own name.
#[derive(Clone, Debug, PartialEq)]
pub enum RoleCheck {
    /// The role grants exactly what its name certifies.
    Valid,
    /// The role must be replaced with this one, for these reasons.
    Restore(Box<ClusterRole>, Vec<&'static str>),
    /// The identity of the role cannot be determined any more.
    Unrecoverable,
}

/// Checks a role by its name, which contains the digest of the identity that the rules grant.
pub fn check_role(role: &ClusterRole) -> RoleCheck {
    let name = role.metadata.name.as_deref().unwrap_or_default();
    let found = role.rules.as_deref().unwrap_or_default();
    let Some((user, form)) = granted(name, found) else { return RoleCheck::Unrecoverable };
    let (mut restored, mut why) = (role.clone(), Vec::new());
    repair_role(&mut restored, &rules(&user, form), &mut why);
    if why.is_empty() { RoleCheck::Valid } else { RoleCheck::Restore(Box::new(restored), why) }
}

/// Returns the identity of the rules if the name confirms it. Ignores additional rules.
fn granted(name: &str, rules: &[PolicyRule]) -> Option<(ImpersonatedUser, Form)> {
    [Form::Plain, Form::Constrained].into_iter().find_map(|form| {
        let mut user = ImpersonatedUser::default();
        for rule in rules {
            let (Some([resource]), [verb]) = (rule.resources.as_deref(), rule.verbs.as_slice()) else {
                continue;
            };
            let names = rule.resource_names.clone().unwrap_or_default();
            if verb != form.verb() || names.is_empty() {
                continue;
            }
            match (resource.as_str(), names.as_slice()) {
                ("users", [one]) if user.username.is_empty() => user.username.clone_from(one),
                ("groups", _) if user.groups.is_empty() => user.groups = names,
                ("uids", [one]) if user.uid.is_empty() => user.uid.clone_from(one),
                (other, _) => {
                    if let Some(key) = other.strip_prefix("userextras/") {
                        user.extra.entry(key.to_owned()).or_insert(names);
                    }
                }
            }
        }
        // The digest shows whether the authenticator returned this group or only the role has it.
        let mut without = user.clone();
        without.groups.retain(|group| group != AUTHENTICATED);
        [user, without]
            .into_iter()
            .find(|user| object_name(&IdentityDigest::of(user)) == name)
            .map(|user| (user, form))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::AggregationRule;

    use super::super::fixtures::{at, identity, maker};
    use super::super::objects::Maker;
    use super::*;

    struct Set {
        account: ServiceAccount,
        role: ClusterRole,
        binding: ClusterRoleBinding,
    }

    fn set(user: &ImpersonatedUser, maker: &Maker) -> Set {
        let digest = IdentityDigest::of(user);
        Set {
            account: maker.service_account(&digest, user, at(0)),
            role: maker.cluster_role(&digest, user),
            binding: maker.cluster_role_binding(&digest, "uid-1"),
        }
    }

    fn why<K>(drift: Drift<K>) -> Vec<&'static str> {
        match drift {
            Drift::None => Vec::new(),
            Drift::Repair(_, why) => why,
            Drift::Recreate(why) => vec![why],
            Drift::Foreign(_) => vec!["foreign"],
        }
    }

    #[test]
    fn additions_of_other_clients_to_a_service_account_are_kept() {
        let wanted = set(&identity("pinny", &["a"]), &maker(Form::Plain)).account;
        let change = |change: fn(&mut ServiceAccount)| {
            let mut found = wanted.clone();
            found.metadata.resource_version = Some("7".into());
            change(&mut found);
            why(wanted.drift(&found))
        };
        assert!(change(|_| {}).is_empty());
        assert!(change(|found| found.image_pull_secrets = Some(vec![Default::default()])).is_empty());
        assert!(change(|found| found.metadata.annotations = None).is_empty());
        assert_eq!(
            change(|found| found.automount_service_account_token = None),
            ["its token would be mounted"]
        );
        assert_eq!(
            change(|found| found.automount_service_account_token = Some(true)),
            ["its token would be mounted"]
        );
        let unlabelled = change(|found| found.metadata.labels = None);
        assert_eq!(unlabelled, ["a label is missing", "a label is missing"]);
    }

    #[test]
    fn a_role_with_other_grants_is_corrected() {
        let wanted = set(&identity("pinny", &["a"]), &maker(Form::Plain)).role;
        let change = |change: fn(&mut ClusterRole)| {
            let mut found = wanted.clone();
            found.metadata.labels.as_mut().unwrap().insert("kapp.k14s.io/app".into(), "1".into());
            change(&mut found);
            let drift = wanted.drift(&found);
            if let Drift::Repair(repaired, _) = &drift {
                assert_eq!(wanted.drift(repaired), Drift::None, "a repair is enough");
                assert!(repaired.metadata.labels.as_ref().unwrap().contains_key("kapp.k14s.io/app"));
            }
            why(drift)
        };
        assert!(change(|_| {}).is_empty());
        assert_eq!(change(|found| found.rules = None), ["its rules are others"]);
        assert_eq!(
            change(|found| found.rules.as_mut().unwrap().push(PolicyRule::default())),
            ["its rules are others"]
        );
        assert_eq!(
            change(|found| found.rules.as_mut().unwrap()[0].resource_names = None),
            ["its rules are others"]
        );
        assert_eq!(
            change(|found| found.aggregation_rule = Some(AggregationRule::default())),
            ["it would be aggregated from other roles"]
        );
        assert_eq!(
            change(|found| {
                let labels = found.metadata.labels.as_mut().unwrap();
                labels.insert("rbac.authorization.k8s.io/aggregate-to-admin".into(), "true".into());
            }),
            ["it would be aggregated to another role"]
        );
        assert_eq!(
            change(|found| {
                found.metadata.labels.as_mut().unwrap().insert("app".into(), "another".into());
            }),
            ["foreign"]
        );
    }

    #[test]
    fn a_binding_with_other_subjects_is_corrected() {
        let wanted = set(&identity("pinny", &["a"]), &maker(Form::Plain)).binding;
        let change = |change: fn(&mut ClusterRoleBinding)| {
            let mut found = wanted.clone();
            change(&mut found);
            why(wanted.drift(&found))
        };
        assert!(change(|_| {}).is_empty());
        assert!(
            change(|found| found.subjects.as_mut().unwrap()[0].api_group = Some(String::new())).is_empty()
        );
        assert_eq!(
            change(|found| found.subjects.as_mut().unwrap().push(Subject::default())),
            ["its subjects are others"]
        );
        assert_eq!(
            change(|found| found.subjects.as_mut().unwrap()[0].namespace = Some("other".into())),
            ["its subjects are others"]
        );
        assert_eq!(change(|found| found.subjects = None), ["its subjects are others"]);
        assert_eq!(change(|found| found.metadata.owner_references = None), ["the role does not own it"]);
        assert_eq!(change(|found| found.role_ref.name = "cluster-admin".into()), ["it binds another role"]);
    }

    #[test]
    fn the_name_of_a_role_certifies_its_rules() {
        let mut user = identity("pinny", &["a", "b"]);
        user.uid = "1".to_owned();
        user.extra.insert("acme.io/k".into(), vec!["x".into(), "y".into()]);
        let authenticated = identity("pinny", &["a", "system:authenticated"]);
        for user in [&user, &authenticated, &identity("pinny", &[])] {
            for form in [Form::Plain, Form::Constrained] {
                let role = set(user, &maker(form)).role;
                assert_eq!(check_role(&role), RoleCheck::Valid, "{user:?} {form:?}");

                let mut more = role.clone();
                more.rules.as_mut().unwrap().push(PolicyRule {
                    verbs: vec!["*".into()],
                    api_groups: Some(vec!["*".into()]),
                    resources: Some(vec!["*".into()]),
                    ..PolicyRule::default()
                });
                let why = vec!["its rules are others"];
                assert_eq!(check_role(&more), RoleCheck::Restore(Box::new(role.clone()), why));

                let mut another_group = role.clone();
                let names = another_group.rules.as_mut().unwrap()[1].resource_names.as_mut().unwrap();
                names.push("admins".into());
                assert_eq!(check_role(&another_group), RoleCheck::Unrecoverable);

                let mut renamed = role.clone();
                renamed.metadata.name = Some("pinniped-user-0".into());
                assert_eq!(check_role(&renamed), RoleCheck::Unrecoverable);
            }
        }
        assert_eq!(check_role(&ClusterRole::default()), RoleCheck::Unrecoverable);
    }
}
