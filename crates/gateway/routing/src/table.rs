//! The routing table of the data plane: one immutable value that is replaced as a whole.
//!
//! ```text
//! port 443   SNI ──► TlsTable ──► TlsHost ─┬─ Passthrough ──► TcpProxy
//!                       │                  └─ Terminate ─┬─ Http ──► Routes ──► Route ──► Action
//!                       │                                └─ Tcp  ──► TcpProxy
//!                       └──► Fallback (no SNI, or an unknown one) ──► Routes by Host
//! port 80    Host ──► PlainTable ──► Routes ──► Route ──► "301 to https" or Action
//! ```
//!
//! This module also implements the matching ([`TlsTable::by_sni`], [`TlsHost::route`],
//! [`PlainTable::route`], [`Rewrite::apply`]), so that the rules are tested next to their
//! definition and the data plane only executes them. Backends are [`Upstream`]s: the [`UpstreamId`]
//! stays the same while endpoints change, so the data plane can use it as the key of state
//! (connections, the position of round robin).

mod backend;
mod host;
mod matching;
mod path;
mod routes;
mod tls;

pub use backend::{
    Backends, Balance, Protocol, ServicePort, TcpProxy, Upstream, UpstreamId, UpstreamValidation, Weighted,
};
pub use host::{HostMap, HostPattern, host_of};
pub use matching::{Field, HeaderMatch, HeaderTest, PathMatch, Pattern, QueryMatch, QueryTest, RequestParts};
pub use path::prepare;
pub use routes::{
    Action, Decision, Forward, PathEdit, PlainTable, Redirect, Response, Rewrite, Route, Routes, Timeouts,
};
pub use tls::{
    ClientValidation, Fallback, ForwardedCertificate, Terminated, Termination, TlsAction, TlsHost, TlsTable,
    TlsTarget, TlsVersion, TlsVersions,
};

use std::time::Duration;

/// The timeout of a connection attempt to an endpoint.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The idle timeout of a connection of a [`TcpProxy`].
pub const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(9001);

/// The configuration that the gateway serves. An empty table serves nothing: every TLS connection
/// is closed, and every plain request gets a 404.
#[derive(Debug, Default)]
pub struct RoutingTable {
    /// Port 443.
    pub tls: TlsTable,
    /// Port 80.
    pub plain: PlainTable,
}
