//! Metrics of listeners.

use pinniped_metrics::{Definition, Label};

const LISTENER: Label = Label::bounded("listener", "the name of the listener", 3);

/// The value of the label `worker` of a listener without workers.
pub const NO_WORKER: &str = "none";

/// Open connections.
pub static OPEN: Definition = Definition::gauge("pinniped_connections_open", "Open connections").by(&[
    LISTENER,
    Label::bounded("worker", "the number of the thread, or `none` where a listener has no threads", 17),
]);

/// Accepted connections.
pub static ACCEPTED: Definition =
    Definition::counter("pinniped_connections_accepted", "Connections accepted").by(&[LISTENER]);

/// Refused connections.
pub static REFUSED: Definition = Definition::counter(
    "pinniped_connections_refused",
    "Connections closed right after accept because of a limit",
)
.by(&[LISTENER]);

/// Failed handshakes.
pub static HANDSHAKES_FAILED: Definition = Definition::counter(
    "pinniped_connections_handshakes_failed",
    "Connections that failed in the TLS handshake",
)
.by(&[LISTENER]);

/// Too many resets.
pub static TOO_MANY_RESETS: Definition = Definition::counter(
    "pinniped_connections_too_many_resets",
    "Connections closed because their client cancelled too many requests",
)
.by(&[LISTENER]);

/// Failed accept calls.
pub static ACCEPT_FAILURES: Definition = Definition::counter(
    "pinniped_connections_accept_failures",
    "Accept calls that failed for lack of resources",
)
.by(&[LISTENER]);

/// The definitions of this module.
pub const ALL: &[&Definition] =
    &[&OPEN, &ACCEPTED, &REFUSED, &HANDSHAKES_FAILED, &TOO_MANY_RESETS, &ACCEPT_FAILURES];
