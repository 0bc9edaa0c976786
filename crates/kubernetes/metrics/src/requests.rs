//! Metrics of the handler chain: requests to the aggregated API and to the impersonation proxy.

use pinniped_metrics::{Definition, Label, LabelValue};

use crate::REQUEST_SECONDS;

/// Values of the label `server`.
pub const SERVERS: &[LabelValue] = &[
    ("aggregated_api", "The aggregated API of the program"),
    ("impersonation_proxy", "The impersonation proxy"),
];

/// Values of the label `verb`.
pub const VERBS: &[LabelValue] = &[
    ("get", "A verb of the Kubernetes API, or the method of a request without a resource"),
    ("list", "A verb of the Kubernetes API"),
    ("watch", "A verb of the Kubernetes API"),
    ("create", "A verb of the Kubernetes API"),
    ("update", "A verb of the Kubernetes API"),
    ("patch", "A verb of the Kubernetes API, or the method of a request without a resource"),
    ("delete", "A verb of the Kubernetes API, or the method of a request without a resource"),
    ("deletecollection", "A verb of the Kubernetes API"),
    ("head", "The method of a request without a resource"),
    ("post", "The method of a request without a resource"),
    ("put", "The method of a request without a resource"),
    ("options", "The method of a request without a resource"),
    ("connect", "The method of a request without a resource"),
    ("proxy", "A request with the obsolete prefix `proxy`"),
    ("other", "Another method, or a path that cannot be parsed"),
];

/// Values of the label `group`.
pub const GROUPS: &[LabelValue] = &[
    ("none", "The request has no resource"),
    ("core", "The core group, such as pods"),
    ("other", "The group of a custom resource"),
    ("unknown", "The request was not authorized; its client could invent a group"),
    ("apps", "The API group of this name"),
    ("batch", "The API group of this name"),
    ("autoscaling", "The API group of this name"),
    ("policy", "The API group of this name"),
    ("events.k8s.io", "The API group of this name"),
    ("coordination.k8s.io", "The API group of this name"),
    ("authorization.k8s.io", "The API group of this name"),
    ("authentication.k8s.io", "The API group of this name"),
    ("rbac.authorization.k8s.io", "The API group of this name"),
    ("networking.k8s.io", "The API group of this name"),
    ("discovery.k8s.io", "The API group of this name"),
    ("storage.k8s.io", "The API group of this name"),
    ("scheduling.k8s.io", "The API group of this name"),
    ("certificates.k8s.io", "The API group of this name"),
    ("admissionregistration.k8s.io", "The API group of this name"),
    ("apiextensions.k8s.io", "The API group of this name"),
    ("apiregistration.k8s.io", "The API group of this name"),
    ("metrics.k8s.io", "The API group of this name"),
];

/// Values of the label `code_class`: the class of the status code.
pub const CODE_CLASSES: &[LabelValue] = &[
    ("1xx", "The connection was upgraded"),
    ("2xx", "The request succeeded"),
    ("3xx", "The client is redirected, or has the response already"),
    ("4xx", "The request is refused"),
    ("5xx", "The request failed"),
    ("abandoned", "The client cancelled the request, or its connection ended, before the response began"),
];

/// The position in [`CODE_CLASSES`] of a request without a response. The classes precede it.
const ABANDONED: usize = CODE_CLASSES.len() - 1;

/// Returns the position in [`CODE_CLASSES`] of a status code, or of a request without a response.
/// An invalid code, which a backend may send, counts as the nearest class.
pub fn code_class(code: Option<u16>) -> usize {
    code.map_or(ABANDONED, |code| usize::from(code / 100).saturating_sub(1).min(ABANDONED - 1))
}

/// Values of the label `limit`.
pub const LIMITS: &[LabelValue] = &[
    ("short", "Short requests; where there is a queue, they wait for some seconds"),
    ("mutating", "Short requests that may change objects, where they have a separate limit"),
    ("waiting", "The queue of short requests, where there is one"),
    ("long_running", "Watches and streams"),
];

const SERVER: Label = Label::of("server", SERVERS);
const LIMIT: Label = Label::of("limit", LIMITS);

/// Requests.
pub static REQUESTS: Definition =
    Definition::counter("pinniped_requests", "Requests whose response has begun, or that ended without one")
        .by(&[
            SERVER,
            Label::of("verb", VERBS),
            Label::of("group", GROUPS),
            Label::of("code_class", CODE_CLASSES),
        ]);

/// The duration of requests.
pub static DURATION: Definition = Definition::histogram(
    "pinniped_request_duration_seconds",
    "Time from the head of a request to the head of its response, or to its end without one",
    REQUEST_SECONDS,
)
.by(&[SERVER, Label::of("verb", VERBS)]);

/// Requests in flight.
pub static IN_FLIGHT: Definition = Definition::gauge(
    "pinniped_requests_in_flight",
    "Requests being served or waiting, by the limit that applies",
)
.by(&[SERVER, LIMIT]);

/// The limits.
pub static IN_FLIGHT_LIMIT: Definition =
    Definition::gauge("pinniped_requests_in_flight_limit", "Maximum number of requests by limit")
        .by(&[SERVER, LIMIT]);

/// Requests over a limit.
pub static OVER_LIMIT: Definition = Definition::counter(
    "pinniped_requests_over_limit",
    "Requests refused with 429 because a limit on requests in flight was reached",
)
.by(&[SERVER, LIMIT]);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&REQUESTS, &DURATION, &IN_FLIGHT, &IN_FLIGHT_LIMIT, &OVER_LIMIT];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_code_has_a_class() {
        for (code, class) in [
            (Some(101), "1xx"),
            (Some(200), "2xx"),
            (Some(399), "3xx"),
            (Some(404), "4xx"),
            (Some(503), "5xx"),
            (Some(999), "5xx"),
            (None, "abandoned"),
        ] {
            assert_eq!(CODE_CLASSES[code_class(code)].0, class, "{code:?}");
        }
    }
}
