//! The validation results for the status of objects.
//!
//! A [`HttpProxyValidation`] contains the errors of an `HTTPProxy`, an [`IngressRouteValidation`]
//! those of an `IngressRoute`. Both compute the new status from the current one, and return nothing
//! if only times would differ: a redundant write would trigger a watch event and then another
//! write.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pinniped_gateway_api::{
    http_proxy::{DetailedCondition, HttpProxyStatus, SubCondition},
    ingress_route::IngressRouteStatus,
};
use pinniped_kube_types::condition::{FALSE, TRUE};

/// The type of the only condition.
pub const VALID: &str = "Valid";

/// The maximum length of a message; slightly less than the schema allows.
const LONGEST_MESSAGE: usize = 32_760;

/// The maximum number of errors, and of warnings, in a status.
const MOST_FINDINGS: usize = 64;

/// The part of an `HTTPProxy` that an error concerns: the type of the subcondition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// An include.
    Include,
    /// The object itself: no root includes it.
    Orphaned,
    /// The replacement of prefixes.
    PrefixReplace,
    /// The namespace of a root.
    RootNamespace,
    /// A route.
    Route,
    /// A service.
    Service,
    /// The object as a whole.
    Spec,
    /// The include of a TCP proxy.
    TcpProxyInclude,
    /// The TCP proxy.
    TcpProxy,
    /// TLS.
    Tls,
    /// The virtual host.
    VirtualHost,
}

impl Part {
    /// Returns the text form for the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Include => "IncludeError",
            Self::Orphaned => "Orphaned",
            Self::PrefixReplace => "PrefixReplaceError",
            Self::RootNamespace => "RootNamespaceError",
            Self::Route => "RouteError",
            Self::Service => "ServiceError",
            Self::Spec => "SpecError",
            Self::TcpProxyInclude => "TCPProxyIncludeError",
            Self::TcpProxy => "TCPProxyError",
            Self::Tls => "TLSError",
            Self::VirtualHost => "VirtualHostError",
        }
    }
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Finding {
    /// The part of the object.
    pub part: Part,
    /// The machine-readable reason.
    pub reason: &'static str,
    /// The message for users. Shared by all objects that request the same host.
    pub message: Arc<str>,
}

impl Finding {
    pub(crate) fn new(part: Part, reason: &'static str, message: impl Into<Arc<str>>) -> Self {
        let mut message = message.into();
        if message.len() > LONGEST_MESSAGE {
            message = message[..message.floor_char_boundary(LONGEST_MESSAGE)].into();
        }
        Self { part, reason, message }
    }

    fn as_condition(&self) -> SubCondition {
        SubCondition {
            type_: self.part.as_str().to_owned(),
            status: TRUE.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message.as_ref().to_owned(),
        }
    }
}

/// The validation result of an `HTTPProxy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpProxyValidation {
    /// The generation that was validated.
    pub generation: Option<i64>,
    /// The errors. The object is valid if there are none.
    pub errors: Vec<Finding>,
    /// The warnings.
    pub warnings: Vec<Finding>,
}

impl HttpProxyValidation {
    /// Adds an error, without duplicates. The number is limited, because a status must not grow
    /// beyond the size that the API server accepts.
    pub(crate) fn error(&mut self, finding: Finding) {
        if self.errors.len() < MOST_FINDINGS && !self.errors.contains(&finding) {
            self.errors.push(finding);
        }
    }

    /// Adds a warning, without duplicates and up to the limit.
    pub(crate) fn warn(&mut self, finding: Finding) {
        if self.warnings.len() < MOST_FINDINGS && !self.warnings.contains(&finding) {
            self.warnings.push(finding);
        }
    }

    /// Returns `valid`, `invalid` or `orphaned`.
    pub fn current_status(&self) -> &'static str {
        if self.errors.is_empty() {
            "valid"
        } else if self.orphan().is_some() {
            "orphaned"
        } else {
            "invalid"
        }
    }

    fn orphan(&self) -> Option<&Finding> {
        self.errors.iter().find(|error| error.part == Part::Orphaned)
    }

    /// Returns the status that replaces `current`, or `None` if only a time would change or if
    /// `current` is about a later generation. Keeps the addresses of the load balancer.
    pub fn status(&self, current: Option<&HttpProxyStatus>, now: Timestamp) -> Option<HttpProxyStatus> {
        let mut status = current.cloned().unwrap_or_default();
        let place = status.conditions.iter().position(|known| known.condition.type_ == VALID);
        let known = place.map(|place| &status.conditions[place]);
        let observed = known.and_then(|known| known.condition.observed_generation);
        if observed.unwrap_or(0) > self.generation.unwrap_or(0) {
            return None;
        }
        let mut wanted = self.condition(now);
        if let Some(known) = known.filter(|known| known.condition.status == wanted.condition.status) {
            wanted.condition.last_transition_time = known.condition.last_transition_time.clone();
        }
        let description = match self.orphan() {
            Some(orphan) => &*orphan.message,
            None => &wanted.condition.message,
        };
        status.current_status = self.current_status().to_owned();
        status.description = description.to_owned();
        match place {
            Some(place) => status.conditions[place] = wanted,
            None => status.conditions.push(wanted),
        }
        (current != Some(&status)).then_some(status)
    }

    fn condition(&self, now: Timestamp) -> DetailedCondition {
        let (status, reason, message) = if self.errors.is_empty() {
            (TRUE, "Valid", "Valid HTTPProxy")
        } else {
            (FALSE, "ErrorPresent", "At least one error present, see Errors for details")
        };
        DetailedCondition {
            condition: Condition {
                type_: VALID.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message: message.to_owned(),
                observed_generation: self.generation,
                last_transition_time: Time(whole_seconds(now)),
            },
            errors: self.errors.iter().map(Finding::as_condition).collect(),
            warnings: self.warnings.iter().map(Finding::as_condition).collect(),
        }
    }
}

/// The validation result of an `IngressRoute`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngressRouteValidation {
    /// The object is valid.
    Valid,
    /// The object is invalid, in part or completely. Contains the reason.
    Invalid(String),
    /// No root delegates to the object.
    Orphaned,
}

impl IngressRouteValidation {
    /// Returns the status that replaces `current`, or `None` if they are equal. Keeps the addresses
    /// of the load balancer.
    pub fn status(&self, current: Option<&IngressRouteStatus>) -> Option<IngressRouteStatus> {
        let (word, description) = match self {
            Self::Valid => ("valid", "valid IngressRoute"),
            Self::Invalid(why) => ("invalid", why.as_str()),
            Self::Orphaned => {
                ("orphaned", "this IngressRoute is not part of a delegation chain from a root IngressRoute")
            }
        };
        let mut status = current.cloned().unwrap_or_default();
        status.current_status = word.to_owned();
        status.description = description.to_owned();
        (current != Some(&status)).then_some(status)
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    time - SignedDuration::from_nanos(time.subsec_nanosecond().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn broken(generation: i64) -> HttpProxyValidation {
        let mut validation =
            HttpProxyValidation { generation: Some(generation), ..HttpProxyValidation::default() };
        validation.error(Finding::new(Part::Tls, "SecretNotValid", "bad"));
        validation.error(Finding::new(Part::Tls, "SecretNotValid", "bad"));
        validation.warn(Finding::new(Part::TcpProxy, "IgnoredField", "odd"));
        validation
    }

    #[test]
    fn a_status_has_the_form_of_contour() {
        let status = broken(3).status(None, at(5)).unwrap();
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            serde_json::json!({
                "currentStatus": "invalid",
                "description": "At least one error present, see Errors for details",
                "conditions": [{
                    "type": "Valid",
                    "status": "False",
                    "reason": "ErrorPresent",
                    "message": "At least one error present, see Errors for details",
                    "observedGeneration": 3,
                    "lastTransitionTime": "1970-01-01T00:00:05Z",
                    "errors": [{"type": "TLSError", "status": "True", "reason": "SecretNotValid", "message": "bad"}],
                    "warnings": [
                        {"type": "TCPProxyError", "status": "True", "reason": "IgnoredField", "message": "odd"},
                    ],
                }],
            })
        );
        let read: HttpProxyStatus = serde_json::from_value(serde_json::to_value(&status).unwrap()).unwrap();
        assert_eq!(read, status);
        let valid = HttpProxyValidation { generation: Some(3), ..HttpProxyValidation::default() }
            .status(None, at(5))
            .unwrap();
        assert_eq!((&*valid.current_status, &*valid.description), ("valid", "Valid HTTPProxy"));
        assert_eq!(valid.conditions[0].condition.reason, "Valid");
    }

    #[test]
    fn an_orphaned_object_has_the_status_orphaned() {
        let mut validation = HttpProxyValidation::default();
        validation.error(Finding::new(Part::Orphaned, "Orphaned", "nobody"));
        let status = validation.status(None, at(1)).unwrap();
        assert_eq!((&*status.current_status, &*status.description), ("orphaned", "nobody"));
    }

    #[test]
    fn an_unchanged_status_is_not_written_and_keeps_its_time() {
        let first = broken(3).status(None, at(5)).unwrap();
        assert_eq!(broken(3).status(Some(&first), at(9)), None);
        let second = broken(4).status(Some(&first), at(9)).unwrap();
        assert_eq!(second.conditions[0].condition.observed_generation, Some(4));
        assert_eq!(second.conditions[0].condition.last_transition_time, Time(at(5)));
        let good = HttpProxyValidation { generation: Some(4), ..HttpProxyValidation::default() };
        let third = good.status(Some(&second), at(9)).unwrap();
        assert_eq!(third.conditions[0].condition.last_transition_time, Time(at(9)));
    }

    #[test]
    fn foreign_conditions_are_kept_and_newer_statuses_are_not_overwritten() {
        let mut status = broken(3).status(None, at(5)).unwrap();
        let mut other = status.conditions[0].clone();
        other.condition.type_ = "Ready".to_owned();
        status.conditions.insert(0, other.clone());
        status.load_balancer = Some(Default::default());
        let good = HttpProxyValidation { generation: Some(3), ..HttpProxyValidation::default() };
        let next = good.status(Some(&status), at(6)).unwrap();
        assert_eq!(next.conditions[0], other);
        assert_eq!(next.conditions[1].condition.status, TRUE);
        assert!(next.load_balancer.is_some());
        assert_eq!(broken(2).status(Some(&status), at(6)), None);
    }

    #[test]
    fn a_message_is_truncated_at_the_limit_of_the_schema() {
        let long = "\u{e9}".repeat(20_000);
        let finding = Finding::new(Part::Route, "X", format!("a{long}"));
        assert_eq!(finding.message.len(), 32_759);
    }

    #[test]
    fn an_ingress_route_status_has_a_word_and_a_description() {
        for (validation, word, sentence) in [
            (IngressRouteValidation::Valid, "valid", "valid IngressRoute"),
            (IngressRouteValidation::Invalid("why".into()), "invalid", "why"),
            (
                IngressRouteValidation::Orphaned,
                "orphaned",
                "this IngressRoute is not part of a delegation chain from a root IngressRoute",
            ),
        ] {
            let status = validation.status(None).unwrap();
            assert_eq!((&*status.current_status, &*status.description), (word, sentence));
            assert_eq!(validation.status(Some(&status)), None);
        }
    }
}
