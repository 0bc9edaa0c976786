//! Decides which admission objects of the cluster match the aggregated API, and the condition that
//! reports them.
//!
//! API servers do not run admission for aggregated APIs: the server of the API has to. This one
//! does not apply the objects, so it reports each object that may match. Selectors, match
//! conditions and bindings are not evaluated: an object with any of them may match.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, MutatingAdmissionPolicy, MutatingWebhookConfiguration, NamedRuleWithOperations,
    RuleWithOperations, ValidatingAdmissionPolicy, ValidatingWebhookConfiguration,
};
use pinniped_kube_types::condition::DesiredCondition;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_kube_types::text::truncated;

use crate::credential_issuer::conditions::{ConditionChange, MAX_MESSAGE_LENGTH};

/// Type of the condition that reports whether all matching admission objects are applied.
pub const ADMISSION_APPLIED: &str = "AdmissionApplied";
/// Reason of the condition if no object matches.
pub const NOTHING_MATCHES: &str = "NothingMatches";
/// Reason of the condition if an object matches, and is not applied.
pub const NOT_APPLIED: &str = "NotApplied";
/// Reason of the condition if no object is known to match, but not all can be read.
pub const NOT_READ: &str = "NotRead";

/// The version of both aggregated APIs.
const VERSION: &str = "v1alpha1";

/// The resources of the aggregated API, with the group before the suffix is applied.
const RESOURCES: [(&str, &str); 2] = [
    ("login.concierge.pinniped.dev", "tokencredentialrequests"),
    ("identity.concierge.pinniped.dev", "whoamirequests"),
];

/// An admission plug-in of an API server that reads objects of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdmissionPlugin {
    /// Applies objects of kind `MutatingAdmissionPolicy`.
    MutatingAdmissionPolicy,
    /// Applies objects of kind `MutatingWebhookConfiguration`.
    MutatingAdmissionWebhook,
    /// Applies objects of kind `ValidatingAdmissionPolicy`.
    ValidatingAdmissionPolicy,
    /// Applies objects of kind `ValidatingWebhookConfiguration`.
    ValidatingAdmissionWebhook,
}

impl AdmissionPlugin {
    /// All plug-ins.
    pub const ALL: [Self; 4] = [
        Self::MutatingAdmissionPolicy,
        Self::MutatingAdmissionWebhook,
        Self::ValidatingAdmissionPolicy,
        Self::ValidatingAdmissionWebhook,
    ];

    /// Returns the name of the plug-in, as in `aggregatedAPIServerDisableAdmissionPlugins`.
    pub fn name(self) -> &'static str {
        match self {
            Self::MutatingAdmissionPolicy => "MutatingAdmissionPolicy",
            Self::MutatingAdmissionWebhook => "MutatingAdmissionWebhook",
            Self::ValidatingAdmissionPolicy => "ValidatingAdmissionPolicy",
            Self::ValidatingAdmissionWebhook => "ValidatingAdmissionWebhook",
        }
    }

    /// Returns the kind of its objects.
    pub fn kind(self) -> &'static str {
        match self {
            Self::MutatingAdmissionWebhook => "MutatingWebhookConfiguration",
            Self::ValidatingAdmissionWebhook => "ValidatingWebhookConfiguration",
            policy => policy.name(),
        }
    }
}

/// A rule of an admission object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    groups: Vec<String>,
    versions: Vec<String>,
    operations: Vec<String>,
    resources: Vec<String>,
    scope: Option<String>,
    /// Whether the rule is limited to objects with certain names.
    is_named: bool,
}

impl Rule {
    /// Returns whether the rule matches the creation of a cluster-scoped resource, by the rules of
    /// `k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules`.
    fn matches(&self, group: &str, resource: &str) -> bool {
        let is_in = |items: &[String], item: &str| items.iter().any(|given| given == "*" || given == item);
        let resource_matches = self.resources.iter().any(|given| {
            // A rule without a subresource does not match subresources, and the requests have none.
            let (given, subresource) = given.split_once('/').unwrap_or((given, ""));
            (given == "*" || given == resource) && matches!(subresource, "" | "*")
        });
        matches!(self.scope.as_deref(), None | Some("*" | "Cluster"))
            && is_in(&self.operations, "CREATE")
            && is_in(&self.groups, group)
            && is_in(&self.versions, VERSION)
            && resource_matches
    }
}

impl From<&RuleWithOperations> for Rule {
    fn from(rule: &RuleWithOperations) -> Self {
        Self {
            groups: rule.api_groups.clone().unwrap_or_default(),
            versions: rule.api_versions.clone().unwrap_or_default(),
            operations: rule.operations.clone().unwrap_or_default(),
            resources: rule.resources.clone().unwrap_or_default(),
            scope: rule.scope.clone(),
            is_named: false,
        }
    }
}

impl From<&NamedRuleWithOperations> for Rule {
    fn from(rule: &NamedRuleWithOperations) -> Self {
        Self {
            groups: rule.api_groups.clone().unwrap_or_default(),
            versions: rule.api_versions.clone().unwrap_or_default(),
            operations: rule.operations.clone().unwrap_or_default(),
            resources: rule.resources.clone().unwrap_or_default(),
            scope: rule.scope.clone(),
            is_named: rule.resource_names.as_ref().is_some_and(|names| !names.is_empty()),
        }
    }
}

/// An object that an admission plug-in applies. The match policy is not part of it, because the
/// aggregated resources have no equivalents in other groups or versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionObject {
    plugin: AdmissionPlugin,
    name: String,
    /// `None` includes everything.
    included: Option<Vec<Rule>>,
    excluded: Vec<Rule>,
}

impl AdmissionObject {
    fn policy(plugin: AdmissionPlugin, name: Option<&String>, constraints: Option<&MatchResources>) -> Self {
        let rules = |rules: Option<&Vec<NamedRuleWithOperations>>| -> Vec<Rule> {
            rules.into_iter().flatten().map(Rule::from).collect()
        };
        let included = rules(constraints.and_then(|constraints| constraints.resource_rules.as_ref()));
        Self {
            plugin,
            name: name.cloned().unwrap_or_default(),
            included: Some(included).filter(|rules| !rules.is_empty()),
            excluded: rules(constraints.and_then(|constraints| constraints.exclude_resource_rules.as_ref())),
        }
    }

    fn webhooks<'a>(
        plugin: AdmissionPlugin,
        name: Option<&String>,
        rules: impl Iterator<Item = &'a RuleWithOperations>,
    ) -> Self {
        Self {
            plugin,
            name: name.cloned().unwrap_or_default(),
            included: Some(rules.map(Rule::from).collect()),
            excluded: Vec::new(),
        }
    }

    /// Returns whether the object may match the creation of a resource.
    fn may_match(&self, group: &str, resource: &str) -> bool {
        // A named exclusion leaves requests with other names.
        let excludes = |rule: &Rule| !rule.is_named && rule.matches(group, resource);
        let includes = |rules: &Vec<Rule>| rules.iter().any(|rule| rule.matches(group, resource));
        !self.excluded.iter().any(excludes) && self.included.as_ref().is_none_or(includes)
    }
}

impl From<&ValidatingAdmissionPolicy> for AdmissionObject {
    fn from(object: &ValidatingAdmissionPolicy) -> Self {
        let constraints = object.spec.as_ref().and_then(|spec| spec.match_constraints.as_ref());
        let name = object.metadata.name.as_ref();
        Self::policy(AdmissionPlugin::ValidatingAdmissionPolicy, name, constraints)
    }
}

impl From<&MutatingAdmissionPolicy> for AdmissionObject {
    fn from(object: &MutatingAdmissionPolicy) -> Self {
        let constraints = object.spec.as_ref().and_then(|spec| spec.match_constraints.as_ref());
        let name = object.metadata.name.as_ref();
        Self::policy(AdmissionPlugin::MutatingAdmissionPolicy, name, constraints)
    }
}

impl From<&ValidatingWebhookConfiguration> for AdmissionObject {
    fn from(object: &ValidatingWebhookConfiguration) -> Self {
        let rules = object.webhooks.iter().flatten().filter_map(|webhook| webhook.rules.as_ref()).flatten();
        Self::webhooks(AdmissionPlugin::ValidatingAdmissionWebhook, object.metadata.name.as_ref(), rules)
    }
}

impl From<&MutatingWebhookConfiguration> for AdmissionObject {
    fn from(object: &MutatingWebhookConfiguration) -> Self {
        let rules = object.webhooks.iter().flatten().filter_map(|webhook| webhook.rules.as_ref()).flatten();
        Self::webhooks(AdmissionPlugin::MutatingAdmissionWebhook, object.metadata.name.as_ref(), rules)
    }
}

/// All inputs of the decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedAdmission {
    /// The objects of the enabled plug-ins.
    pub objects: Vec<AdmissionObject>,
    /// The plug-ins whose objects cannot be read, with the reasons.
    pub unreadable: Vec<(AdmissionPlugin, String)>,
}

/// Decides the condition [`ADMISSION_APPLIED`].
pub fn condition(observed: &ObservedAdmission, suffix: &GroupSuffix) -> ConditionChange {
    let mut parts = Vec::new();
    for (group, resource) in RESOURCES {
        let group = suffix.replace(group);
        let matching = observed.objects.iter().filter(|object| object.may_match(&group, resource));
        let names: BTreeSet<String> =
            matching.map(|object| format!("{} \"{}\"", object.plugin.kind(), object.name)).collect();
        if !names.is_empty() {
            let names: Vec<String> = names.into_iter().collect();
            parts.push(format!("not applied to {resource}.{group}: {}", names.join(", ")));
        }
    }
    let (status_of, reason): (fn(&'static str, &'static str, String) -> DesiredCondition, _) =
        if !parts.is_empty() {
            (DesiredCondition::failure, NOT_APPLIED)
        } else if !observed.unreadable.is_empty() {
            (DesiredCondition::unknown, NOT_READ)
        } else {
            let message = "no admission policy or webhook of the cluster matches the aggregated API";
            let applied = DesiredCondition::new(ADMISSION_APPLIED, "True", NOTHING_MATCHES, message);
            return ConditionChange::Set(applied);
        };
    let unreadable =
        observed.unreadable.iter().map(|(plugin, why)| format!("cannot read {}: {why}", plugin.kind()));
    parts.extend(unreadable);
    let message = truncated(&parts.join("; "), MAX_MESSAGE_LENGTH);
    ConditionChange::Set(status_of(ADMISSION_APPLIED, reason, message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TOKENS: &str = "tokencredentialrequests.login.concierge.pinniped.dev";
    const WHOAMI: &str = "whoamirequests.identity.concierge.pinniped.dev";

    fn decide(observed: &ObservedAdmission, suffix: &str) -> (String, String, String) {
        match condition(observed, &GroupSuffix::parse(suffix).unwrap()) {
            ConditionChange::Set(condition) => (condition.status, condition.reason, condition.message),
            ConditionChange::Remove(_) => panic!("the condition is always present"),
        }
    }

    fn policy(constraints: &Value) -> AdmissionObject {
        let object = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": constraints}});
        AdmissionObject::from(&serde_json::from_value::<ValidatingAdmissionPolicy>(object).unwrap())
    }

    fn rule(change: &Value) -> Value {
        let mut rule = json!({"apiGroups": ["login.concierge.pinniped.dev"], "apiVersions": ["v1alpha1"],
            "operations": ["CREATE"], "resources": ["tokencredentialrequests"]});
        for (key, value) in change.as_object().unwrap() {
            rule[key] = value.clone();
        }
        rule
    }

    #[test]
    fn rules_match_as_in_the_api_server() {
        for (change, expected) in [
            (json!({}), &[TOKENS][..]),
            (json!({"apiGroups": ["*"]}), &[TOKENS]),
            (json!({"apiGroups": ["*"], "resources": ["*"]}), &[TOKENS, WHOAMI]),
            (json!({"apiGroups": ["*"], "resources": ["*/*"]}), &[TOKENS, WHOAMI]),
            (json!({"resources": ["*"]}), &[TOKENS]),
            (json!({"resources": ["tokencredentialrequests/*"]}), &[TOKENS]),
            (json!({"resources": ["tokencredentialrequests/status"]}), &[]),
            (json!({"resources": ["*/status"]}), &[]),
            (json!({"resources": ["pods", "tokencredentialrequests"]}), &[TOKENS]),
            (json!({"resources": ["pods"]}), &[]),
            (json!({"apiGroups": ["", "apps"]}), &[]),
            (json!({"apiGroups": ["login.concierge.other.example"]}), &[]),
            (json!({"apiVersions": ["*"]}), &[TOKENS]),
            (json!({"apiVersions": ["v1"]}), &[]),
            (json!({"operations": ["*"]}), &[TOKENS]),
            (json!({"operations": ["UPDATE", "DELETE", "CONNECT"]}), &[]),
            (json!({"operations": ["UPDATE", "CREATE"]}), &[TOKENS]),
            (json!({"scope": "*"}), &[TOKENS]),
            (json!({"scope": "Cluster"}), &[TOKENS]),
            (json!({"scope": "Namespaced"}), &[]),
        ] {
            let rule = rule(&change);
            let webhooks = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "a.b.c", "rules": [rule],
                "admissionReviewVersions": ["v1"], "clientConfig": {}, "sideEffects": "None"}]});
            let validating: ValidatingWebhookConfiguration =
                serde_json::from_value(webhooks.clone()).unwrap();
            let mutating: MutatingWebhookConfiguration = serde_json::from_value(webhooks).unwrap();
            let spec =
                json!({"metadata": {"name": "m"}, "spec": {"matchConstraints": {"resourceRules": [rule]}}});
            let mutating_policy: MutatingAdmissionPolicy = serde_json::from_value(spec).unwrap();
            let objects = [
                AdmissionObject::from(&validating),
                AdmissionObject::from(&mutating),
                AdmissionObject::from(&mutating_policy),
                policy(&json!({"resourceRules": [rule]})),
            ];
            for object in objects {
                let found: Vec<String> = RESOURCES
                    .iter()
                    .filter(|(group, resource)| object.may_match(group, resource))
                    .map(|(group, resource)| format!("{resource}.{group}"))
                    .collect();
                assert_eq!(found, expected, "{change} {:?}", object.plugin);
            }
        }
    }

    #[test]
    fn the_constraints_of_policies_include_and_exclude() {
        let rule = rule(&json!({}));
        let named = self::rule(&json!({"resourceNames": ["a"]}));
        for (constraints, expected) in [
            (json!({"resourceRules": [rule]}), true),
            (json!({"resourceRules": [named]}), true),
            (json!({"resourceRules": [rule], "objectSelector": {"matchLabels": {"a": "b"}}}), true),
            (json!({"resourceRules": [rule], "matchPolicy": "Exact"}), true),
            (json!({"resourceRules": [rule], "excludeResourceRules": [rule]}), false),
            (json!({"resourceRules": [rule], "excludeResourceRules": [named]}), true),
            (json!({}), true),
        ] {
            let found = policy(&constraints).may_match(RESOURCES[0].0, RESOURCES[0].1);
            assert_eq!(found, expected, "{constraints}");
        }
    }

    #[test]
    fn the_condition_names_every_object_that_is_not_applied() {
        let all = policy(&json!({}));
        let tokens = policy(&json!({"resourceRules": [rule(&json!({}))]}));
        let none = policy(&json!({"resourceRules": [rule(&json!({"resources": ["pods"]}))]}));
        let unreadable = vec![(AdmissionPlugin::MutatingAdmissionWebhook, "forbidden".to_owned())];
        let tokens_text = format!("not applied to {TOKENS}: ValidatingAdmissionPolicy \"p\"");
        for (objects, unreadable, expected) in [
            (
                vec![none.clone()],
                vec![],
                (
                    "True",
                    "NothingMatches",
                    "no admission policy or webhook of the cluster matches the aggregated API".to_owned(),
                ),
            ),
            (
                vec![none],
                unreadable.clone(),
                ("Unknown", "NotRead", "cannot read MutatingWebhookConfiguration: forbidden".to_owned()),
            ),
            (vec![tokens.clone()], vec![], ("False", "NotApplied", tokens_text.clone())),
            (
                vec![tokens.clone()],
                unreadable,
                (
                    "False",
                    "NotApplied",
                    format!("{tokens_text}; cannot read MutatingWebhookConfiguration: forbidden"),
                ),
            ),
            (
                vec![all],
                vec![],
                (
                    "False",
                    "NotApplied",
                    format!("{tokens_text}; not applied to {WHOAMI}: ValidatingAdmissionPolicy \"p\""),
                ),
            ),
        ] {
            let found = decide(&ObservedAdmission { objects, unreadable }, "pinniped.dev");
            assert_eq!((found.0.as_str(), found.1.as_str(), found.2), expected);
        }
        let observed = ObservedAdmission { objects: vec![tokens], ..ObservedAdmission::default() };
        assert_eq!(decide(&observed, "other.example").0, "True", "the rule names another group");
    }
}
