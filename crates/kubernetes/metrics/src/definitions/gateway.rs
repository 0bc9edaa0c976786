//! Metrics of the gateway only.

use super::{Definition, GATEWAY, counter, gauge, histogram, label};

/// Bounds of buckets for rebuilds.
const REBUILD_SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// Values of the label `result` of rebuilds: the table is in use; it could not be built.
pub const REBUILD_RESULTS: &[&str] = &["published", "failed"];

/// Values of the label `result` of status writes: written; another client wrote first; a permission
/// is missing; another failure.
pub const WRITE_RESULTS: &[&str] = &["done", "conflict", "forbidden", "failed"];

/// Closed connections.
pub static CLIENT_HELLOS_REFUSED: Definition = counter(
    "pinniped_gateway_client_hellos_refused",
    "Connections of the port for TLS that were closed before any handshake",
    GATEWAY,
)
.by(&[label("reason", &["not_tls", "unfinished", "unknown_name", "unservable"])]);

/// Relayed connections.
pub static CONNECTIONS_RELAYED: Definition =
    counter("pinniped_gateway_connections_relayed", "Connections that were relayed as bytes", GATEWAY);

/// Connections without an endpoint.
pub static CONNECTIONS_UNCONNECTED: Definition =
    counter("pinniped_gateway_connections_unconnected", "Connections that no endpoint accepted", GATEWAY);

/// Relayed bytes.
pub static RELAYED_BYTES: Definition =
    counter("pinniped_gateway_relayed_bytes", "Bytes of connections that are relayed as bytes", GATEWAY)
        .by(&[label("direction", &["from_clients", "to_clients"])]);

/// Requests.
pub static REQUESTS: Definition = counter("pinniped_gateway_requests", "Requests", GATEWAY);

/// Requests without a response of a backend.
pub static REQUESTS_UNANSWERED: Definition = counter(
    "pinniped_gateway_requests_unanswered",
    "Requests that received an error response of the gateway itself",
    GATEWAY,
)
.by(&[label("reason", &["not_found", "misdirected", "backend"])]);

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
    label("kind", &["HTTPProxy", "IngressRoute", "Ingress"]),
    label("state", &["valid", "invalid", "orphaned", ""]),
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
