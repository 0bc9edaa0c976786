//! Audit policies: `audit.k8s.io/v1`, kind `Policy`.
//!
//! A policy is a list of rules. The first rule that matches a request determines its [`Level`] and
//! the stages without an event. A request that no rule matches is not logged.
//!
//! The semantics are those of `k8s.io/apiserver/pkg/audit/policy` and
//! `k8s.io/apiserver/pkg/apis/audit/validation`, with one exception: unknown and repeated keys are
//! errors. The API server logs a warning about them and continues without them, so that a rule with
//! a mistyped key applies to more requests than it seems to.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::User;

use crate::bounded_file;

mod raw;
mod validation;

/// The amount of data about a request that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// The request without its body: user, time, object, verb, status code.
    Metadata,
    /// In addition the body of the request.
    Request,
    /// In addition the body of the response.
    RequestResponse,
}

impl Level {
    /// All levels.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    /// Returns the name in policies and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// A stage of the handling of a request, in which an event can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The client is identified, and nothing else has happened.
    RequestReceived,
    /// The response begins. Only for long-running requests, and for requests that are refused
    /// before their client is identified.
    ResponseStarted,
    /// The response has ended.
    ResponseComplete,
    /// The handling of the request panicked.
    Panic,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 4] =
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    /// Returns the name in policies and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// A set of stages.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// Returns whether the stage is in the set.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    fn insert(&mut self, stage: Stage) {
        self.0 |= 1 << stage as u8;
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Stage::ALL.into_iter().filter(|stage| self.contains(*stage))).finish()
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        let mut set = Self::default();
        stages.into_iter().for_each(|stage| set.insert(stage));
        set
    }
}

/// The reasons why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("could not read the audit policy {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The content is not a valid policy.
    #[error("the audit policy {} is invalid: {problems}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems, except when there are very many.
        problems: Problems,
    },
}

/// The problems of a policy. Each names a field and a remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, field: impl fmt::Display, problem: impl fmt::Display) {
        self.0.push(format!("{field}: {problem}"));
    }

    /// Returns the problems, each as one text.
    pub fn texts(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A log line must not become arbitrarily long.
        const SHOWN: usize = 10;
        for (at, problem) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{problem}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Problems {}

/// A valid audit policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    omit_stages: Stages,
    omit_managed_fields: bool,
}

/// A rule. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    level: Level,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    non_resource_urls: Vec<String>,
    /// Includes the stages that the policy omits for all rules.
    omit_stages: Stages,
    omit_managed_fields: bool,
}

/// Resources of one API group, or of all groups (`*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// The decision of a policy about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The level.
    pub level: Level,
    /// The stages without an event.
    pub omit_stages: Stages,
    /// Whether logged bodies have no managed fields.
    pub omit_managed_fields: bool,
}

impl Decision {
    /// Returns whether this stage of the request is logged.
    pub fn logs(&self, stage: Stage) -> bool {
        self.level != Level::None && !self.omit_stages.contains(stage)
    }
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a valid policy.
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let text =
            bounded_file::read(path).map_err(|source| PolicyError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problems| PolicyError::Invalid { path: path.to_owned(), problems })
    }

    /// Parses the text of a policy.
    ///
    /// # Errors
    /// All problems, each with the field and a remedy.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        validation::policy(text)
    }

    /// Returns the decision for a request. `user` is the authenticated user, also when it
    /// impersonates another one; `None` when the client is not identified.
    pub fn decide(&self, user: Option<&User>, attributes: &Attributes) -> Decision {
        match self.rules.iter().find(|rule| rule.matches(user, attributes)) {
            Some(rule) => Decision {
                level: rule.level,
                omit_stages: rule.omit_stages,
                omit_managed_fields: rule.omit_managed_fields,
            },
            None => Decision {
                level: Level::None,
                omit_stages: self.omit_stages,
                omit_managed_fields: self.omit_managed_fields,
            },
        }
    }
}

impl Rule {
    fn matches(&self, user: Option<&User>, attributes: &Attributes) -> bool {
        is_any(&self.users, |name| user.is_some_and(|user| user.name == name))
            && is_any(&self.user_groups, |group| user.is_some_and(|user| user.is_in(group)))
            && is_any(&self.verbs, |verb| attributes.verb() == verb)
            && self.matches_target(attributes)
    }

    /// A rule with resources or namespaces does not match other paths, and one with paths does not
    /// match resources.
    fn matches_target(&self, attributes: &Attributes) -> bool {
        let is_for_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        match attributes {
            Attributes::Resource(resource) if is_for_resources => {
                // The namespace of a cluster-scoped resource is the empty text.
                is_any(&self.namespaces, |namespace| resource.namespace == namespace)
                    && (self.resources.is_empty()
                        || self.resources.iter().any(|group| group.matches(resource)))
            }
            Attributes::Resource(_) => self.non_resource_urls.is_empty(),
            Attributes::NonResource { path, .. } => {
                !is_for_resources && is_any(&self.non_resource_urls, |spec| path_matches(path, spec))
            }
        }
    }
}

impl GroupResources {
    fn matches(&self, request: &ResourceAttributes) -> bool {
        (self.group == "*" || self.group == request.group)
            && is_any(&self.resources, |spec| resource_matches(request, spec))
            // Validation refuses names without resources.
            && is_any(&self.resource_names, |name| request.name == name)
    }
}

/// Returns whether a list is empty, or one of its values matches.
fn is_any(list: &[String], matches: impl Fn(&str) -> bool) -> bool {
    list.is_empty() || list.iter().any(|value| matches(value))
}

/// Matches `*`, `pods`, `pods/log`, `*/log`, and `pods/*`, which includes `pods`.
fn resource_matches(request: &ResourceAttributes, spec: &str) -> bool {
    let ResourceAttributes { resource, subresource, .. } = request;
    let is_equal = match subresource.as_str() {
        "" => spec == resource,
        _ => {
            spec.strip_prefix(resource.as_str()).and_then(|rest| rest.strip_prefix('/')) == Some(subresource)
        }
    };
    is_equal
        || spec == "*"
        || !subresource.is_empty() && spec.strip_prefix("*/") == Some(subresource)
        || spec.strip_suffix("/*") == Some(resource)
}

fn path_matches(path: &str, spec: &str) -> bool {
    spec == path || spec.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests;
