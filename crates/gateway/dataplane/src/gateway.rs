//! A running gateway: its two ports, the current routing table, and its shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use pinniped_gateway_routing::RoutingTable;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::workers::Share;
use pinniped_http_server::{Limits, Listener, ServerHandle, Stats, Workers, serve_with};
use tokio_util::sync::CancellationToken;

use crate::active_table::ActiveTable;
use crate::backend::Weights;
use crate::counts::{Counters, Counts};
use crate::http::{RequestMetrics, Traces};
use crate::plain::PlainPort;
use crate::termination::HostTlsConfigs;
use crate::tls::TlsPort;

/// The addresses and limits of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayParams {
    /// The listen address for TLS (port 443 for clients).
    pub tls: SocketAddr,
    /// The listen address for plain HTTP (port 80 for clients).
    pub plain: SocketAddr,
    /// Limits on the connections of each port. The handshake timeout also applies to the
    /// ClientHello.
    pub limits: Limits,
    /// The grace period for the running requests of a connection after the grant of its host is
    /// revoked or its client CA changes.
    pub revoked_grace: Duration,
    /// Records the requests of port 80 and of terminated TLS; `None` if there are no traces.
    pub traces: Option<Traces>,
}

impl GatewayParams {
    /// Returns parameters with default limits, which suit a server for untrusted clients.
    pub fn new(tls: SocketAddr, plain: SocketAddr) -> Self {
        let limits = Limits {
            header_bytes: 64 << 10,
            header_fields: 200,
            idle_timeout: Duration::from_secs(60),
            h2_streams: 100,
            ..Limits::default()
        };
        Self { tls, plain, limits, revoked_grace: Duration::from_secs(10), traces: None }
    }
}

/// An error at the start of a gateway. The gateway has released all its resources.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port is not available.
    #[error("could not listen on {address}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The worker threads could not be started.
    #[error("could not start the threads of the gateway: {0}")]
    Threads(#[source] io::Error),
}

/// The state shared by all connections.
#[derive(Debug)]
pub(crate) struct Inner {
    active: ArcSwap<ActiveTable>,
    updates: Mutex<()>,
    pub(crate) tls_configs: HostTlsConfigs,
    pub(crate) weights: Weights,
    pub(crate) tunnels: Tunnels,
    pub(crate) counts: Counters,
    pub(crate) requests: RequestMetrics,
    /// Cancelled when the gateway stops.
    pub(crate) draining: CancellationToken,
    pub(crate) revoked_grace: Duration,
    pub(crate) traces: Option<Traces>,
}

impl Inner {
    /// Returns the current routing table and its backends.
    pub(crate) fn active(&self) -> Arc<ActiveTable> {
        self.active.load_full()
    }

    /// Returns the token that terminates an upgraded connection to a host of the fallback; `None`
    /// if the host no longer exists.
    pub(crate) fn revocation_of_fallback_host(&self, host: &str) -> Option<CancellationToken> {
        // The table cannot change while this lock is held.
        let mut tls_configs = self.tls_configs.lock();
        let active = self.active();
        let pattern = active.table.tls.fallback.as_ref()?.hosts.pattern_by_host(host)?;
        Some(tls_configs.of_fallback_host(pattern, &self.draining).ended.clone())
    }

    fn update(&self, table: Arc<RoutingTable>) {
        // Serializes updates, because each table is built from its predecessor.
        let _turn = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        // Built before the lock that handshakes need: with many hosts it takes some milliseconds.
        let next = Arc::new(self.active().next(table));
        // Under this lock, no handshake can add the configuration of a host of the old table.
        let mut tls_configs = self.tls_configs.lock();
        tls_configs.retire(&next.table);
        let old = self.active.swap(next);
        drop(tls_configs);
        // Dropped after the lock is released, so that handshakes do not wait for it.
        drop(old);
    }
}

/// The current values of the metrics of a gateway, except for [`RequestMetrics`] and the expiry of
/// certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayStats {
    /// Connections to port 443. Passed-through connections count as open, too.
    pub tls: Stats,
    /// Connections to port 80.
    pub plain: Stats,
    /// Results of connections and requests.
    pub counts: Counts,
    /// Open upgraded connections.
    pub tunnels: usize,
}

/// A running gateway. Dropping it terminates all connections immediately.
#[derive(Debug)]
pub struct Gateway {
    inner: Arc<Inner>,
    tls: ServerHandle,
    plain: ServerHandle,
    /// Dropped last: upgraded connections run on these workers.
    workers: Arc<Workers>,
}

/// Starts a gateway without a routing table; it serves nothing until the first [`Gateway::update`].
/// Must be called within a tokio runtime.
///
/// # Errors
/// Returns a [`StartError`]; both ports are free again.
pub fn start(params: &GatewayParams) -> Result<Gateway, StartError> {
    let listen = |address: SocketAddr| {
        Listener::bind(address).map_err(|source| StartError::Listen { address, source })
    };
    let (tls, plain) = (listen(params.tls)?, listen(params.plain)?);
    let workers = Arc::new(Workers::start(Share::All).map_err(StartError::Threads)?);
    let inner = Arc::new(Inner {
        active: ArcSwap::default(),
        updates: Mutex::default(),
        tls_configs: HostTlsConfigs::default(),
        weights: Weights::default(),
        tunnels: Tunnels::new(),
        counts: Counters::default(),
        requests: RequestMetrics::default(),
        draining: CancellationToken::new(),
        revoked_grace: params.revoked_grace,
        traces: params.traces.clone(),
    });
    let on_workers = || Some(Arc::clone(&workers));
    let tls = serve_with(on_workers(), tls, TlsPort(Arc::clone(&inner)), params.limits.clone());
    let plain = serve_with(on_workers(), plain, PlainPort(Arc::clone(&inner)), params.limits.clone());
    Ok(Gateway { inner, tls, plain, workers })
}

impl Gateway {
    /// Replaces the routing table. The new table applies to new connections and new requests
    /// immediately. Open connections stay, except for the connections of a host that was removed or
    /// has another certificate or other client validation: these close after their running
    /// requests.
    ///
    /// If the host was removed, its certificate comes from another Secret, or its client validation
    /// changed, upgraded connections and terminated TCP connections are closed immediately, and
    /// running requests after [`GatewayParams::revoked_grace`].
    pub fn update(&self, table: Arc<RoutingTable>) {
        self.inner.update(table);
    }

    /// Returns a function that calls [`update`](Self::update) and may outlive the gateway; after
    /// the gateway has stopped, it has no effect.
    pub fn updater(&self) -> impl Fn(Arc<RoutingTable>) + Send + Sync + use<> {
        let inner = Arc::clone(&self.inner);
        move |table| inner.update(table)
    }

    /// Returns the listen address for TLS, with the actual port.
    pub fn tls_addr(&self) -> SocketAddr {
        self.tls.local_addr()
    }

    /// Returns the listen address for plain HTTP, with the actual port.
    pub fn plain_addr(&self) -> SocketAddr {
        self.plain.local_addr()
    }

    /// Resolves with the reason when a port closes unexpectedly.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let (tls, plain) = (self.tls.failed(), self.plain.failed());
        async move {
            tokio::select! {
                reason = tls => reason,
                reason = plain => reason,
            }
        }
    }

    /// Returns the statistics of connections to port 443. Passed-through connections count as open,
    /// too.
    pub fn tls_stats(&self) -> Stats {
        self.tls.stats()
    }

    /// Returns the statistics of connections to port 80.
    pub fn plain_stats(&self) -> Stats {
        self.plain.stats()
    }

    /// Returns the counters of connections and requests.
    pub fn counts(&self) -> Counts {
        self.inner.counts.read()
    }

    /// Returns the number of open upgraded connections.
    pub fn tunnels(&self) -> usize {
        self.inner.tunnels.open()
    }

    /// Returns the metrics of requests.
    pub fn request_metrics(&self) -> RequestMetrics {
        self.inner.requests.clone()
    }

    /// Returns a function that reads the times at which the certificates of the routing table
    /// expire, and may outlive the gateway. A certificate that serves several hosts is read once.
    pub fn certificate_expiries(&self) -> impl Fn() -> Vec<Timestamp> + Send + Sync + use<> {
        let inner = Arc::clone(&self.inner);
        move || {
            let active = inner.active();
            active.table.tls.certificates().iter().map(|pair| pair.leaf().not_after).collect()
        }
    }

    /// Returns a function that reads all other metrics and may outlive the gateway.
    pub fn stats_source(&self) -> impl Fn() -> GatewayStats + Clone + Send + Sync + use<> {
        let inner = Arc::clone(&self.inner);
        let (tls, plain) = (self.tls.stats_source(), self.plain.stats_source());
        move || GatewayStats {
            tls: tls(),
            plain: plain(),
            counts: inner.counts.read(),
            tunnels: inner.tunnels.open(),
        }
    }

    /// Refuses new connections and requests HTTP clients to close theirs.
    pub fn begin_stop(&self) {
        self.inner.draining.cancel();
        self.tls.begin_drain();
        self.plain.begin_drain();
    }

    /// Stops the gateway: closes the ports, waits up to `grace` for requests and passed-through
    /// connections, then terminates the rest.
    pub async fn stop(self, grace: Duration) {
        self.begin_stop();
        let Self { inner, tls, plain, workers } = self;
        tokio::join!(tls.drain(grace), plain.drain(grace), inner.tunnels.drain(grace));
        drop(workers);
    }
}
