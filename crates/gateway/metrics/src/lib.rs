//! The definitions of the metrics of the gateway.
//!
//! [`of_the_program`] lists all metrics of the program, including those of `pinniped_kube_metrics`.

#![forbid(unsafe_code)]

use std::time::Duration;

use pinniped_kube_metrics::requests::CODE_CLASSES;
use pinniped_kube_metrics::{REQUEST_SECONDS, capacity, connections, program, traces};
use pinniped_metrics::{Definition, Label, LabelValue};

/// The names of listeners, in metrics of connections.
pub mod listeners {
    /// The listener for TLS.
    pub const TLS: &str = "tls";
    /// The listener without TLS.
    pub const PLAIN: &str = "plain";
    /// The listener for health and metrics.
    pub const ADMIN: &str = "admin";
}

/// Bounds of buckets for rebuilds.
const REBUILD_SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// Values of the label `result` of rebuilds.
pub const REBUILD_RESULTS: &[LabelValue] = &[
    ("published", "The routing table is in use"),
    ("failed", "The routing table could not be built; the log has the error"),
];

/// Values of the label `result` of status writes.
pub const WRITE_RESULTS: &[LabelValue] = &[
    ("done", "The status was written"),
    ("conflict", "Another client wrote first; the write is repeated"),
    ("forbidden", "A permission is missing"),
    ("failed", "Another failure; the log has the error"),
];

/// Values of the label `direction`.
pub const DIRECTIONS: &[LabelValue] = &[("from_clients", "To backends"), ("to_clients", "From backends")];

/// Values of the label `method`, as in requests.
pub const METHODS: &[LabelValue] = &[
    ("GET", "The method of this name"),
    ("HEAD", "The method of this name"),
    ("POST", "The method of this name"),
    ("PUT", "The method of this name"),
    ("PATCH", "The method of this name"),
    ("DELETE", "The method of this name"),
    ("OPTIONS", "The method of this name"),
    ("CONNECT", "The method of this name, which gets 404"),
    ("TRACE", "The method of this name"),
    ("other", "Another method"),
];

/// Values of the label `remaining`: the time until a certificate expires. Each certificate has one
/// of them. The order is that of [`REMAINING_LIMITS`].
pub const REMAINING: &[LabelValue] = &[
    ("expired", "The certificate has expired"),
    ("day", "A day at most"),
    ("three_days", "More than a day, and three days at most"),
    ("longer", "More than three days"),
];

/// The limits of [`REMAINING`] in ascending order. The last value has none.
pub const REMAINING_LIMITS: [Duration; REMAINING.len() - 1] = [Duration::ZERO, DAY, DAY.saturating_mul(3)];

const DAY: Duration = Duration::from_secs(24 * 3600);

const METHOD: Label = Label::of("method", METHODS);

/// Closed connections.
pub static CLIENT_HELLOS_REFUSED: Definition = Definition::counter(
    "pinniped_gateway_client_hellos_refused",
    "Connections of the port for TLS that were closed before any handshake",
)
.by(&[Label::of(
    "reason",
    &[
        ("not_tls", "The first bytes are not those of TLS"),
        ("unfinished", "The ClientHello did not arrive in time, or is too large"),
        ("unknown_name", "No route has the server name"),
        ("unservable", "The host cannot be served, for example because its certificate is missing"),
    ],
)]);

/// Relayed connections.
pub static CONNECTIONS_RELAYED: Definition =
    Definition::counter("pinniped_gateway_connections_relayed", "Connections that were relayed as bytes");

/// Connections without an endpoint.
pub static CONNECTIONS_UNCONNECTED: Definition =
    Definition::counter("pinniped_gateway_connections_unconnected", "Connections that no endpoint accepted");

/// Relayed bytes.
pub static RELAYED_BYTES: Definition =
    Definition::counter("pinniped_gateway_relayed_bytes", "Bytes of connections that are relayed as bytes")
        .by(&[Label::of("direction", DIRECTIONS)]);

/// Bytes of requests.
pub static REQUEST_BYTES: Definition = Definition::counter(
    "pinniped_gateway_request_bytes",
    "Bytes of the bodies of requests and of their responses, and of upgraded connections",
)
.by(&[Label::of("direction", DIRECTIONS)]);

/// Requests.
pub static REQUESTS: Definition = Definition::counter(
    "pinniped_gateway_requests",
    "Requests whose response has begun, or that ended without one",
)
.by(&[METHOD, Label::of("code_class", CODE_CLASSES)]);

/// The duration of requests.
pub static REQUEST_DURATION: Definition = Definition::histogram(
    "pinniped_gateway_request_duration_seconds",
    "Time from the head of a request to the head of its response, or to its end without one",
    REQUEST_SECONDS,
)
.by(&[METHOD]);

/// Requests in flight.
pub static REQUESTS_IN_FLIGHT: Definition = Definition::gauge(
    "pinniped_gateway_requests_in_flight",
    "Requests to backends whose response, or upgraded connection, has not ended",
);

/// Requests without a response of a backend.
pub static REQUESTS_UNANSWERED: Definition = Definition::counter(
    "pinniped_gateway_requests_unanswered",
    "Requests that received an error response of the gateway itself",
)
.by(&[Label::of(
    "reason",
    &[
        ("not_found", "No route matches: 404"),
        ("misdirected", "The host is not that of the connection: 421"),
        ("backend", "No backend responded: 502, 503 or 504"),
    ],
)]);

/// Upgraded connections.
pub static UPGRADED_CONNECTIONS_OPEN: Definition =
    Definition::gauge("pinniped_gateway_upgraded_connections_open", "Upgraded connections that are open");

/// The first expiry of a certificate.
///
/// Neither this metric nor [`CERTIFICATES`] names a certificate, a Secret or a host. Tenants choose
/// these names and their number, so that they would have no bound, and `/metrics` of the gateway
/// needs no credential.
pub static CERTIFICATE_EXPIRY: Definition = Definition::gauge(
    "pinniped_gateway_certificate_expiry_timestamp_seconds",
    "Time at which the first of the certificates that the gateway serves expires, as Unix time",
)
.present("the gateway serves a certificate");

/// Certificates by remaining time. One expired certificate determines [`CERTIFICATE_EXPIRY`]; here,
/// it does not hide another one that expires soon.
pub static CERTIFICATES: Definition = Definition::gauge(
    "pinniped_gateway_certificates",
    "Certificates that the gateway serves, by the time until they expire",
)
.by(&[Label::of("remaining", REMAINING)]);

/// Objects.
pub static OBJECTS: Definition = Definition::gauge(
    "pinniped_gateway_objects",
    "Objects of this gateway's classes by kind and state; an Ingress has no state",
)
.by(&[
    Label::of(
        "kind",
        &[
            ("HTTPProxy", "`projectcontour.io/v1`"),
            ("IngressRoute", "`contour.heptio.com/v1beta1`"),
            ("Ingress", "`networking.k8s.io/v1`"),
        ],
    ),
    Label::of(
        "state",
        &[
            ("valid", "The object is served"),
            ("invalid", "The object has an error, which its status has, too"),
            ("orphaned", "No root object includes the object"),
            ("", "An Ingress, which has no state"),
        ],
    ),
])
.present("a routing table is built");

/// Rebuilds.
pub static TABLE_REBUILDS: Definition =
    Definition::counter("pinniped_gateway_table_rebuilds", "Builds of routing tables, by result")
        .by(&[Label::of("result", REBUILD_RESULTS)]);

/// The duration of rebuilds.
pub static TABLE_REBUILD_DURATION: Definition = Definition::histogram(
    "pinniped_gateway_table_rebuild_seconds",
    "Time from reading the objects to a published routing table",
    REBUILD_SECONDS,
);

/// Status writes.
pub static STATUS_WRITES: Definition = Definition::counter(
    "pinniped_gateway_status_writes",
    "Statuses written or not, by result; only the leader writes",
)
.by(&[Label::of("result", WRITE_RESULTS)]);

/// The definitions of this crate.
pub const ALL: &[&Definition] = &[
    &CLIENT_HELLOS_REFUSED,
    &CONNECTIONS_RELAYED,
    &CONNECTIONS_UNCONNECTED,
    &RELAYED_BYTES,
    &REQUEST_BYTES,
    &REQUESTS,
    &REQUEST_DURATION,
    &REQUESTS_IN_FLIGHT,
    &REQUESTS_UNANSWERED,
    &UPGRADED_CONNECTIONS_OPEN,
    &CERTIFICATE_EXPIRY,
    &CERTIFICATES,
    &OBJECTS,
    &TABLE_REBUILDS,
    &TABLE_REBUILD_DURATION,
    &STATUS_WRITES,
];

/// Returns the definitions of all metrics of the program.
pub fn of_the_program() -> impl Iterator<Item = &'static Definition> {
    [program::ALL, connections::ALL, capacity::ALL, traces::ALL, ALL].into_iter().flatten().copied()
}
