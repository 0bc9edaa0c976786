//! Impersonation requested by the client with `Impersonate-*` headers. Upstream calls it nested
//! impersonation when the impersonation proxy handles it.
//!
//! This implements the constrained impersonation of Kubernetes 1.36 (KEP 5284) with its fallback to
//! the legacy rules. [`intake()`] removes the headers from a request. For one [`Mode`],
//! [`plan_mode`] returns the reviews that must allow the request and the user with which the
//! request continues. The caller performs the reviews in the given order, stops a mode at its first
//! denial, and reports the first denial of the first mode when no mode succeeds.

use crate::attributes::{Attributes, ResourceAttributes};
use crate::identity::{
    self, AUTHENTICATED, MASTERS, UNAUTHENTICATED, User, aggregate, domain_prefixed_path_errors,
};

pub mod intake;

pub use intake::{IntakeError, intake};

const NODE_NAME_EXTRA: &str = "authentication.kubernetes.io/node-name";
const ASSOCIATED_NODE_KEYS_EXTRA: &str = "authentication.kubernetes.io/associated-node-keys";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
/// From this number of groups or extras, a single review with `*` is tried first.
const MANY: usize = 4;

/// A mode of impersonation, in the order in which the modes are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A service account impersonates the node on which its pod runs.
    AssociatedNode,
    /// Any user impersonates a node.
    ArbitraryNode,
    /// Any user impersonates a service account.
    ServiceAccount,
    /// Any user impersonates a user of no special form.
    UserInfo,
    /// The rules before Kubernetes 1.35, for any user.
    Legacy,
}

impl Mode {
    /// All modes in order.
    pub const ALL: [Self; 5] =
        [Self::AssociatedNode, Self::ArbitraryNode, Self::ServiceAccount, Self::UserInfo, Self::Legacy];

    /// Returns the name of the mode, as it appears in its verbs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "legacy",
        }
    }

    fn verb(self) -> String {
        match self {
            Self::Legacy => "impersonate".to_owned(),
            mode => format!("impersonate:{}", mode.as_str()),
        }
    }

    fn applies(self, requestor: &User, wanted: &User) -> bool {
        let only_name = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = identity::node(&wanted.name);
        let service_account = identity::service_account(&wanted.name).is_some();
        match self {
            Self::AssociatedNode => {
                let theirs = match requestor.extra.get(NODE_NAME_EXTRA).map(Vec::as_slice) {
                    Some([name]) => Some(name.as_str()),
                    _ => None,
                };
                only_name
                    && node.is_some()
                    && identity::service_account(&requestor.name).is_some()
                    && node == theirs
            }
            Self::ArbitraryNode => only_name && node.is_some(),
            Self::ServiceAccount => only_name && service_account,
            Self::UserInfo => node.is_none() && !service_account,
            Self::Legacy => true,
        }
    }
}

/// The conditions under which a mode succeeds, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModePlan {
    /// The user of the reviews: the requestor, for one mode with different extras.
    pub reviewed_as: User,
    /// The conditions, in order.
    pub steps: Vec<Step>,
    /// The user with which the request continues when all conditions are met.
    pub becomes: User,
}

/// One condition of a [`ModePlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A review that must allow these attributes.
    Review(Attributes),
    /// Reviews of which either the first, or each of the others, must allow.
    ReviewAnyOrEach {
        /// The review with `*`.
        any: Attributes,
        /// The single reviews.
        each: Vec<Attributes>,
    },
    /// A condition that is never met in this mode.
    Deny {
        /// The attributes of the refusal.
        attributes: Attributes,
        /// The reason of the refusal.
        reason: String,
    },
}

/// Returns the conditions under which `requestor` may make the request of `attributes` as `wanted`
/// in this mode, or `None` when the mode does not apply to such a user.
pub fn plan_mode(mode: Mode, requestor: &User, wanted: &User, attributes: &Attributes) -> Option<ModePlan> {
    if !mode.applies(requestor, wanted) {
        return None;
    }
    let questions = Questions { mode, verb: mode.verb() };
    let mut steps = Vec::new();
    if mode != Mode::Legacy {
        steps.push(Step::Review(impersonate_on(mode, attributes)));
    }
    steps.push(Step::Review(questions.username(&wanted.name)));
    if !wanted.uid.is_empty() {
        steps.push(Step::Review(questions.about(AUTHENTICATION_GROUP, "uids", &wanted.uid)));
    }
    questions.groups(&wanted.groups, &mut steps);
    questions.extras(wanted, &mut steps);

    let mut reviewed_as = requestor.clone();
    if mode == Mode::AssociatedNode {
        let keys = requestor.extra.keys().cloned().collect();
        reviewed_as.extra = [(ASSOCIATED_NODE_KEYS_EXTRA.to_owned(), keys)].into();
    }
    Some(ModePlan { reviewed_as, steps, becomes: becomes(mode, wanted) })
}

/// Returns the attributes with which impersonation by an anonymous client is refused without a
/// review, or `None` for other clients. They are the first condition of the first mode, as if every
/// review were denied. There is no review for such a client, because without a credential it could
/// cause any number of reviews.
pub fn refused_without_review(
    requestor: &User,
    wanted: &User,
    attributes: &Attributes,
) -> Option<Attributes> {
    // Members of this group are allowed everything without a review, also when a front proxy
    // supplied the group.
    if !requestor.is_anonymous() || requestor.is_in(MASTERS) {
        return None;
    }
    let mut plans = Mode::ALL.into_iter().filter_map(|mode| plan_mode(mode, requestor, wanted, attributes));
    plans.find_map(|plan| {
        plan.steps.into_iter().next().map(|step| match step {
            Step::Review(attributes) | Step::Deny { attributes, .. } => attributes,
            Step::ReviewAnyOrEach { any, .. } => any,
        })
    })
}

fn becomes(mode: Mode, wanted: &User) -> User {
    let mut user = wanted.clone();
    if mode != Mode::Legacy && identity::node(&user.name).is_some() {
        user.groups = vec!["system:nodes".to_owned()];
    }
    if user.groups.is_empty()
        && let Some((namespace, _)) = identity::service_account(&user.name)
    {
        user.groups =
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    if user.is_anonymous() {
        if !user.is_in(UNAUTHENTICATED) {
            user.groups.push(UNAUTHENTICATED.to_owned());
        }
    } else if !user.is_in(UNAUTHENTICATED) && !user.is_in(AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

fn impersonate_on(mode: Mode, attributes: &Attributes) -> Attributes {
    let mut question = attributes.clone();
    let verb = match &mut question {
        Attributes::Resource(resource) => &mut resource.verb,
        Attributes::NonResource { verb, .. } => verb,
    };
    *verb = format!("impersonate-on:{}:{verb}", mode.as_str());
    question
}

struct Questions {
    mode: Mode,
    verb: String,
}

impl Questions {
    fn constrained(&self) -> bool {
        self.mode != Mode::Legacy
    }

    fn raw(&self, group: &str, resource: &str) -> ResourceAttributes {
        ResourceAttributes {
            verb: self.verb.clone(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            ..ResourceAttributes::default()
        }
    }

    fn about(&self, group: &str, resource: &str, name: &str) -> Attributes {
        Attributes::Resource(ResourceAttributes { name: name.to_owned(), ..self.raw(group, resource) })
    }

    /// Returns the API group of the reviews for users, groups, nodes and service accounts.
    fn group(&self) -> &'static str {
        if self.constrained() { AUTHENTICATION_GROUP } else { "" }
    }

    fn username(&self, username: &str) -> Attributes {
        if let Some((namespace, name)) = identity::service_account(username) {
            return Attributes::Resource(ResourceAttributes {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..self.raw(self.group(), "serviceaccounts")
            });
        }
        match identity::node(username) {
            // One review covers every node, because the pods of one account run on many nodes.
            Some(_) if self.mode == Mode::AssociatedNode => self.about(self.group(), "nodes", "*"),
            Some(node) if self.constrained() => self.about(self.group(), "nodes", node),
            _ => self.about(self.group(), "users", username),
        }
    }

    fn groups(&self, groups: &[String], steps: &mut Vec<Step>) {
        let about = |name: &str| self.about(self.group(), "groups", name);
        if self.constrained() {
            let deny =
                |name: &str, text: &str| Step::Deny { attributes: about(name), reason: text.to_owned() };
            if groups.iter().any(String::is_empty) {
                return steps.push(deny("", "impersonating the empty string group is not allowed"));
            }
            if groups.iter().any(|group| group == MASTERS) {
                return steps.push(deny(MASTERS, "impersonating the system:masters group is not allowed"));
            }
        }
        let each: Vec<Attributes> = groups.iter().map(|group| about(group)).collect();
        push_each(steps, self.constrained() && groups.len() >= MANY, || about("*"), each);
    }

    fn extras(&self, wanted: &User, steps: &mut Vec<Step>) {
        if wanted.extra.is_empty() {
            return;
        }
        let about = |key: &str, value: &str| {
            Attributes::Resource(ResourceAttributes {
                subresource: key.to_owned(),
                name: value.to_owned(),
                ..self.raw(AUTHENTICATION_GROUP, "userextras")
            })
        };
        if self.constrained()
            && let Some(reason) = wanted.extra.iter().find_map(|(key, values)| refused_extra(key, values))
        {
            return steps.push(Step::Deny { attributes: about("", ""), reason });
        }
        let each: Vec<Attributes> = wanted
            .extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| about(key, value)))
            .collect();
        let many = wanted.extra.len() >= MANY || each.len() >= MANY;
        push_each(steps, self.constrained() && many, || about("*", "*"), each);
    }
}

fn push_each(steps: &mut Vec<Step>, many: bool, any: impl FnOnce() -> Attributes, each: Vec<Attributes>) {
    if many {
        steps.push(Step::ReviewAnyOrEach { any: any(), each });
    } else {
        steps.extend(each.into_iter().map(Step::Review));
    }
}

/// Returns the reason why the constrained rules never allow this extra.
fn refused_extra(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let errors =
        domain_prefixed_path_errors(key).into_iter().map(|text| format!("extra.key: {text}")).collect();
    if let Some(all) = aggregate(errors) {
        return Some(format!("impersonating an invalid key in extra is not allowed: {all}"));
    }
    if key != key.to_lowercase() {
        let key = pinniped_go_compat::json::quote(key);
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {key}"));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    values
        .iter()
        .any(String::is_empty)
        .then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

#[cfg(test)]
mod tests;
