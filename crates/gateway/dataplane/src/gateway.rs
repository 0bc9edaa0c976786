//! A running gateway: its two ports, the table that they serve from, and how it stops.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use pinniped_gateway_routing::RoutingTable;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::workers::Share;
use pinniped_http_server::{Limits, Listener, ServerHandle, Stats, Workers, serve_with};
use tokio_util::sync::CancellationToken;

use crate::backend::Weights;
use crate::counts::{Counters, Counts};
use crate::live::Live;
use crate::plain::PlainPort;
use crate::termination::Ends;
use crate::tls::TlsPort;

/// Where and within which bounds.
#[derive(Clone, Debug)]
pub struct GatewayParams {
    /// Port 443, as the world sees it.
    pub tls: SocketAddr,
    /// Port 80, as the world sees it.
    pub plain: SocketAddr,
    /// Bounds on the connections of each port. A ClientHello has the time of a handshake.
    pub limits: Limits,
    /// How long the requests of a connection may go on once the grant of its host is revoked or its client CA changes.
    pub revoked_grace: Duration,
}

impl GatewayParams {
    /// Default bounds: those of a server that strangers talk to.
    pub fn new(tls: SocketAddr, plain: SocketAddr) -> Self {
        let limits = Limits {
            header_bytes: 64 << 10,
            header_fields: 200,
            idle_timeout: Duration::from_secs(60),
            h2_streams: 100,
            ..Limits::default()
        };
        Self { tls, plain, limits, revoked_grace: Duration::from_secs(10) }
    }
}

/// Why a gateway did not start. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be had.
    #[error("could not listen on {address}")]
    Listen {
        /// The wanted address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There are no threads to be had.
    #[error("could not start the threads of the gateway: {0}")]
    Threads(#[source] io::Error),
}

/// What connections share.
#[derive(Debug)]
pub(crate) struct Inner {
    live: ArcSwap<Live>,
    updates: Mutex<()>,
    pub(crate) ends: Ends,
    pub(crate) weights: Weights,
    pub(crate) tunnels: Tunnels,
    pub(crate) counts: Counters,
    /// Cancelled when the gateway stops.
    pub(crate) draining: CancellationToken,
    pub(crate) revoked_grace: Duration,
}

impl Inner {
    /// The table of this moment.
    pub(crate) fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    /// What ends an upgraded connection to a host of the fallback; `None` if there is no such host any more.
    pub(crate) fn end_of_fallback_host(&self, host: &str) -> Option<CancellationToken> {
        // The table does not change while this is held.
        let mut ends = self.ends.lock();
        let live = self.live();
        let pattern = live.table.tls.fallback.as_ref()?.hosts.pattern_by_host(host)?;
        Some(ends.of_fallback_host(pattern, &self.draining).ended.clone())
    }

    fn update(&self, table: Arc<RoutingTable>) {
        // One after the other: each is made from the one before.
        let _turn = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        // Before handshakes have to wait: with many hosts this takes some milliseconds.
        let next = Arc::new(self.live().next(table));
        // Nobody makes an end for a host of the old table after its ends have been looked through.
        let mut ends = self.ends.lock();
        ends.retire(&next.table);
        let old = self.live.swap(next);
        drop(ends);
        // Nor do they wait for what it takes to throw the old one away.
        drop(old);
    }
}

/// What a gateway has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// Connections of port 443. Those that are passed through count as open, too.
    pub tls: Stats,
    /// Connections of port 80.
    pub plain: Stats,
    /// What became of connections and requests.
    pub counts: Counts,
    /// Upgraded connections that are open.
    pub tunnels: usize,
}

/// A running gateway. Dropping it ends it without ceremony.
#[derive(Debug)]
pub struct Gateway {
    inner: Arc<Inner>,
    tls: ServerHandle,
    plain: ServerHandle,
    /// The last to go: upgraded connections run on them.
    workers: Arc<Workers>,
}

/// Starts a gateway that serves nothing until it gets its first table. Must be called within a tokio runtime.
///
/// # Errors
/// [`StartError`], after which both ports are free again.
pub fn start(params: &GatewayParams) -> Result<Gateway, StartError> {
    let listen = |address: SocketAddr| {
        Listener::bind(address).map_err(|source| StartError::Listen { address, source })
    };
    let (tls, plain) = (listen(params.tls)?, listen(params.plain)?);
    let workers = Arc::new(Workers::start(Share::All).map_err(StartError::Threads)?);
    let inner = Arc::new(Inner {
        live: ArcSwap::default(),
        updates: Mutex::default(),
        ends: Ends::default(),
        weights: Weights::default(),
        tunnels: Tunnels::new(),
        counts: Counters::default(),
        draining: CancellationToken::new(),
        revoked_grace: params.revoked_grace,
    });
    let on_lanes = || Some(Arc::clone(&workers));
    let tls = serve_with(on_lanes(), tls, TlsPort(Arc::clone(&inner)), params.limits.clone());
    let plain = serve_with(on_lanes(), plain, PlainPort(Arc::clone(&inner)), params.limits.clone());
    Ok(Gateway { inner, tls, plain, workers })
}

impl Gateway {
    /// Serves from this table from now on. New connections and new requests see it at once. Open connections stay,
    /// except that those of a host which is gone, or has another certificate or other demands on clients, end after
    /// the requests that run.
    ///
    /// Where the host is gone, its certificate is of another Secret, or the demands on clients are others, upgraded
    /// connections and terminated ones of bytes are cut at once, and requests that run when they have had
    /// [`GatewayParams::revoked_grace`].
    pub fn update(&self, table: Arc<RoutingTable>) {
        self.inner.update(table);
    }

    /// The same for somebody who outlives the gateway: a table that comes after its end changes nothing.
    pub fn updater(&self) -> impl Fn(Arc<RoutingTable>) + Send + Sync + use<> {
        let inner = Arc::clone(&self.inner);
        move |table| inner.update(table)
    }

    /// The address of port 443, with the real port.
    pub fn tls_addr(&self) -> SocketAddr {
        self.tls.local_addr()
    }

    /// The address of port 80, with the real port.
    pub fn plain_addr(&self) -> SocketAddr {
        self.plain.local_addr()
    }

    /// Resolves with the reason when a port closes by itself.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let (tls, plain) = (self.tls.failed(), self.plain.failed());
        async move {
            tokio::select! {
                reason = tls => reason,
                reason = plain => reason,
            }
        }
    }

    /// Connections of port 443. Those that are passed through count as open, too.
    pub fn tls_stats(&self) -> Stats {
        self.tls.stats()
    }

    /// Connections of port 80.
    pub fn plain_stats(&self) -> Stats {
        self.plain.stats()
    }

    /// What became of connections and requests.
    pub fn counts(&self) -> Counts {
        self.inner.counts.read()
    }

    /// Upgraded connections that are open.
    pub fn tunnels(&self) -> usize {
        self.inner.tunnels.open()
    }

    /// All of these numbers, for a scraper that outlives the gateway.
    pub fn readings(&self) -> impl Fn() -> Readings + Clone + Send + Sync + use<> {
        let inner = Arc::clone(&self.inner);
        let (tls, plain) = (self.tls.stats_source(), self.plain.stats_source());
        move || Readings {
            tls: tls(),
            plain: plain(),
            counts: inner.counts.read(),
            tunnels: inner.tunnels.open(),
        }
    }

    /// Refuses new connections from now on, and tells clients of HTTP to go.
    pub fn begin_stop(&self) {
        self.inner.draining.cancel();
        self.tls.begin_drain();
        self.plain.begin_drain();
    }

    /// Stops: the ports are closed at once, requests and passed-through connections get `grace` to finish, then
    /// everything that is left is cut.
    pub async fn stop(self, grace: Duration) {
        self.begin_stop();
        let Self { inner, tls, plain, workers } = self;
        tokio::join!(tls.drain(grace), plain.drain(grace), inner.tunnels.drain(grace));
        drop(workers);
    }
}
