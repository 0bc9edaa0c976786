//! Metrics of a program's capacity for connections and their memory.

use pinniped_metrics::{Definition, Label, LabelValue};

/// Values of the label `reason`.
pub const REFUSED_REASONS: &[LabelValue] = &[
    ("connections", "All connections are in use"),
    ("address", "The address of the client has its maximum number of connections"),
    ("buffer", "The buffer is full"),
];

/// The limit on connections.
pub static CONNECTIONS_LIMIT: Definition = Definition::gauge(
    "pinniped_capacity_connections_limit",
    "Connections that may be open, if there is memory for them",
);

/// Open connections.
pub static CONNECTIONS_OPEN: Definition =
    Definition::gauge("pinniped_capacity_connections_open", "Connections that are open");

/// Provisional connections.
pub static CONNECTIONS_PROVISIONAL: Definition = Definition::gauge(
    "pinniped_capacity_connections_provisional",
    "Open connections without an authenticated request",
);

/// The memory limit of connections.
pub static MEMORY_LIMIT: Definition =
    Definition::gauge("pinniped_capacity_memory_limit_bytes", "Memory that open connections may reserve")
        .present("the pod has a memory limit");

/// The memory of connections.
pub static MEMORY_USED: Definition = Definition::gauge(
    "pinniped_capacity_memory_used_bytes",
    "Memory that open connections reserve; one that is relayed as bytes reserves less than others",
);

/// The size of the buffer.
pub static BUFFER_LIMIT: Definition = Definition::gauge(
    "pinniped_capacity_buffer_limit_bytes",
    "Memory for data of clients that no service has read",
);

/// The use of the buffer.
pub static BUFFER_USED: Definition =
    Definition::gauge("pinniped_capacity_buffer_used_bytes", "Memory for data of clients that is in use");

/// The limit for bodies in transit.
pub static IN_TRANSIT_LIMIT: Definition = Definition::gauge(
    "pinniped_capacity_in_transit_limit_bytes",
    "Memory that bodies in transit may use, which changes with the open connections",
);

/// Bytes of bodies in transit.
pub static IN_TRANSIT: Definition = Definition::gauge(
    "pinniped_capacity_in_transit_bytes",
    "Estimated memory of request bodies that the API server or a backend has not taken and of response bodies that clients have not read",
);

/// Connections that were closed for others.
pub static CONNECTIONS_EVICTED: Definition = Definition::counter(
    "pinniped_capacity_connections_evicted",
    "Connections that were closed to limit the memory of bodies in transit",
);

/// Displaced connections.
pub static CONNECTIONS_DISPLACED: Definition = Definition::counter(
    "pinniped_capacity_connections_displaced",
    "Connections without an authenticated request that were closed for new ones",
);

/// Refusals.
pub static REFUSED: Definition =
    Definition::counter("pinniped_capacity_refused", "Connections and requests refused")
        .by(&[Label::of("reason", REFUSED_REASONS)]);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[
    &CONNECTIONS_LIMIT,
    &CONNECTIONS_OPEN,
    &CONNECTIONS_PROVISIONAL,
    &MEMORY_LIMIT,
    &MEMORY_USED,
    &BUFFER_LIMIT,
    &BUFFER_USED,
    &IN_TRANSIT_LIMIT,
    &IN_TRANSIT,
    &CONNECTIONS_EVICTED,
    &CONNECTIONS_DISPLACED,
    &REFUSED,
];
