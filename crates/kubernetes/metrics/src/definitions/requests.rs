//! Metrics of the handler chain: requests to the aggregated API and to the impersonation proxy.

use super::{CONCIERGE, Definition, Label, REQUEST_SECONDS, counter, gauge, histogram, label};

/// Values of the label `server`.
pub const SERVERS: &[&str] = &["aggregated_api", "impersonation_proxy"];

/// Values of the label `verb`: the verbs of the API, and `other` for each other method.
pub const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "head",
    "post",
    "put",
    "options",
    "connect",
    "proxy",
    "other",
];

/// Values of the label `group`: the API groups of Kubernetes, `other` for those of custom
/// resources, `none` for requests without a resource, and `unknown` for those that were not
/// authorized: their clients could invent groups.
pub const GROUPS: &[&str] = &[
    "none",
    "core",
    "other",
    "unknown",
    "apps",
    "batch",
    "autoscaling",
    "policy",
    "events.k8s.io",
    "coordination.k8s.io",
    "authorization.k8s.io",
    "authentication.k8s.io",
    "rbac.authorization.k8s.io",
    "networking.k8s.io",
    "discovery.k8s.io",
    "storage.k8s.io",
    "scheduling.k8s.io",
    "certificates.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "metrics.k8s.io",
];

/// Values of the label `code_class`: the class of the status code; `abandoned` if the client cancelled the
/// request, or its connection ended, before the response began.
pub const CODE_CLASSES: &[&str] = &["1xx", "2xx", "3xx", "4xx", "5xx", "abandoned"];

/// Values of the label `limit`: the limit on short requests, for which they may wait for some
/// seconds; the limit on those that may change objects, where it is a separate one; the length of
/// the queue for both; the limit on watches and streams.
pub const LIMITS: &[&str] = &["short", "mutating", "waiting", "long_running"];

const SERVER: Label = label("server", SERVERS);
const LIMIT: Label = label("limit", LIMITS);

/// Requests.
pub static REQUESTS: Definition =
    counter("pinniped_requests", "Requests whose response has begun, or that ended without one", CONCIERGE)
        .by(&[SERVER, label("verb", VERBS), label("group", GROUPS), label("code_class", CODE_CLASSES)]);

/// The duration of requests.
pub static DURATION: Definition = histogram(
    "pinniped_request_duration_seconds",
    "Time from the head of a request to the head of its response, or to its end without one",
    REQUEST_SECONDS,
    CONCIERGE,
)
.by(&[SERVER, label("verb", VERBS)]);

/// Requests in flight.
pub static IN_FLIGHT: Definition = gauge(
    "pinniped_requests_in_flight",
    "Requests being served or waiting, by the limit that applies",
    CONCIERGE,
)
.by(&[SERVER, LIMIT]);

/// The limits.
pub static IN_FLIGHT_LIMIT: Definition =
    gauge("pinniped_requests_in_flight_limit", "Maximum number of requests by limit", CONCIERGE)
        .by(&[SERVER, LIMIT]);

/// Requests over a limit.
pub static OVER_LIMIT: Definition = counter(
    "pinniped_requests_over_limit",
    "Requests refused with 429 because a limit on requests in flight was reached",
    CONCIERGE,
)
.by(&[SERVER, LIMIT]);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&REQUESTS, &DURATION, &IN_FLIGHT, &IN_FLIGHT_LIMIT, &OVER_LIMIT];
