//! Decides which admission objects of the cluster match the aggregated API, the condition that
//! reports them, and the requests that are refused because of them.
//!
//! API servers do not run admission for aggregated APIs: the server of the API has to. This one
//! does not apply the objects, so it reports each object that may match, and can refuse to create
//! the resources that it may match. Selectors, match conditions and bindings are not evaluated: an
//! object with any of them may match.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, MutatingWebhookConfiguration, NamedRuleWithOperations, RuleWithOperations,
    ValidatingWebhookConfiguration,
};
use pinniped_concierge_api::names::{GROUP_IDENTITY, GROUP_LOGIN, VERSION};
use pinniped_kube_types::condition::{self, DesiredCondition};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_kube_types::text::truncated;
use serde::Deserialize;

use crate::credential_issuer::conditions::{ConditionChange, MAX_MESSAGE_LENGTH};

/// Type of the condition that reports whether all matching admission objects are applied.
pub const ADMISSION_APPLIED: &str = "AdmissionApplied";
/// Reason of the condition if no object matches.
pub const NOTHING_MATCHES: &str = "NothingMatches";
/// Reason of the condition if an object matches, and is not applied.
pub const NOT_APPLIED: &str = "NotApplied";
/// Reason of the condition if no object is known to match, but not all can be read.
pub const NOT_READ: &str = "NotRead";
/// Reason of the condition if requests are refused, because an object matches or because not all
/// can be read.
pub const REFUSED: &str = "Refused";

/// The resources of the aggregated API, with the group before the suffix is applied.
const RESOURCES: [(&str, &str); 2] =
    [(GROUP_LOGIN, "tokencredentialrequests"), (GROUP_IDENTITY, "whoamirequests")];

/// The handling of requests that an object may match which is not applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnappliedAdmission {
    /// The objects are reported, and the requests are served.
    #[default]
    Report,
    /// The objects are reported, and the requests are refused.
    Refuse,
}

impl UnappliedAdmission {
    /// Both kinds of handling.
    pub const ALL: [Self; 2] = [Self::Report, Self::Refuse];

    /// Returns the name, as in `aggregatedAPIServerUnappliedAdmission`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Refuse => "refuse",
        }
    }

    /// Returns the handling with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|handling| handling.name() == name)
    }
}

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
        let RuleWithOperations { api_groups, api_versions, operations, resources, scope } = rule.clone();
        Self::from(&NamedRuleWithOperations {
            api_groups,
            api_versions,
            operations,
            resource_names: None,
            resources,
            scope,
        })
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

/// The part of an admission policy's specification that decides which requests it matches. It is
/// the same for both kinds of policies in the versions `v1`, `v1beta1` and `v1alpha1`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// The resources that the policy matches.
    pub match_constraints: Option<MatchResources>,
}

impl AdmissionObject {
    /// Returns the policy `name` of a plug-in for policies.
    pub fn policy(plugin: AdmissionPlugin, name: &str, spec: &PolicySpec) -> Self {
        let constraints = spec.match_constraints.as_ref();
        let rules = |rules: Option<&Vec<NamedRuleWithOperations>>| -> Vec<Rule> {
            rules.into_iter().flatten().map(Rule::from).collect()
        };
        let included = rules(constraints.and_then(|constraints| constraints.resource_rules.as_ref()));
        Self {
            plugin,
            name: name.to_owned(),
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

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionDecision {
    /// The change of the condition [`ADMISSION_APPLIED`].
    pub condition: ConditionChange,
    /// The requests that are refused.
    pub refusals: Refusals,
}

/// The resources that no client can create, with the reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<&'static str, CreateRefusal>);

/// The reason why no client can create a resource. Clients that are not authenticated receive it,
/// so it has the kinds of the objects only: the condition has their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateRefusal {
    /// Objects may match, and are not applied. The text lists their kinds.
    Unapplied(String),
    /// Objects that cannot be read may match. The text lists their kinds, which is empty before the
    /// first decision.
    Unread(String),
}

impl Refusals {
    /// Returns the refusals before the first decision.
    pub fn at_start(handling: UnappliedAdmission) -> Self {
        match handling {
            UnappliedAdmission::Report => Self::default(),
            UnappliedAdmission::Refuse => {
                let refusal = |(_, resource)| (resource, CreateRefusal::Unread(String::new()));
                Self(RESOURCES.into_iter().map(refusal).collect())
            }
        }
    }

    /// Returns the reason why no client can create `resource`, the plural in lower case.
    pub fn of(&self, resource: &str) -> Option<&CreateRefusal> {
        self.0.get(resource)
    }
}

/// Decides the condition [`ADMISSION_APPLIED`] and the refusals.
pub fn decide(
    observed: &ObservedAdmission,
    suffix: &GroupSuffix,
    handling: UnappliedAdmission,
) -> AdmissionDecision {
    let matching: Vec<Matching> = RESOURCES
        .into_iter()
        .filter_map(|(group, resource)| Matching::new(observed, suffix.replace(group), resource))
        .collect();
    let condition = condition(observed, &matching, handling);
    let refusals = match handling {
        UnappliedAdmission::Report => Refusals::default(),
        UnappliedAdmission::Refuse => refusals(observed, &matching),
    };
    AdmissionDecision { condition: ConditionChange::Set(condition), refusals }
}

/// The objects that match one resource, of which there is at least one.
struct Matching {
    group: String,
    resource: &'static str,
    objects: String,
    kinds: String,
}

impl Matching {
    fn new(observed: &ObservedAdmission, group: String, resource: &'static str) -> Option<Self> {
        let objects = || observed.objects.iter().filter(|object| object.may_match(&group, resource));
        let kinds = kinds(objects().map(|object| object.plugin));
        let texts: BTreeSet<String> =
            objects().map(|object| format!("{} \"{}\"", object.plugin.kind(), object.name)).collect();
        let texts: Vec<String> = texts.into_iter().collect();
        (!texts.is_empty()).then(|| Self { group, resource, objects: texts.join(", "), kinds })
    }
}

fn condition(
    observed: &ObservedAdmission,
    matching: &[Matching],
    handling: UnappliedAdmission,
) -> DesiredCondition {
    let status = match (matching, observed.unreadable.as_slice()) {
        ([_, ..], _) => condition::FALSE,
        ([], [_, ..]) => condition::UNKNOWN,
        ([], []) => {
            let message = "no admission policy or webhook of the cluster matches the aggregated API";
            return DesiredCondition::new(ADMISSION_APPLIED, condition::TRUE, NOTHING_MATCHES, message);
        }
    };
    let (reason, consequence) = match (handling, status) {
        (UnappliedAdmission::Refuse, _) => (REFUSED, ", so its creation is refused"),
        (UnappliedAdmission::Report, condition::FALSE) => (NOT_APPLIED, ""),
        (UnappliedAdmission::Report, _) => (NOT_READ, ""),
    };
    let matching = matching.iter().map(|Matching { group, resource, objects, .. }| {
        format!("not applied to {resource}.{group}{consequence}: {objects}")
    });
    let consequence = match handling {
        UnappliedAdmission::Report => "",
        UnappliedAdmission::Refuse => ", so all requests are refused",
    };
    let unreadable = observed
        .unreadable
        .iter()
        .map(|(plugin, why)| format!("cannot read {}{consequence}: {why}", plugin.kind()));
    let parts: Vec<String> = matching.chain(unreadable).collect();
    let message = truncated(&parts.join("; "), MAX_MESSAGE_LENGTH);
    DesiredCondition::new(ADMISSION_APPLIED, status, reason, message)
}

fn refusals(observed: &ObservedAdmission, matching: &[Matching]) -> Refusals {
    let mut refusals = BTreeMap::new();
    if !observed.unreadable.is_empty() {
        // The reason can contain names of the cluster's accounts, which clients do not need.
        let kinds = kinds(observed.unreadable.iter().map(|(plugin, _)| *plugin));
        refusals.extend(RESOURCES.map(|(_, resource)| (resource, CreateRefusal::Unread(kinds.clone()))));
    }
    for Matching { resource, kinds, .. } in matching {
        refusals.insert(*resource, CreateRefusal::Unapplied(kinds.clone()));
    }
    Refusals(refusals)
}

fn kinds(plugins: impl Iterator<Item = AdmissionPlugin>) -> String {
    let kinds: BTreeSet<&str> = plugins.map(AdmissionPlugin::kind).collect();
    kinds.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
