//! The objects of one identity.
//!
//! ```text
//! ServiceAccount      pinniped-user-<digest>           not mounted; no permissions by itself
//! ClusterRole         pinniped-user-<digest>           impersonates exactly this user
//!                                                      (groups, UID, extra attributes)
//! ClusterRoleBinding  pinniped-user-<digest>           role to service account, owned by the role
//! Secret              pinniped-user-<digest>-<random>  one per login; deletion revokes the token
//! ```

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_api::names::{
    ANNOTATION_EXPIRES_AT, ANNOTATION_LAST_USED, ANNOTATION_USERNAME, LABEL_IMPERSONATION_SUBJECT,
    SECRET_TYPE_BOUND_TOKEN,
};

use crate::identity_digest::IdentityDigest;
use pinniped_kube_request::identity::AUTHENTICATED;

/// Prefix of the names of all objects.
pub const NAME_PREFIX: &str = "pinniped-user-";

/// API group of roles and bindings.
const RBAC: &str = "rbac.authorization.k8s.io";

/// API group of UIDs and extra attributes and, in constrained impersonation, of all other
/// impersonated resources.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The verb of impersonation in Kubernetes since 1.3.
pub const IMPERSONATE: &str = "impersonate";

/// The verb of constrained impersonation for users that are neither nodes nor service accounts.
pub const IMPERSONATE_USER_INFO: &str = "impersonate:user-info";

/// Prefix of a request's verb in the access review of constrained impersonation, which checks
/// whether the request is permitted while impersonating a user.
pub const IMPERSONATE_ON: &str = "impersonate-on:user-info:";

/// All verbs of resource requests. RBAC supports no patterns within a verb.
pub const RESOURCE_VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// All verbs of non-resource requests.
pub const PATH_VERBS: [&str; 7] = ["get", "head", "post", "put", "patch", "delete", "options"];

/// Returns the name of an identity's objects. It is a valid object name for every username, because
/// it contains the digest.
pub fn object_name(digest: &IdentityDigest) -> String {
    format!("{NAME_PREFIX}{}", digest.short())
}

/// Returns the username of a service account.
pub fn account_username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The form in which a role grants impersonation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// With the verb `impersonate`, which every API server supports.
    Plain,
    /// With the verbs of constrained impersonation (KEP-5284). The API server then refuses
    /// `system:masters`, service accounts and nodes regardless of the role, and its audit log names
    /// the constraint.
    Constrained,
}

impl Form {
    /// Returns this form if it can express the identity, otherwise the plain form. The constrained
    /// form cannot express extra attributes with an empty value.
    #[must_use]
    pub fn for_identity(self, user: &ImpersonatedUser) -> Self {
        let empty = user.extra.values().flatten().any(String::is_empty);
        if empty { Self::Plain } else { self }
    }

    /// Returns the verb that grants impersonation of a user.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Plain => IMPERSONATE,
            Self::Constrained => IMPERSONATE_USER_INFO,
        }
    }

    /// Returns the API group of impersonated users and groups.
    pub fn group(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Constrained => AUTHENTICATION,
        }
    }
}

/// Returns the rules of an identity's role: exactly the attributes of its user.
pub fn rules(user: &ImpersonatedUser, form: Form) -> Vec<PolicyRule> {
    let rule = |group: &str, resource: String, names: Vec<String>| PolicyRule {
        verbs: vec![form.verb().to_owned()],
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource]),
        resource_names: Some(names),
        non_resource_urls: None,
    };
    let mut groups: BTreeSet<String> = user.groups.iter().cloned().collect();
    groups.insert(AUTHENTICATED.to_owned());
    let mut rules = vec![
        rule(form.group(), "users".to_owned(), vec![user.username.clone()]),
        rule(form.group(), "groups".to_owned(), groups.into_iter().collect()),
    ];
    if !user.uid.is_empty() {
        rules.push(rule(AUTHENTICATION, "uids".to_owned(), vec![user.uid.clone()]));
    }
    rules.extend(user.extra.iter().filter(|(_, values)| !values.is_empty()).map(|(key, values)| {
        let values: BTreeSet<String> = values.iter().cloned().collect();
        rule(AUTHENTICATION, format!("userextras/{key}"), values.into_iter().collect())
    }));
    if form == Form::Constrained {
        let on = |verbs: &[&str]| verbs.iter().map(|verb| format!("{IMPERSONATE_ON}{verb}")).collect();
        rules.push(PolicyRule {
            verbs: on(&RESOURCE_VERBS),
            api_groups: Some(vec!["*".to_owned()]),
            resources: Some(vec!["*".to_owned()]),
            ..PolicyRule::default()
        });
        rules.push(PolicyRule {
            verbs: on(&PATH_VERBS),
            non_resource_urls: Some(vec!["*".to_owned()]),
            ..PolicyRule::default()
        });
    }
    rules
}

/// Builds the objects of identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maker {
    /// Namespace of service accounts and Secrets.
    pub namespace: String,
    /// Labels of all objects of the installation.
    pub labels: BTreeMap<String, String>,
    /// How roles grant impersonation.
    pub form: Form,
    /// Whether service accounts carry the username, as audit events do if the configuration allows
    /// usernames.
    pub name_users: bool,
}

impl Maker {
    fn meta(&self, short: String, name: String, namespace: Option<&str>) -> ObjectMeta {
        let mut labels = self.labels.clone();
        labels.insert(LABEL_IMPERSONATION_SUBJECT.to_owned(), short);
        ObjectMeta {
            name: Some(name),
            namespace: namespace.map(str::to_owned),
            labels: Some(labels),
            ..ObjectMeta::default()
        }
    }

    /// Returns the service account with `now` as its last use.
    pub fn service_account(
        &self,
        digest: &IdentityDigest,
        user: &ImpersonatedUser,
        now: Timestamp,
    ) -> ServiceAccount {
        let mut annotations = BTreeMap::from([(ANNOTATION_LAST_USED.to_owned(), time(now))]);
        if self.name_users {
            annotations.insert(ANNOTATION_USERNAME.to_owned(), user.username.clone());
        }
        ServiceAccount {
            metadata: ObjectMeta {
                annotations: Some(annotations),
                ..self.meta(digest.short(), object_name(digest), Some(&self.namespace))
            },
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        }
    }

    /// Returns the role.
    pub fn cluster_role(&self, digest: &IdentityDigest, user: &ImpersonatedUser) -> ClusterRole {
        ClusterRole {
            metadata: self.meta(digest.short(), object_name(digest), None),
            rules: Some(rules(user, self.form.for_identity(user))),
            aggregation_rule: None,
        }
    }

    /// Returns the binding, owned by the role with this UID.
    pub fn cluster_role_binding(&self, digest: &IdentityDigest, role_uid: &str) -> ClusterRoleBinding {
        self.binding(&digest.short(), role_uid)
    }

    /// Returns the binding for the part of the digest that object names contain.
    pub(super) fn binding(&self, short: &str, role_uid: &str) -> ClusterRoleBinding {
        let name = format!("{NAME_PREFIX}{short}");
        let metadata = ObjectMeta {
            owner_references: Some(vec![OwnerReference {
                api_version: format!("{RBAC}/v1"),
                kind: "ClusterRole".to_owned(),
                name: name.clone(),
                uid: role_uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..self.meta(short.to_owned(), name.clone(), None)
        };
        ClusterRoleBinding {
            metadata,
            role_ref: RoleRef {
                api_group: Some(RBAC.to_owned()),
                kind: "ClusterRole".to_owned(),
                name: name.clone(),
            },
            subjects: Some(vec![Subject {
                api_group: None,
                kind: "ServiceAccount".to_owned(),
                name,
                namespace: Some(self.namespace.clone()),
            }]),
        }
    }

    /// Returns the Secret to which the token of a login is bound. `random` is the suffix of its
    /// name, eight characters.
    pub fn bound_secret(&self, digest: &IdentityDigest, random: &str, expires: Timestamp) -> Secret {
        let name = format!("{}-{random}", object_name(digest));
        Secret {
            metadata: ObjectMeta {
                annotations: Some([(ANNOTATION_EXPIRES_AT.to_owned(), time(expires))].into()),
                ..self.meta(digest.short(), name, Some(&self.namespace))
            },
            type_: Some(SECRET_TYPE_BOUND_TOKEN.to_owned()),
            ..Secret::default()
        }
    }

    /// Returns a label selector for all objects of all identities of this installation.
    pub fn selector(&self) -> String {
        let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}"));
        std::iter::once(LABEL_IMPERSONATION_SUBJECT.to_owned()).chain(labels).collect::<Vec<_>>().join(",")
    }
}

/// Formats a time for annotations: RFC 3339, whole seconds, UTC.
pub fn time(time: Timestamp) -> String {
    whole_seconds(time).to_string()
}

/// Truncates a time to whole seconds; times in Kubernetes objects have no fractions of a second.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fixtures::{at, identity, maker};
    use super::*;

    fn everything() -> ImpersonatedUser {
        let mut user = identity("pinny", &["b", "a"]);
        user.uid = "u-1".to_owned();
        user.extra.insert("acme.io/two".into(), vec!["y".into(), "x".into()]);
        user.extra.insert("acme.io/one".into(), vec!["z".into()]);
        user.extra.insert("acme.io/none".into(), Vec::new());
        user
    }

    fn value(object: &impl serde::Serialize) -> Value {
        serde_json::to_value(object).unwrap()
    }

    #[test]
    fn a_role_grants_impersonation_of_exactly_its_user() {
        let rule = |group: &str, resource: &str, names: &[&str]| json!({"verbs": ["impersonate"], "apiGroups": [group], "resources": [resource], "resourceNames": names});
        assert_eq!(
            value(&rules(&everything(), Form::Plain)),
            json!([
                rule("", "users", &["pinny"]),
                rule("", "groups", &["a", "b", "system:authenticated"]),
                rule("authentication.k8s.io", "uids", &["u-1"]),
                rule("authentication.k8s.io", "userextras/acme.io/one", &["z"]),
                rule("authentication.k8s.io", "userextras/acme.io/two", &["x", "y"]),
            ])
        );
        assert_eq!(
            value(&rules(&identity("pinny", &[]), Form::Plain)),
            json!([rule("", "users", &["pinny"]), rule("", "groups", &["system:authenticated"])])
        );
    }

    #[test]
    fn the_constrained_form_names_the_verbs_of_requests_too() {
        let rules = value(&rules(&everything(), Form::Constrained));
        let rules = rules.as_array().unwrap();
        for rule in &rules[..5] {
            assert_eq!(rule["verbs"], json!(["impersonate:user-info"]));
            assert_eq!(rule["apiGroups"], json!(["authentication.k8s.io"]));
            assert!(rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty()));
        }
        assert_eq!(rules[5]["resources"], json!(["*"]));
        assert_eq!(rules[5]["verbs"][0], "impersonate-on:user-info:get");
        assert_eq!(rules[6]["nonResourceURLs"], json!(["*"]));
        assert_eq!(rules.len(), 7);
        let mut empty = everything();
        empty.extra.insert("acme.io/e".into(), vec![String::new()]);
        assert_eq!(Form::Constrained.for_identity(&everything()), Form::Constrained);
        assert_eq!(Form::Constrained.for_identity(&empty), Form::Plain);
    }

    #[test]
    fn all_objects_belong_together_without_a_username() {
        let user = identity("pinny", &["a"]);
        let digest = IdentityDigest::of(&user);
        let name = format!("pinniped-user-{}", digest.short());
        let maker = maker(Form::Plain);
        let labels = json!({"app": "pinniped-concierge", "concierge.pinniped.dev/impersonation-subject": digest.short()});
        assert_eq!(
            value(&maker.service_account(&digest, &user, at(0))),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": false,
                "metadata": {"name": name, "namespace": "users", "labels": labels,
                    "annotations": {"concierge.pinniped.dev/last-used": "2027-01-15T08:00:00Z"}}})
        );
        let named = Maker { name_users: true, ..maker.clone() }.service_account(&digest, &user, at(0));
        assert_eq!(named.metadata.annotations.unwrap()["concierge.pinniped.dev/username"], "pinny");
        let role = value(&maker.cluster_role(&digest, &user));
        assert_eq!(role["metadata"], json!({"name": name, "labels": labels}));
        assert_eq!(
            value(&maker.cluster_role_binding(&digest, "uid-1")),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": name, "labels": labels, "ownerReferences": [
                    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": name, "uid": "uid-1"}]},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "users"}]})
        );
        assert_eq!(
            value(&maker.bound_secret(&digest, "abcd2345", at(300))),
            json!({"apiVersion": "v1", "kind": "Secret", "type": "concierge.pinniped.dev/bound-token",
                "metadata": {"name": format!("{name}-abcd2345"), "namespace": "users", "labels": labels,
                    "annotations": {"concierge.pinniped.dev/expires-at": "2027-01-15T08:05:00Z"}}})
        );
        assert_eq!(maker.selector(), "concierge.pinniped.dev/impersonation-subject,app=pinniped-concierge");
        assert_eq!(name.len(), 46, "with what a Secret appends it stays below 63");
    }
}
