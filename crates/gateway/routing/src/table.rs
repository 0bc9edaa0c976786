//! What the data plane serves from: one immutable value, replaced as a whole.
//!
//! ```text
//! port 443   SNI ──► TlsTable ──► TlsHost ─┬─ Passthrough ──► TcpProxy
//!                       │                  └─ Terminate ─┬─ Http ──► Routes ──► Route ──► Action
//!                       │                                └─ Tcp  ──► TcpProxy
//!                       └──► Fallback (no SNI, or an unknown one) ──► Routes by Host
//! port 80    Host ──► PlainTable ──► Routes ──► Route ──► "301 to https" or Action
//! ```
//!
//! Everything below is matched by plain code here ([`TlsTable::by_sni`], [`TlsHost::route`], [`PlainTable::route`],
//! [`Rewrite::apply`]), so that the rules are tested where they are written and the data plane only carries them out.
//! Backends are [`Upstream`]s: their [`UpstreamId`] stays the same while endpoints come and go, so what is kept for
//! one (connections, the turn in the round) can be kept by it.

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
pub use matching::{Field, HeaderMatch, HeaderTest, PathMatch, Pattern, QueryMatch, QueryTest, RequestFacts};
pub use path::prepare;
pub use routes::{
    Action, Decision, Forward, PathEdit, PlainTable, Redirect, Response, Rewrite, Route, Routes, Timeouts,
};
pub use tls::{
    ClientValidation, Fallback, ForwardedCertificate, Terminated, Termination, TlsAction, TlsHost, TlsTable,
    TlsTarget, TlsVersion, TlsVersions,
};

use std::time::Duration;

/// How long to wait for a connection to an endpoint.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection of a [`TcpProxy`] may lie still.
pub const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(9001);

/// What the gateway serves. An empty one serves nothing: every connection with TLS is closed, every request without
/// is answered with 404.
#[derive(Debug, Default)]
pub struct RoutingTable {
    /// Port 443.
    pub tls: TlsTable,
    /// Port 80.
    pub plain: PlainTable,
}
