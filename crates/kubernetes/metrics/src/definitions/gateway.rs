//! Metrics of the gateway only.

use super::{Definition, GATEWAY, LabelValue, counter, gauge, histogram, label};

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

/// Closed connections.
pub static CLIENT_HELLOS_REFUSED: Definition = counter(
    "pinniped_gateway_client_hellos_refused",
    "Connections of the port for TLS that were closed before any handshake",
    GATEWAY,
)
.by(&[label(
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
    counter("pinniped_gateway_connections_relayed", "Connections that were relayed as bytes", GATEWAY);

/// Connections without an endpoint.
pub static CONNECTIONS_UNCONNECTED: Definition =
    counter("pinniped_gateway_connections_unconnected", "Connections that no endpoint accepted", GATEWAY);

/// Relayed bytes.
pub static RELAYED_BYTES: Definition =
    counter("pinniped_gateway_relayed_bytes", "Bytes of connections that are relayed as bytes", GATEWAY)
        .by(&[label("direction", &[("from_clients", "To backends"), ("to_clients", "From backends")])]);

/// Requests.
pub static REQUESTS: Definition = counter("pinniped_gateway_requests", "Requests", GATEWAY);

/// Requests without a response of a backend.
pub static REQUESTS_UNANSWERED: Definition = counter(
    "pinniped_gateway_requests_unanswered",
    "Requests that received an error response of the gateway itself",
    GATEWAY,
)
.by(&[label(
    "reason",
    &[
        ("not_found", "No route matches: 404"),
        ("misdirected", "The host is not that of the connection: 421"),
        ("backend", "No backend responded: 502, 503 or 504"),
    ],
)]);

/// Upgraded connections.
pub static UPGRADED_CONNECTIONS_OPEN: Definition =
    gauge("pinniped_gateway_upgraded_connections_open", "Upgraded connections that are open", GATEWAY);

/// Objects.
pub static OBJECTS: Definition = gauge(
    "pinniped_gateway_objects",
    "Objects of this gateway's classes by kind and state; an Ingress has no state",
    GATEWAY,
)
.by(&[
    label(
        "kind",
        &[
            ("HTTPProxy", "`projectcontour.io/v1`"),
            ("IngressRoute", "`contour.heptio.com/v1beta1`"),
            ("Ingress", "`networking.k8s.io/v1`"),
        ],
    ),
    label(
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
    counter("pinniped_gateway_table_rebuilds", "Builds of routing tables, by result", GATEWAY)
        .by(&[label("result", REBUILD_RESULTS)]);

/// The duration of rebuilds.
pub static TABLE_REBUILD_DURATION: Definition = histogram(
    "pinniped_gateway_table_rebuild_seconds",
    "Time from reading the objects to a published routing table",
    REBUILD_SECONDS,
    GATEWAY,
);

/// Status writes.
pub static STATUS_WRITES: Definition = counter(
    "pinniped_gateway_status_writes",
    "Statuses written or not, by result; only the leader writes",
    GATEWAY,
)
.by(&[label("result", WRITE_RESULTS)]);

/// The definitions whose values the data plane counts.
pub const OF_THE_DATA_PLANE: [&Definition; 7] = [
    &CLIENT_HELLOS_REFUSED,
    &CONNECTIONS_RELAYED,
    &CONNECTIONS_UNCONNECTED,
    &RELAYED_BYTES,
    &REQUESTS,
    &REQUESTS_UNANSWERED,
    &UPGRADED_CONNECTIONS_OPEN,
];

/// The definitions of this module.
pub const ALL: &[&Definition] = &[
    &CLIENT_HELLOS_REFUSED,
    &CONNECTIONS_RELAYED,
    &CONNECTIONS_UNCONNECTED,
    &RELAYED_BYTES,
    &REQUESTS,
    &REQUESTS_UNANSWERED,
    &UPGRADED_CONNECTIONS_OPEN,
    &OBJECTS,
    &TABLE_REBUILDS,
    &TABLE_REBUILD_DURATION,
    &STATUS_WRITES,
];
