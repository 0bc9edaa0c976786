//! A pool of HTTP/2 connections that counts the streams of each.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use hyper::client::conn::http1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connector::{Connector, DialError};
use super::dial_policy::DialPolicy;
use super::http2::Http2;
use super::idle_pool::IdlePool;
use super::keep_alive::Connection as KeepAlive;
use super::socket::ResetFlag;
use super::{RequestBody, UpstreamError, UpstreamStats};
use crate::lingering::Lingering;

/// Minimum value that the clean-up uses as idle timeout; it runs at most at twice this rate.
const MIN_IDLE_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pool {
    connector: Arc<Connector>,
    connections: Arc<Mutex<Connections>>,
    /// Allows one dial at a time: a request that waits for it usually finds capacity on the new
    /// connection.
    dialing: Semaphore,
    /// Number of dials that have ended.
    dials: AtomicU64,
    /// The error of the last dial; requests that waited for that dial fail with it.
    failure: Mutex<Option<Arc<DialError>>>,
    /// Idle HTTP/1.1 connections.
    pub(super) idle: Arc<IdlePool>,
    /// Decides when to dial HTTP/1.1 connections for short reads.
    dial_policy: Arc<DialPolicy>,
    /// Permits for connections that carry one request each.
    unshared: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Connections {
    all: Vec<Connection>,
    /// Whether a task closes idle connections.
    swept: bool,
}

impl Connections {
    /// Removes connections that are closed, and those without streams for this long except for the
    /// first: they close gracefully with the last reference.
    fn sweep(&mut self, idle_timeout: Duration) {
        self.all.retain(|connection| !connection.http2.is_closed());
        if self.all.len() > 1 {
            let now = Instant::now();
            let mut first = true;
            self.all.retain(|connection| {
                let idle = connection.load.open.load(Ordering::Acquire) == 0
                    && connection.load.idle_for(now) > idle_timeout;
                std::mem::take(&mut first) || !idle
            });
        }
    }
}

/// Removes idle connections until at most one connection is left. Without it, the connections of a
/// burst would stay open until the next request.
async fn sweep_until_one(connections: Weak<Mutex<Connections>>, idle_timeout: Duration) {
    let _over = SweepStopped(Weak::clone(&connections));
    loop {
        tokio::time::sleep(idle_timeout / 2).await;
        let Some(connections) = connections.upgrade() else { return };
        let mut connections = lock(&connections);
        connections.sweep(idle_timeout);
        if connections.all.len() <= 1 {
            connections.swept = false;
            return;
        }
    }
}

/// Records that no task removes idle connections any more when the task is dropped, together with
/// its runtime.
struct SweepStopped(Weak<Mutex<Connections>>);

impl Drop for SweepStopped {
    fn drop(&mut self) {
        if let Some(connections) = self.0.upgrade() {
            lock(&connections).swept = false;
        }
    }
}

#[derive(Debug)]
struct Connection {
    http2: Http2,
    load: Arc<Load>,
}

#[derive(Debug)]
struct Load {
    open: AtomicUsize,
    made: Instant,
    /// Milliseconds from `made` to the end of the last stream.
    last_used: AtomicU64,
    /// The permit of a connection that carries one request.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Load {
    /// Creates the load of a connection with its first stream.
    fn first(permit: Option<OwnedSemaphorePermit>) -> Arc<Self> {
        let (open, last_used) = (AtomicUsize::new(1), AtomicU64::new(0));
        Arc::new(Self { open, made: Instant::now(), last_used, _permit: permit })
    }

    fn idle_for(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.made);
        age.saturating_sub(Duration::from_millis(self.last_used.load(Ordering::Relaxed)))
    }
}

/// An open stream, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Stream(Arc<Load>);

impl Drop for Stream {
    fn drop(&mut self) {
        let age = u64::try_from(self.0.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_used.store(age, Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Release);
    }
}

/// Capacity for one stream on a connection.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) http2: Http2,
    pub(super) stream: Lingering<Stream>,
}

impl Lease {
    fn new(http2: Http2, load: Arc<Load>) -> Self {
        Self { http2, stream: Lingering::new(Stream(load)) }
    }
}

impl Pool {
    pub(super) fn new(connector: Arc<Connector>, unshared: Arc<Semaphore>) -> Self {
        Self {
            connector,
            connections: Arc::default(),
            dialing: Semaphore::new(1),
            dials: AtomicU64::new(0),
            failure: Mutex::default(),
            idle: Arc::default(),
            dial_policy: Arc::default(),
            unshared,
        }
    }

    /// Reserves a stream on an existing connection or on a new one.
    pub(super) async fn lease(&self) -> Result<Lease, UpstreamError> {
        match self.lease_open() {
            Some(lease) => Ok(lease),
            // Boxed because it is large and rare; otherwise every request future would reserve
            // space for it.
            None => Box::pin(self.dial()).await,
        }
    }

    async fn dial(&self) -> Result<Lease, UpstreamError> {
        let seen = self.dials.load(Ordering::Acquire);
        // The semaphore is never closed; if it were, the only effect would be superfluous dials.
        let _permit = self.dialing.acquire().await.ok();
        if let Some(lease) = self.lease_open() {
            return Ok(lease);
        }
        if self.dials.load(Ordering::Acquire) != seen
            && let Some(failure) = lock(&self.failure).clone()
        {
            return Err(UpstreamError::Dial(failure));
        }
        let most = self.connector.limits.connections;
        if lock(&self.connections).all.len() >= most {
            return Err(UpstreamError::Full(most));
        }
        let dialed = self.connector.h2().await;
        self.dials.fetch_add(1, Ordering::AcqRel);
        match dialed {
            Ok(http2) => {
                *lock(&self.failure) = None;
                Ok(self.add(http2))
            }
            Err(error) => {
                let error = Arc::new(error);
                *lock(&self.failure) = Some(Arc::clone(&error));
                Err(UpstreamError::Dial(error))
            }
        }
    }

    /// Dials a new connection for one stream, which closes after it.
    pub(super) async fn unshared(&self) -> Result<Lease, UpstreamError> {
        let Ok(permit) = Arc::clone(&self.unshared).try_acquire_owned() else {
            return Err(UpstreamError::UnsharedFull(self.connector.limits.unshared));
        };
        // Boxed because it is large, as above.
        let dialed = Box::pin(self.connector.h2()).await;
        let http2 = dialed.map_err(|error| UpstreamError::Dial(Arc::new(error)))?;
        Ok(Lease::new(http2, Load::first(Some(permit))))
    }

    pub(super) async fn http1(&self) -> Result<(http1::SendRequest<RequestBody>, ResetFlag), UpstreamError> {
        // Boxed because it is large, as above.
        Box::pin(self.connector.http1()).await.map_err(|error| UpstreamError::Dial(Arc::new(error)))
    }

    /// Dials a new keep-alive HTTP/1.1 connection.
    pub(super) async fn keep_alive(&self) -> Result<Box<KeepAlive>, UpstreamError> {
        // Boxed because it is large, as above.
        Box::pin(self.connector.keep_alive()).await.map_err(|error| UpstreamError::Dial(Arc::new(error)))
    }

    /// Records that a short read found no HTTP/1.1 connection, and dials one if the policy decides
    /// so.
    pub(super) fn dial_for_reads(&self) {
        let Some(permit) = self.dial_policy.missed(self.connector.limits.short_reads) else { return };
        // A connector of its own, so that the dial does not keep the pool alive.
        let connector = self.connector.another();
        let handle = self.handle();
        self.connector.spawn(async move {
            match connector.keep_alive_for_reads().await {
                Ok(connection) => handle.put_back(connection.counted(permit.succeeded())),
                Err(error) => {
                    tracing::debug!(%error, "could not dial a connection for short reads");
                    permit.failed();
                }
            }
        });
    }

    /// Returns a handle that puts a used HTTP/1.1 connection back into the pool.
    pub(super) fn handle(&self) -> PoolHandle {
        PoolHandle { idle: Arc::clone(&self.idle), connector: Arc::downgrade(&self.connector) }
    }

    pub(super) fn stats(&self) -> UpstreamStats {
        let short_reads = self.dial_policy.open();
        let connections = lock(&self.connections);
        let open = connections.all.iter().filter(|connection| !connection.http2.is_closed());
        open.fold(UpstreamStats { short_reads, ..UpstreamStats::default() }, |stats, connection| {
            UpstreamStats {
                connections: stats.connections + 1,
                streams: stats.streams + connection.load.open.load(Ordering::Relaxed),
                ..stats
            }
        })
    }

    /// Reserves a stream on the first connection with capacity, so that the last connections become
    /// idle and can be closed.
    fn lease_open(&self) -> Option<Lease> {
        let limits = &self.connector.limits;
        let mut connections = lock(&self.connections);
        connections.sweep(limits.idle_timeout);
        connections.all.iter().find_map(|connection| {
            let allowed = connection.http2.allowed().min(limits.streams_per_connection);
            connection.take(allowed)
        })
    }

    fn add(&self, http2: Http2) -> Lease {
        let connection = Connection { http2, load: Load::first(None) };
        let lease = Lease::new(connection.http2.clone(), Arc::clone(&connection.load));
        let mut connections = lock(&self.connections);
        connections.all.push(connection);
        if connections.all.len() > 1 && !std::mem::replace(&mut connections.swept, true) {
            let idle_timeout = self.connector.limits.idle_timeout.max(MIN_IDLE_TIMEOUT);
            self.connector.spawn(sweep_until_one(Arc::downgrade(&self.connections), idle_timeout));
        }
        lease
    }
}

/// Puts an HTTP/1.1 connection back into its pool.
#[derive(Debug)]
pub(super) struct PoolHandle {
    idle: Arc<IdlePool>,
    connector: Weak<Connector>,
}

impl PoolHandle {
    pub(super) fn put_back(self, connection: Box<KeepAlive>) {
        let Some(connector) = self.connector.upgrade() else { return };
        if self.idle.put(connection) {
            let idle_timeout = connector.limits.idle_timeout.max(MIN_IDLE_TIMEOUT);
            connector.spawn(super::idle_pool::sweep_until_empty(Arc::downgrade(&self.idle), idle_timeout));
        }
    }
}

impl Connection {
    fn take(&self, allowed: usize) -> Option<Lease> {
        // Increased only under the pool's lock, so no concurrent check can pass as well.
        if self.load.open.load(Ordering::Acquire) >= allowed {
            return None;
        }
        self.load.open.fetch_add(1, Ordering::AcqRel);
        Some(Lease::new(self.http2.clone(), Arc::clone(&self.load)))
    }
}

/// Locks a mutex. The state behind each lock is consistent between any two statements, so a panic
/// elsewhere does not invalidate it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
