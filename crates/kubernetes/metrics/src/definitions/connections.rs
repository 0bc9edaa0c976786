//! Metrics of listeners.

use super::{BOTH, Definition, Label, bounded, counter, gauge};

/// The listeners of the Concierge.
pub const AGGREGATED_API: &str = "aggregated_api";
/// The listener of the impersonation proxy.
pub const IMPERSONATION_PROXY: &str = "impersonation_proxy";
/// The gateway's listener for TLS.
pub const TLS: &str = "tls";
/// The gateway's listener without TLS.
pub const PLAIN: &str = "plain";
/// The gateway's listener for health and metrics.
pub const ADMIN: &str = "admin";

const LISTENER: Label = bounded(
    "listener",
    "`aggregated_api` and `impersonation_proxy` of the Concierge; `tls`, `plain` and `admin` of the gateway",
    3,
);

/// Open connections.
pub static OPEN: Definition = gauge("pinniped_connections_open", "Open connections", BOTH).by(&[LISTENER]);

/// Accepted connections.
pub static ACCEPTED: Definition =
    counter("pinniped_connections_accepted", "Connections accepted", BOTH).by(&[LISTENER]);

/// Refused connections.
pub static REFUSED: Definition =
    counter("pinniped_connections_refused", "Connections closed because too many were open", BOTH)
        .by(&[LISTENER]);

/// Failed handshakes.
pub static HANDSHAKES_FAILED: Definition =
    counter("pinniped_connections_handshakes_failed", "Connections that failed in the TLS handshake", BOTH)
        .by(&[LISTENER]);

/// Too many resets.
pub static TOO_MANY_RESETS: Definition = counter(
    "pinniped_connections_too_many_resets",
    "Connections closed because their client cancelled too many requests",
    BOTH,
)
.by(&[LISTENER]);

/// Failed accept calls.
pub static ACCEPT_FAILURES: Definition =
    counter("pinniped_connections_accept_failures", "Accept calls that failed for lack of resources", BOTH)
        .by(&[LISTENER]);

/// The definitions of this module.
pub const ALL: &[&Definition] =
    &[&OPEN, &ACCEPTED, &REFUSED, &HANDSHAKES_FAILED, &TOO_MANY_RESETS, &ACCEPT_FAILURES];
